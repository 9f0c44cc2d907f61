"""Comparisons, logic and choice."""

from __future__ import annotations

import numpy as np

from paritygate.converter.exporters._mindspore.emitter import Call
from paritygate.converter.exporters._mindspore.operators.table import Handler, Table
from paritygate.converter.exporters._mindspore.values import Known, Value

TABLE = Table()

_BOOL = np.dtype(bool)


def common(call: Call, first: int, second: int) -> np.dtype:  # type: ignore[type-arg]
    """The type in which two arguments are compared; a Python number takes that of the tensor beside it."""
    kinds = [call.dtype(index) for index in (first, second)]
    numbers = [_is_number(call.inputs[index]) for index in (first, second)]
    if numbers[0] == numbers[1]:
        return np.promote_types(*kinds)
    tensor, number = (kinds[1], kinds[0]) if numbers[0] else (kinds[0], kinds[1])
    return np.dtype(np.float32) if number.kind == "f" and tensor.kind in "iub" else tensor


def _is_number(value: Value) -> bool:
    return isinstance(value, Known) and not isinstance(value.value, np.ndarray)


def _compare(op: str, *, negated: bool = False) -> Handler:
    def write(call: Call) -> Value:
        dtype = common(call, 0, 1)
        if dtype == _BOOL and op != "Equal":
            dtype = np.dtype(np.int32)
        name = call.op(op, call.like(0, dtype), call.like(1, dtype))
        return call.give(call.op("Not", name) if negated else name)

    return write


for _stem, _op in {
    "Less": "Less",
    "LessEqual": "LessOrEqual",
    "Greater": "Greater",
    "GreaterEqual": "GreaterOrEqual",
}.items():
    TABLE[_stem] = TABLE[f"{_stem}Scalar"] = _compare(_op)
for _stem, _op in {
    "Lt": "Less",
    "Le": "LessOrEqual",
    "Gt": "Greater",
    "Ge": "GreaterOrEqual",
    "Eq": "Equal",
}.items():
    TABLE[f"Scalar{_stem}"] = _compare(_op)
TABLE["Equal"] = TABLE["EqScalar"] = _compare("Equal")
TABLE["NotEqual"] = TABLE["NeScalar"] = TABLE["ScalarNe"] = _compare("Equal", negated=True)


def _logical(op: str) -> Handler:
    def write(call: Call) -> Value:
        return call.give(call.op(op, call.like(0, _BOOL), call.like(1, _BOOL)))

    return write


for _primitive, _op in {
    "LogicalAnd": "And", "LogicalOr": "Or", "LogicalXor": "Xor", "BoolAnd": "And", "BoolOr": "Or",
}.items():  # fmt: skip
    TABLE[_primitive] = _logical(_op)


@TABLE.of("LogicalNot", "BoolNot")
def _not(call: Call) -> Value:
    return call.give(call.op("Not", call.like(0, _BOOL)))


@TABLE.of("IsNan")
def _is_nan(call: Call) -> Value:
    return call.give(call.op("IsNaN", call[0]))


@TABLE.of("IsInf")
def _is_inf(call: Call) -> Value:
    return call.give(call.op("IsInf", call[0]))


@TABLE.of("IsNegInf")
def _is_negative_infinity(call: Call) -> Value:
    return call.give(call.op("IsInf", call[0], detect_positive=0))


@TABLE.of("IsFinite")
def _is_finite(call: Call) -> Value:
    if call.dtype(0).kind != "f":
        whole = call.cast(call[0], np.dtype(np.float32), call.dtype(0))
        return call.give(call.op("Not", call.op("IsNaN", whole)))
    return call.give(call.op("Not", call.op("Or", call.op("IsNaN", call[0]), call.op("IsInf", call[0]))))


@TABLE.of("Select", "SelectV2")
def _select(call: Call) -> Value:
    dtype = call.out.dtype
    return call.give(call.op("Where", call.like(0, _BOOL), call.like(1, dtype), call.like(2, dtype)))


@TABLE.of("MaskedFill", "MaskedFillScalar")
def _masked_fill(call: Call) -> Value:
    dtype = call.out.dtype
    return call.give(call.op("Where", call.like(1, _BOOL), call.like(2, dtype), call.like(0, dtype)))
