"""Tensors made of nothing but sizes and numbers."""

from __future__ import annotations

import numpy as np

from paritygate.converter.exporters._mindspore.emitter import Call
from paritygate.converter.exporters._mindspore.operators.table import Table
from paritygate.converter.exporters._mindspore.values import Value, is_known

TABLE = Table()

_INT64 = np.dtype(np.int64)


def filled(call: Call, sizes: str, value: str) -> str:
    """A tensor of these sizes full of one value."""
    return call.op("Expand", value, sizes)


@TABLE.of("Zeros", "Ones")
def _constant(call: Call) -> Value:
    number = 0 if call.primitive == "Zeros" else 1
    return call.give(filled(call, call.vector(call.inputs[0]), call.number(number, call.out.dtype)))


@TABLE.of("ZerosLike", "OnesLike", "ZerosLikeExt", "OnesLikeExt")
def _like(call: Call) -> Value:
    number = 0 if call.primitive.startswith("Zeros") else 1
    return call.give(filled(call, call.op("Shape", call[0]), call.number(number, call.out.dtype)))


@TABLE.of("FullLike")
def _full_like(call: Call) -> Value:
    return call.give(filled(call, call.op("Shape", call[0]), call.like(1, call.out.dtype)))


@TABLE.of("FillScalar", "FillTensor", "FillV2")
def _fill(call: Call) -> Value:
    value = call.op("Reshape", call.like(1, call.out.dtype), call.ints())
    return call.give(filled(call, call.vector(call.inputs[0]), value))


@TABLE.of("Fill")
def _old_fill(call: Call) -> Value:
    value = call.op("Reshape", call.like(2, call.out.dtype), call.ints())
    return call.give(filled(call, call.vector(call.inputs[1]), value))


@TABLE.of("Range", "Arange")
def _range(call: Call) -> Value:
    dtype = call.out.dtype
    ends = [call.op("Reshape", call.like(index, dtype), call.ints()) for index in range(3)]
    return call.give(call.op("Range", *ends))


@TABLE.of("LinSpace", "LinSpaceExt")
def _linspace(call: Call) -> Value:
    dtype = call.out.dtype
    start = call.op("Reshape", call.like(0, dtype), call.ints())
    stop = call.op("Reshape", call.like(1, dtype), call.ints())
    count = int(call.static(2))
    if count == 1:
        return call.give(call.reshape(start, [1]))
    steps = call.emitter.constant((np.arange(count) / (count - 1)).astype(dtype))
    return call.give(call.op("Add", start, call.op("Mul", steps, call.op("Sub", stop, start))))


@TABLE.of("Eye")
def _eye(call: Call) -> Value:
    rows, columns = call.static(0), call.static(1)
    return call.give(
        call.emitter.constant(np.eye(int(rows), int(columns if columns else rows), dtype=call.out.dtype))
    )


@TABLE.of("OneHot", "OneHotExt")
def _one_hot(call: Call) -> Value:
    dtype = call.out.dtype
    on, off = (call.reshape(call.like(index, dtype), [1]) for index in (2, 3))
    depth = call.reshape(call.like(1, _INT64), [1])
    axis = int(call.static(4, -1))
    classes = call.cast(call[0], _INT64, call.dtype(0))
    made = call.op("OneHot", classes, depth, call.op("Concat", off, on, axis=0), axis=axis)
    # ONNX counts negative classes from the end; MindSpore has no place for them.
    known = call.op("GreaterOrEqual", classes, call.number(0, _INT64))
    kept = call.op(
        "Where", call.op("Unsqueeze", known, call.ints(axis)), made, call.op("Reshape", off, call.ints())
    )
    return call.give(kept)


@TABLE.of("Tril", "TrilExt", "Triu")
def _triangle(call: Call) -> Value:
    diagonal = call.number(int(call.static(1, call.attributes.get("diagonal", 0))), _INT64)
    name, dtype = call[0], call.dtype(0)
    if dtype == np.dtype(bool):
        name = call.cast(name, np.dtype(np.uint8), dtype)
    cut = call.op("Trilu", name, diagonal, upper=int(call.primitive == "Triu"))
    return call.give(call.cast(cut, dtype) if dtype == np.dtype(bool) else cut)


def is_static(call: Call, index: int) -> bool:
    """Whether an argument is known now."""
    return is_known(call.inputs[index])
