"""Comparisons, logic and choice."""

from __future__ import annotations

import numpy as np

from paritygate.converter.exporters._mindspore.emitter import Call, NoForm, Refusing
from paritygate.converter.exporters._mindspore.operators.table import Handler, Table
from paritygate.converter.exporters._mindspore.values import (
    Abstract,
    Known,
    Many,
    Tensor,
    Value,
    is_none,
    python_value,
)

TABLE = Table()

_BOOL = np.dtype(bool)


def common(call: Call, first: int, second: int) -> np.dtype:
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
    TABLE[_stem] = _compare(_op)
for _stem, _op in {
    "Lt": "Less",
    "Le": "LessOrEqual",
    "Gt": "Greater",
    "Ge": "GreaterOrEqual",
    "Eq": "Equal",
}.items():
    TABLE[f"Scalar{_stem}"] = _compare(_op)
TABLE["LessScalar"], TABLE["GreaterEqualScalar"] = TABLE["Less"], TABLE["GreaterEqual"]
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


# --- tuples -------------------------------------------------------------------------------------------------


@TABLE.of("tuple_equal", "list_equal")
def _same_tuples(call: Call) -> Value:
    return _equal(call, call.inputs[0], call.inputs[1])


@TABLE.of("InSequence")
def _in_sequence(call: Call) -> Value:
    many = call.inputs[1]
    assert isinstance(many, Many)
    return _joined(call, [_equal(call, call.inputs[0], item) for item in many.items], "Or")


def _equal(call: Call, first: Value, second: Value) -> Value:
    """Whether two values are equal; known now wherever that hangs on nothing that is open."""
    if isinstance(first, Many) and isinstance(second, Many):
        if len(first.items) != len(second.items):
            return Known(False)
        pairs = zip(first.items, second.items, strict=True)
        return _joined(call, [_equal(call, a, b) for a, b in pairs], "And")
    if isinstance(first, Tensor) and isinstance(second, Tensor) and first.name == second.name:
        return Known(True)
    if isinstance(first, Tensor) or isinstance(second, Tensor):
        dtype = (first if isinstance(first, Tensor) else second).abstract.dtype  # type: ignore[union-attr]
        names = [call.cast(call.name(each, dtype), dtype, call.dtype_of(each)) for each in (first, second)]
        return Tensor(call.op("Equal", *names), Abstract(_BOOL, (), scalar=True))
    return Known(python_value(first) == python_value(second))


def _joined(call: Call, parts: list[Value], op: str) -> Value:
    """All of some truths, or any of them; one that decides alone leaves the others out."""
    decides = op == "Or"
    known = [bool(part.value) for part in parts if isinstance(part, Known)]
    open_parts = [part for part in parts if isinstance(part, Tensor)]
    if decides in known or not open_parts:
        return Known(decides if decides in known else not decides)
    name = open_parts[0].name
    for part in open_parts[1:]:
        name = call.op(op, name, part.name)
    return Tensor(name, Abstract(_BOOL, (), scalar=True))


@TABLE.of("is_", "is_not")
def _is(call: Call) -> Value:
    """Python's `is` for None and for truths, the two things that a graph can tell apart so."""
    first, second = call.inputs
    if is_none(first) or is_none(second):
        same: Value = Known(is_none(first) and is_none(second))
    elif call.dtype(0) == call.dtype(1) == _BOOL:
        same = _equal(call, first, second)
    else:
        raise NoForm("asks whether two values are one object")
    if call.primitive == "is_":
        return same
    if isinstance(same, Known):
        return Known(not same.value)
    return Tensor(call.op("Not", call.name(same)), Abstract(_BOOL, (), scalar=True))


# --- what a model refuses -----------------------------------------------------------------------------------


@TABLE.of("JoinedStr")
def _text(_call: Call) -> Value:
    """The text of an error, since no tensor is one."""
    return Known("")


@TABLE.of("raise")
def _raise(_call: Call) -> Value:
    raise Refusing
