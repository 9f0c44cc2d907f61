"""Division that is exact: ONNX forms of torch operators that torchlib, or onnxruntime, rounds.

torchlib divides integers through float32, and onnxruntime computes `Mod` with fmod=1 in float64: both are wrong
above 2**53 at the latest, and say nothing (of sums and comparisons: `graph/whole_numbers.py`). Only nodes are
used here that onnxruntime's CPU kernels compute in integers: `Div`, which truncates, and `Mod` without fmod,
which takes the divisor's sign. Types narrower than int64 are computed in int64, since kernels for some of them
are missing (`Where` of int16).

A divisor of zero is an error in torch and in onnxruntime. The lowest int64 divided by -1 makes the processor trap,
which would end a whole server for one request, so a divisor of -1 never reaches a kernel; the quotient wraps.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import onnx_ir as ir
import torch
from onnxscript import opset18 as op
from onnxscript.function_libs.torch_lib.ops import core
from onnxscript.function_libs.torch_lib.tensor_typing import TReal, TTensor

_INT64 = ir.DataType.INT64.value


def div_mode(self: TReal, other: TReal, rounding_mode: str | None = None) -> TReal:
    """Translate `torch.div(..., rounding_mode=...)`."""
    if rounding_mode == "floor" and _is_float(self):
        return _floored_float(self, other)
    if rounding_mode is None or not _is_whole(self):
        return core.aten_div_mode(self, other, rounding_mode)
    return _in_int64(_floored if rounding_mode == "floor" else _truncated, self, other)


def floor_divide(self: TTensor, other: TTensor) -> TTensor:
    """Translate `torch.floor_divide` and `//`."""
    if _is_float(self):
        return _floored_float(self, other)
    if not _is_whole(self):
        return core.aten_floor_divide(self, other)
    return _in_int64(_floored, self, other)


def fmod(self: TReal, other: TReal) -> TReal:
    """Translate `torch.fmod`, whose result has the sign of the dividend."""
    if not _is_whole(self):
        return core.aten_fmod(self, other)
    return _in_int64(_fmod, self, other)


def remainder(self: TTensor, other: TTensor) -> TTensor:
    """Translate `torch.remainder` and `%`, whose result has the sign of the divisor."""
    if _is_float(self):
        return _float_remainder(self, other)
    if not _is_whole(self):
        return core.aten_remainder(self, other)
    return _in_int64(_remainder, self, other)


def remainder_of_scalar(self: float, other: TTensor) -> TTensor:
    """Translate `%` of a Python number by a tensor."""
    if _is_float(other):
        return _float_remainder(_number(self, other), other)
    if not _is_whole(other):
        return core.aten_remainder_scalar_tensor(self, other)
    return op.Cast(_remainder(_whole(int(self)), op.Cast(other, to=_INT64)), to=other.dtype.value)


def _is_whole(value: Any) -> bool:
    return value.dtype is not None and value.dtype.is_integer()


def _is_float(value: Any) -> bool:
    return value.dtype in (ir.DataType.FLOAT, ir.DataType.DOUBLE)


def _in_int64(rule: Callable[[Any, Any], Any], self: Any, other: Any) -> Any:
    if self.dtype == ir.DataType.INT64:
        return rule(self, other)
    wide = rule(op.Cast(self, to=_INT64), op.Cast(other, to=_INT64))
    return op.Cast(wide, to=self.dtype.value)


def _whole(number: int) -> Any:
    return op.Constant(value=ir.tensor(number, dtype=ir.DataType.INT64))


def _without_minus_one(divisor: Any) -> tuple[Any, Any]:
    """Whether a divisor is -1, and the divisor with 1 in those places."""
    minus_one = op.Equal(divisor, _whole(-1))
    return minus_one, op.Where(minus_one, _whole(1), divisor)


def _truncated(self: Any, other: Any) -> Any:
    minus_one, divisor = _without_minus_one(other)
    quotient = op.Div(self, divisor)
    return op.Where(minus_one, op.Neg(quotient), quotient)


def _remainder(self: Any, other: Any) -> Any:
    _, divisor = _without_minus_one(other)
    return op.Mod(self, divisor)  # by 1 it is 0, as by -1


def _fmod(self: Any, other: Any) -> Any:
    _, divisor = _without_minus_one(other)
    return op.Sub(self, op.Mul(op.Div(self, divisor), divisor))


def _floored(self: Any, other: Any) -> Any:
    """One below the truncated quotient where there is a remainder and the signs differ."""
    minus_one, divisor = _without_minus_one(other)
    quotient = op.Div(self, divisor)
    rest = op.Sub(self, op.Mul(quotient, divisor))
    differ = op.Xor(op.Less(rest, _whole(0)), op.Less(divisor, _whole(0)))
    below = op.And(differ, op.Not(op.Equal(rest, _whole(0))))
    floor = op.Sub(quotient, op.Cast(below, to=_INT64))
    return op.Where(minus_one, op.Neg(floor), floor)


def _number(number: float, like: Any) -> Any:
    return op.Constant(value=ir.tensor(float(number), dtype=like.dtype))


def _as_operand(other: Any, like: Any) -> Any:
    """An operand of the same type, be it a tensor or a Python number."""
    return _number(other, like) if isinstance(other, int | float) else op.CastLike(other, like)


def _float_rest(self: Any, other: Any) -> tuple[Any, Any]:
    """C's fmod, which is exact, and whether it lacks the divisor's sign.

    torchlib subtracts a rounded quotient's multiple instead, which of 1e10 by 3 leaves 0 in place of 1.
    """
    zero = _number(0.0, self)
    rest = op.Mod(self, other, fmod=1)
    differ = op.Xor(op.Less(rest, zero), op.Less(other, zero))
    return rest, op.And(differ, op.Not(op.Equal(rest, zero)))


def _float_remainder(self: Any, other: Any) -> Any:
    other = _as_operand(other, self)
    rest, differs = _float_rest(self, other)
    return op.Where(differs, op.Add(rest, other), rest)


def _floored_float(self: Any, other: Any) -> Any:
    """The whole number next to the quotient of what fmod leaves; by zero, the quotient itself.

    Source: c10/util/generic_math.h, div_floor_floating.
    """
    other = _as_operand(other, self)
    rest, differs = _float_rest(self, other)
    zero, one = _number(0.0, self), _number(1.0, self)
    exact = op.Div(op.Sub(self, rest), other)
    exact = op.Where(differs, op.Sub(exact, one), exact)
    floor = op.Floor(exact)
    near = op.Greater(op.Sub(exact, floor), _number(0.5, self))
    return op.Where(op.Equal(other, zero), op.Div(self, other), op.Where(near, op.Add(floor, one), floor))


def translations() -> dict[Callable[..., Any], Callable[..., Any]]:
    """Torch operator -> its ONNX form, as `torch.onnx.export` takes them."""
    aten = torch.ops.aten
    return {
        aten.div.Tensor_mode: div_mode,
        aten.div.Scalar_mode: div_mode,
        aten.floor_divide.default: floor_divide,
        aten.floor_divide.Scalar: floor_divide,
        aten.fmod.Tensor: fmod,
        aten.fmod.Scalar: fmod,
        aten.remainder.Tensor: remainder,
        aten.remainder.Scalar: remainder,
        aten.remainder.Scalar_Tensor: remainder_of_scalar,
    }
