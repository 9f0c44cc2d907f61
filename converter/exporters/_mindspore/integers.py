"""Whole-number arithmetic that stays whole: forms that onnxruntime computes in integers, whatever the values.

onnxruntime computes `Mod` with fmod=1 and `ReduceSum` of int64 in float64, which is wrong above 2**53, and the
lowest int64 divided by -1 makes the processor trap, which would end a whole server for one request: a divisor of
-1 never reaches a kernel. Narrower types are computed in int64, since kernels for some of them are missing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from paritygate.converter.exporters._mindspore.emitter import Call

_INT64 = np.dtype(np.int64)
_HALF = 2**32

Rule = Callable[[Call, str, str], str]


def in_int64(call: Call, rule: Rule, dtype: np.dtype[Any]) -> str:
    """The first two arguments under a rule, computed in int64 and given in `dtype`."""
    first, second = (call.cast(call.like(k, dtype), _INT64, dtype) for k in (0, 1))
    return call.cast(rule(call, first, second), dtype, _INT64)


def _number(call: Call, value: int) -> str:
    return call.number(value, _INT64)


def _without_minus_one(call: Call, divisor: str) -> tuple[str, str]:
    """Whether a divisor is -1, and the divisor with 1 in those places."""
    minus_one = call.op("Equal", divisor, _number(call, -1))
    return minus_one, call.op("Where", minus_one, _number(call, 1), divisor)


def truncated(call: Call, first: str, second: str) -> str:
    """The quotient, rounded towards zero."""
    minus_one, divisor = _without_minus_one(call, second)
    quotient = call.op("Div", first, divisor)
    return call.op("Where", minus_one, call.op("Neg", quotient), quotient)


def floored(call: Call, first: str, second: str) -> str:
    """The quotient, rounded towards minus infinity: one less where there is a rest and the signs differ."""
    minus_one, divisor = _without_minus_one(call, second)
    quotient = call.op("Div", first, divisor)
    rest = call.op("Sub", first, call.op("Mul", quotient, divisor))
    zero = _number(call, 0)
    differ = call.op("Xor", call.op("Less", rest, zero), call.op("Less", divisor, zero))
    below = call.op("And", differ, call.op("Not", call.op("Equal", rest, zero)))
    floor = call.op("Sub", quotient, call.cast(below, _INT64))
    return call.op("Where", minus_one, call.op("Neg", floor), floor)


def remainder(call: Call, first: str, second: str) -> str:
    """The rest with the sign of the divisor."""
    return call.op("Mod", first, _without_minus_one(call, second)[1])  # by 1 it is 0, as by -1


def fmod(call: Call, first: str, second: str) -> str:
    """The rest with the sign of the dividend."""
    _, divisor = _without_minus_one(call, second)
    return call.op("Sub", first, call.op("Mul", call.op("Div", first, divisor), divisor))


def exact_sum(call: Call, name: str, total: Callable[[str], str]) -> str:
    """The sum of int64 by halves of 32 bits, each exact in float64 for 2**21 numbers; it wraps as int64 does."""
    half = _number(call, _HALF)
    low = call.op("Mod", name, half)
    high = call.op("Div", call.op("Sub", name, low), half)
    return call.op("Add", call.op("Mul", total(high), half), total(low))
