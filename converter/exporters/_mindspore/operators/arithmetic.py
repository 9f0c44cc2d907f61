"""Arithmetic on tensors, and on the Python numbers that MindSpore computes when the graph runs."""

from __future__ import annotations

import math
from collections.abc import Sequence

import ml_dtypes
import numpy as np

from paritygate.converter.exporters import near_zero
from paritygate.converter.exporters._mindspore import integers
from paritygate.converter.exporters._mindspore.emitter import Call, NoForm
from paritygate.converter.exporters._mindspore.operators.table import Handler, Table
from paritygate.converter.exporters._mindspore.values import Many, Value

TABLE = Table()


def _unary(op: str) -> Handler:
    def write(call: Call) -> Value:
        return call.give(call.op(op, call.like(0, call.out.dtype)))

    return write


for _primitive, _op in {
    "Abs": "Abs", "Neg": "Neg", "Exp": "Exp", "Log": "Log", "Sqrt": "Sqrt", "Reciprocal": "Reciprocal",
    "Inv": "Reciprocal",
    "Ceil": "Ceil", "Floor": "Floor", "Sign": "Sign", "Sin": "Sin", "Cos": "Cos", "Tan": "Tan", "Asin": "Asin",
    "AsinExt": "Asin", "ACos": "Acos", "AcosExt": "Acos", "Atan": "Atan", "AtanExt": "Atan", "Sinh": "Sinh",
    "Cosh": "Cosh",
    "Asinh": "Asinh", "AsinhExt": "Asinh", "Acosh": "Acosh", "AcoshExt": "Acosh", "Atanh": "Atanh", "Erf": "Erf",
    "ScalarUsub": "Neg",
}.items():  # fmt: skip
    TABLE[_primitive] = _unary(_op)


def _binary(op: str) -> Handler:
    def write(call: Call) -> Value:
        dtype = call.out.dtype
        return call.give(call.op(op, call.like(0, dtype), call.like(1, dtype)))

    return write


for _primitive, _op in {
    "Add": "Add", "Sub": "Sub", "Mul": "Mul", "Muls": "Mul", "Maximum": "Max", "Minimum": "Min",
    "ScalarAdd": "Add", "ScalarSub": "Sub", "ScalarMul": "Mul", "ScalarMax": "Max", "ScalarMin": "Min",
}.items():  # fmt: skip
    TABLE[_primitive] = _binary(_op)


@TABLE.of("Div", "RealDiv", "Divs", "ScalarDiv", "ScalarRealDiv", "TruncateDiv")
def _divide(call: Call) -> Value:
    dtype = call.out.dtype
    if dtype.kind in "iu":
        return call.give(integers.in_int64(call, integers.truncated, dtype))
    quotient = call.op("Div", call.like(0, dtype), call.like(1, dtype))
    return call.give(truncated(call, quotient, dtype) if call.primitive == "TruncateDiv" else quotient)


@TABLE.of("AddExt", "SubExt", "AddScalar", "SubScalar")
def _scaled(call: Call) -> Value:
    dtype, alpha = call.out.dtype, call.static(2, 1)
    second = call.like(1, dtype)
    if alpha != 1:
        second = call.op("Mul", second, call.number(alpha, dtype))
    op = "Add" if call.primitive.startswith("Add") else "Sub"
    return call.give(call.op(op, call.like(0, dtype), second))


@TABLE.of("AddN", "AccumulateNV2")
def _sum(call: Call) -> Value:
    many = call.inputs[0]
    names = [call.name(item) for item in (many.items if isinstance(many, Many) else call.inputs)]
    total = names[0]
    for name in names[1:]:
        total = call.op("Add", total, name)
    return call.give(total)


@TABLE.of("FloorDiv", "FloorDivScalar", "ScalarFloorDiv")
def _floor_div(call: Call) -> Value:
    dtype = call.out.dtype
    if dtype.kind in "iu":
        return call.give(integers.in_int64(call, integers.floored, dtype))
    return call.give(call.op("Floor", call.op("Div", call.like(0, dtype), call.like(1, dtype))))


@TABLE.of("FloorMod", "RemainderTensorTensor", "RemainderTensorScalar", "RemainderScalarTensor", "ScalarMod")
def _floor_mod(call: Call) -> Value:
    dtype = call.out.dtype
    if dtype.kind in "iu":
        return call.give(integers.in_int64(call, integers.remainder, dtype))
    first, second = call.like(0, dtype), call.like(1, dtype)
    rest = call.op("Mod", first, second, fmod=1)
    zero = call.number(0, dtype)
    signs = call.op("Xor", call.op("Less", rest, zero), call.op("Less", second, zero))
    wrong = call.op("And", call.op("Not", call.op("Equal", rest, zero)), signs)
    return call.give(call.op("Where", wrong, call.op("Add", rest, second), rest))


@TABLE.of("Mod", "FmodTensor", "FmodScalar", "TruncateMod")
def _mod(call: Call) -> Value:
    dtype = call.out.dtype
    if dtype.kind in "iu":
        return call.give(integers.in_int64(call, integers.fmod, dtype))
    return call.give(call.op("Mod", call.like(0, dtype), call.like(1, dtype), fmod=1))


@TABLE.of("DivMod", "DivMods")
def _div_mod(call: Call) -> Value:
    """A quotient; rounded as an enumeration or its name says."""
    mode, dtype = call.static(2), call.out.dtype
    if dtype.kind in "iu" and mode is not None:
        rule = integers.floored if mode in ("floor", 2) else integers.truncated
        return call.give(integers.in_int64(call, rule, dtype))
    quotient = call.op("Div", call.like(0, dtype), call.like(1, dtype))
    if mode is None:
        return call.give(quotient)
    return call.give(call.op("Floor", quotient) if mode in ("floor", 2) else truncated(call, quotient, dtype))


@TABLE.of("DivNoNan")
def _div_no_nan(call: Call) -> Value:
    dtype = call.out.dtype
    first, second, zero = call.like(0, dtype), call.like(1, dtype), call.number(0, dtype)
    return call.give(call.op("Where", call.op("Equal", second, zero), zero, call.op("Div", first, second)))


def truncated(call: Call, name: str, dtype: np.dtype) -> str:
    """A float without what stands behind the point."""
    down, up = call.op("Floor", name), call.op("Ceil", name)
    return call.op("Where", call.op("Less", name, call.number(0, dtype)), up, down)


@TABLE.of("Trunc")
def _trunc(call: Call) -> Value:
    return call.give(truncated(call, call[0], call.dtype(0)) if call.dtype(0).kind == "f" else call[0])


@TABLE.of("Frac")
def _frac(call: Call) -> Value:
    return call.give(call.op("Sub", call[0], truncated(call, call[0], call.dtype(0))))


@TABLE.of("Round", "Rint")
def _round(call: Call) -> Value:
    decimals, dtype = call.static(1, 0), call.out.dtype
    if dtype.kind in "iu" and decimals >= 0:
        return call.give(call[0])
    if decimals == 0:
        return call.give(call.op("Round", call[0]))
    raise NoForm(f"rounds to {decimals} decimals, for which ONNX has no form that gives the same floats")


@TABLE.of("Pow", "PowTensorScalar", "PowScalarTensor", "ScalarPow")
def _pow(call: Call) -> Value:
    dtype = call.out.dtype
    return call.give(call.op("Pow", call.like(0, dtype), call.like(1, dtype)))


@TABLE.of("Square")
def _square(call: Call) -> Value:
    return call.give(call.op("Mul", call[0], call[0]))


@TABLE.of("Rsqrt")
def _rsqrt(call: Call) -> Value:
    return call.give(call.op("Reciprocal", call.op("Sqrt", call.like(0, call.out.dtype))))


@TABLE.of("SquaredDifference")
def _squared_difference(call: Call) -> Value:
    dtype = call.out.dtype
    difference = call.op("Sub", call.like(0, dtype), call.like(1, dtype))
    return call.give(call.op("Mul", difference, difference))


def _log_of(factor: float) -> Handler:
    def write(call: Call) -> Value:
        dtype = call.out.dtype
        return call.give(call.op("Mul", call.op("Log", call.like(0, dtype)), call.number(factor, dtype)))

    return write


TABLE["Log2"] = _log_of(1 / math.log(2))
TABLE["Log10"] = _log_of(1 / math.log(10))


class _InFloats:
    """See `near_zero.Writer`: nodes of a call, in one floating dtype."""

    def __init__(self, call: Call, dtype: np.dtype) -> None:
        self._call = call
        self._dtype = dtype
        self.eps = float(ml_dtypes.finfo(dtype).eps)

    def op(self, operator: str, *inputs: str) -> str:
        return self._call.op(operator, *inputs)

    def number(self, value: float) -> str:
        return self._call.number(value, self._dtype)


def log1p(call: Call, x: str, dtype: np.dtype) -> str:
    """log(1 + x) that keeps small x."""
    return str(near_zero.log1p(_InFloats(call, dtype), x))


def elu(call: Call, *, alpha: float, scale: float = 1.0, input_scale: float = 1.0) -> str:
    """An exponential unit that keeps small x, of a call's first argument."""
    dtype = call.out.dtype
    write = _InFloats(call, dtype)
    return str(near_zero.elu(write, call.like(0, dtype), alpha=alpha, scale=scale, input_scale=input_scale))


@TABLE.of("Log1p")
def _log1p(call: Call) -> Value:
    return call.give(log1p(call, call.like(0, call.out.dtype), call.out.dtype))


@TABLE.of("Expm1")
def _expm1(call: Call) -> Value:
    dtype = call.out.dtype
    return call.give(near_zero.expm1(_InFloats(call, dtype), call.like(0, dtype)))


@TABLE.of("Exp2")
def _exp2(call: Call) -> Value:
    dtype = call.out.dtype
    return call.give(call.op("Pow", call.number(2, dtype), call.like(0, dtype)))


@TABLE.of("Erfc")
def _erfc(call: Call) -> Value:
    dtype = call.out.dtype
    return call.give(call.op("Sub", call.number(1, dtype), call.op("Erf", call[0])))


@TABLE.of("Atan2", "Atan2Ext")
def _atan2(call: Call) -> Value:
    dtype = call.out.dtype
    y, x = call.like(0, dtype), call.like(1, dtype)
    zero, pi = call.number(0, dtype), call.number(math.pi, dtype)
    still = call.op("Equal", x, zero)
    angle = call.op("Atan", call.op("Div", y, call.op("Where", still, call.number(1, dtype), x)))
    left = call.op("Where", call.op("Less", y, zero), call.op("Sub", angle, pi), call.op("Add", angle, pi))
    half = call.op("Mul", call.op("Sign", y), call.number(math.pi / 2, dtype))
    turned = call.op("Where", call.op("Less", x, zero), left, angle)
    return call.give(call.op("Where", still, half, turned))


@TABLE.of("Xlogy", "XLogYScalarOther", "XLogYScalarSelf")
def _xlogy(call: Call) -> Value:
    dtype = call.out.dtype
    x, y, zero = call.like(0, dtype), call.like(1, dtype), call.number(0, dtype)
    product = call.op("Mul", x, call.op("Log", y))
    none = call.op("And", call.op("Equal", x, zero), call.op("Not", call.op("IsNaN", y)))
    return call.give(call.op("Where", none, zero, product))


@TABLE.of("LogAddExp")
def _log_add_exp(call: Call) -> Value:
    dtype = call.out.dtype
    x, y = call.like(0, dtype), call.like(1, dtype)
    gap = call.op("Neg", call.op("Abs", call.op("Sub", x, y)))
    return call.give(call.op("Add", call.op("Max", x, y), log1p(call, call.op("Exp", gap), dtype)))


@TABLE.of("Lerp", "LerpScalar")
def _lerp(call: Call) -> Value:
    dtype = call.out.dtype
    start = call.like(0, dtype)
    step = call.op("Mul", call.like(2, dtype), call.op("Sub", call.like(1, dtype), start))
    return call.give(call.op("Add", start, step))


@TABLE.of("Addcmul", "AddcmulExt", "Addcdiv", "AddcdivExt")
def _addc(call: Call) -> Value:
    dtype = call.out.dtype
    op = "Mul" if "mul" in call.primitive else "Div"
    term = call.op(op, call.like(1, dtype), call.like(2, dtype))
    if call.has(3):
        term = call.op("Mul", term, call.like(3, dtype))
    return call.give(call.op("Add", call.like(0, dtype), term))


@TABLE.of("ClampScalar", "ClampTensor")
def _clamp(call: Call) -> Value:
    dtype = call.out.dtype
    name = call.like(0, dtype)
    if call.has(1):
        name = call.op("Max", name, call.like(1, dtype))
    if call.has(2):
        name = call.op("Min", name, call.like(2, dtype))
    return call.give(name)


@TABLE.of("Cast", "ToDtype", "ScalarCast", "TensorToScalar", "ScalarToTensor", "ScalarBool", "ScalarTrunc")
def _cast(call: Call) -> Value:
    return call.give(call.cast(call[0], call.out.dtype, call.dtype(0)))


@TABLE.of(
    "Identity",
    "StopGradient",
    "Copy",
    "Clone",
    "Contiguous",
    "Detach",
    "TensorMove",
    "ToDevice",
    "Conj",
    "Real",
)
def _identity(call: Call) -> Value:
    return call.inputs[0]


@TABLE.of("NanToNum")
def _nan_to_num(call: Call) -> Value:
    dtype = call.out.dtype
    limits = np.finfo(dtype)
    name = call[0]
    replaced: Sequence[tuple[str, dict[str, int], float]] = (("IsNaN", {}, call.static(1, 0.0)),
                ("IsInf", {"detect_negative": 0}, call.static(2, float(limits.max))),
                ("IsInf", {"detect_positive": 0}, call.static(3, float(limits.min))))  # fmt: skip
    for test, options, value in replaced:
        name = call.op("Where", call.op(test, call[0], **options), call.number(value, dtype), name)
    return call.give(name)


@TABLE.of("BitwiseAnd", "BitwiseAndTensor", "BitwiseAndScalar", "BitwiseOr", "BitwiseOrTensor", "BitwiseOrScalar",
          "BitwiseXor", "BitwiseXorTensor", "BitwiseXorScalar")  # fmt: skip
def _bitwise(call: Call) -> Value:
    dtype = call.out.dtype
    kind = next(kind for kind in ("And", "Xor", "Or") if f"Bitwise{kind}" in call.primitive)
    op = kind if dtype == np.dtype(bool) else f"Bitwise{kind}"
    return call.give(call.op(op, call.like(0, dtype), call.like(1, dtype)))


@TABLE.of("BitwiseNot", "Invert")
def _bitwise_not(call: Call) -> Value:
    return call.give(call.op("Not" if call.out.dtype == np.dtype(bool) else "BitwiseNot", call[0]))
