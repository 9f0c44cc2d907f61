"""Sizes and the order of elements: reshape, transpose, join, split, repeat, pad."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from paritygate.converter.exporters._mindspore.emitter import Call, NoForm
from paritygate.converter.exporters._mindspore.operators.table import Table
from paritygate.converter.exporters._mindspore.values import (
    Abstract,
    Known,
    Many,
    Tensor,
    Value,
    is_known,
    python_value,
)

TABLE = Table()

_INT64 = np.dtype(np.int64)


# --- sizes as values ----------------------------------------------------------------------------------------


@TABLE.of("Shape")
def _shape(call: Call) -> Value:
    """The sizes as a tuple: known ones stay constants, so that what hangs on them is computed now."""
    sizes = call.shape(0)
    if None not in sizes:
        return Many(tuple(Known(size) for size in sizes))
    whole = call.op("Shape", call[0])
    items = [Known(size) if size is not None else _size(call, whole, axis) for axis, size in enumerate(sizes)]
    return Many(tuple(items))


def _size(call: Call, shape: str, axis: int) -> Tensor:
    name = call.op("Gather", shape, call.number(axis, _INT64), axis=0)
    return Tensor(name, Abstract(_INT64, (), scalar=True))


@TABLE.of("TensorShape", "DynamicShape")
def _tensor_shape(call: Call) -> Value:
    return call.give(call.op("Shape", call[0]))


@TABLE.of("Rank")
def _rank(call: Call) -> Value:
    return Known(call.rank(0))


@TABLE.of("Size")
def _count(call: Call) -> Value:
    return call.give(call.op("Size", call[0]))


@TABLE.of("TupleGetItem", "RealTupleGetItem")
def _item(call: Call) -> Value:
    many, index = call.inputs[0], call.static(1)
    if not isinstance(many, Many):
        raise NoForm("takes an item of something that is no tuple")
    item: Value = many.items[index]
    return item


@TABLE.of("TupleToTensor", "ListToTensor")
def _tuple_to_tensor(call: Call) -> Value:
    return call.give(call.vector(call.inputs[0], call.out.dtype))


@TABLE.of("TensorToTuple", "TensorToList")
def _tensor_to_tuple(call: Call) -> Value:
    parts = call.ops("Split", call[0], outputs=_length(call), axis=0, num_outputs=_length(call))
    scalars = [call.op("Reshape", part, call.ints()) for part in parts]
    kind = Abstract(call.dtype(0), (), scalar=True)
    return Many(tuple(Tensor(name, kind) for name in scalars))


def _length(call: Call) -> int:
    size = call.shape(0)[0]
    if size is None:
        raise NoForm("makes a tuple whose length is known only when the graph runs")
    return size


# --- reshape ------------------------------------------------------------------------------------------------


@TABLE.of("Reshape", "View")
def _reshape(call: Call) -> Value:
    return call.give(reshaped(call, call[0], call.inputs[1]))


def reshaped(call: Call, name: str, sizes: Value) -> str:
    """A value in the sizes of a tuple or vector, in which 0 is the size 0."""
    allow = 1 if is_known(sizes) and 0 in np.atleast_1d(python_value(sizes)) else 0
    return call.op("Reshape", name, call.vector(sizes), allowzero=allow)


@TABLE.of("ViewAs")
def _view_as(call: Call) -> Value:
    return call.give(call.op("Reshape", call[0], call.op("Shape", call[1])))


@TABLE.of("Flatten")
def _flatten(call: Call) -> Value:
    return call.give(call.op("Flatten", call[0], axis=1))


@TABLE.of("FlattenExt")
def _flatten_range(call: Call) -> Value:
    rank = call.rank(0)
    if rank == 0:
        return call.give(call.reshape(call[0], [1]))
    start, end = call.static(1, 0) % rank, call.static(2, -1) % rank
    if (start, end) == (0, rank - 1):
        return call.give(call.reshape(call[0], [-1]))
    sizes = call.op("Shape", call[0])
    parts = [call.op("Slice", sizes, call.ints(0), call.ints(start)), call.ints(-1),
             call.op("Slice", sizes, call.ints(end + 1), call.ints(rank))]  # fmt: skip
    return call.give(call.op("Reshape", call[0], call.op("Concat", *parts, axis=0)))


@TABLE.of("Squeeze")
def _squeeze(call: Call) -> Value:
    axes = call.static(1, ())
    axes = axes if isinstance(axes, tuple) else (axes,)
    sizes = call.shape(0)
    axes = axes or tuple(axis for axis, size in enumerate(sizes) if size == 1)
    return call.give(call.op("Squeeze", call[0], call.ints(*axes)) if axes else call[0])


@TABLE.of("ExpandDims", "ExpandDimsView", "Unsqueeze")
def _expand(call: Call) -> Value:
    axis = call.static(1)
    axes = axis if isinstance(axis, tuple) else (int(axis),)
    return call.give(call.op("Unsqueeze", call[0], call.ints(*axes)))


@TABLE.of("Transpose", "TransposeView")
def _transpose(call: Call) -> Value:
    rank = call.rank(0)
    return call.give(call.op("Transpose", call[0], perm=[axis % rank for axis in call.static(1)]))


@TABLE.of("TransposeExtView")
def _swap(call: Call) -> Value:
    order = list(range(call.rank(0)))
    first, second = call.static(1), call.static(2)
    order[first], order[second] = order[second], order[first]
    return call.give(call.op("Transpose", call[0], perm=order))


@TABLE.of("TExt")
def _t(call: Call) -> Value:
    order = list(range(call.rank(0)))[::-1]
    return call.give(call.op("Transpose", call[0], perm=order) if len(order) > 1 else call[0])


# --- join and split -----------------------------------------------------------------------------------------


def members(call: Call) -> Sequence[Value]:
    """The tensors of a call that takes a tuple of them."""
    first = call.inputs[0]
    return first.items if isinstance(first, Many) else call.inputs[:1]


@TABLE.of("Concat", "SequenceConcat")
def _concat(call: Call) -> Value:
    dtype = call.out.dtype
    names = [call.cast(call.name(each, dtype), dtype, call.dtype_of(each)) for each in members(call)]
    axis = int(call.static(1, call.attributes.get("axis", 0)))
    return call.give(call.op("Concat", *names, axis=axis))


@TABLE.of("Stack", "StackExt", "Pack")
def _stack(call: Call) -> Value:
    dtype = call.out.dtype
    axis = int(call.static(1, call.attributes.get("axis", 0)))
    names = [
        call.op("Unsqueeze", call.cast(call.name(each, dtype), dtype, call.dtype_of(each)), call.ints(axis))
        for each in members(call)
    ]
    return call.give(call.op("Concat", *names, axis=axis))


@TABLE.of("Unstack", "UnstackExtView", "Unpack")
def _unstack(call: Call) -> Value:
    axis = int(call.static(1, call.attributes.get("axis", 0)))
    count = len(call.abstract)
    parts = call.ops("Split", call[0], outputs=count, axis=axis, num_outputs=count)
    return call.give_many([call.op("Squeeze", part, call.ints(axis)) for part in parts])


@TABLE.of("Split")
def _split(call: Call) -> Value:
    axis, count = int(call.static(1, 0)), int(call.static(2, 1))
    return call.give_many(call.ops("Split", call[0], outputs=count, axis=axis, num_outputs=count))


@TABLE.of("SplitTensor", "SplitTensorView", "Chunk", "ChunkView")
def _split_tensor(call: Call) -> Value:
    """Parts of one size, the last one smaller; only the number of parts has to be known."""
    axis, count = int(call.static(2, 0)), len(call.abstract)
    size = call.shape(0)[axis]
    if size is None:
        raise NoForm(f"splits along axis {axis}, whose size is open")
    step = call.static(1) if call.primitive.startswith("Split") else -(-size // call.static(1))
    sizes = [min(step, size - start) for start in range(0, size, step)]
    return call.give_many(call.ops("Split", call[0], call.ints(*sizes), outputs=count, axis=axis))


@TABLE.of("SplitWithSize", "SplitWithSizeView", "SplitV")
def _split_sizes(call: Call) -> Value:
    if call.primitive == "SplitV":
        sizes, axis = call.attributes["size_splits"], call.attributes["split_dim"]
    else:
        sizes, axis = call.static(1), call.static(2, 0)
    return call.give_many(call.ops("Split", call[0], call.ints(*sizes), outputs=len(sizes), axis=int(axis)))


# --- repeat -------------------------------------------------------------------------------------------------


@TABLE.of("BroadcastTo", "BroadcastToView", "DynamicBroadcastTo")
def _broadcast(call: Call) -> Value:
    """ONNX's Expand takes a 1 where MindSpore writes -1 for a size that stays."""
    sizes = call.inputs[1]
    if is_known(sizes):
        kept = [1 if size == -1 else int(size) for size in np.atleast_1d(python_value(sizes))]
        return call.give(call.op("Expand", call[0], call.ints(*kept)))
    vector = call.vector(sizes)
    kept_name = call.op("Max", vector, call.ints(1))
    return call.give(call.op("Expand", call[0], kept_name))


@TABLE.of("ExpandAs")
def _expand_as(call: Call) -> Value:
    return call.give(call.op("Expand", call[0], call.op("Shape", call[1])))


@TABLE.of("Tile", "Repeat")
def _tile(call: Call) -> Value:
    rank = call.rank(0)
    times, name = call.vector(call.inputs[1]), call[0]
    given = call.shape(1)[0] if not isinstance(call.inputs[1], Many) else len(call.inputs[1].items)
    if given is None:
        raise NoForm("repeats along a number of axes that is known only when the graph runs")
    if given < rank:
        times = call.op("Concat", call.ints(*[1] * (rank - given)), times, axis=0)
    if given > rank:
        name = call.op("Unsqueeze", name, call.ints(*range(given - rank)))
    return call.give(call.op("Tile", name, times))


@TABLE.of("RepeatInterleaveInt", "RepeatElements")
def _repeat_each(call: Call) -> Value:
    times, axis, name = call.static(1), call.static(2), call[0]
    if axis is None:
        name, axis = call.reshape(name, [-1]), 0
        rank = 1
    else:
        rank = call.rank(0)
        axis %= rank
    sizes = call.op("Shape", name)
    wide = call.op("Unsqueeze", name, call.ints(axis + 1))
    repeats = [1] * (rank + 1)
    repeats[axis + 1] = int(times)
    tiled = call.op("Tile", wide, call.ints(*repeats))
    factor = [1] * rank
    factor[axis] = int(times)
    return call.give(call.op("Reshape", tiled, call.op("Mul", sizes, call.ints(*factor))))


@TABLE.of("Meshgrid")
def _meshgrid(call: Call) -> Value:
    vectors = members(call)
    count = len(vectors)
    swap = call.static(1, "ij") in ("xy", 1) and count > 1
    places = [1, 0, *range(2, count)] if swap else list(range(count))
    lengths = [call.op("Shape", call.name(each)) for each in vectors]
    sizes = call.op("Concat", *[lengths[places.index(axis)] for axis in range(count)], axis=0)
    grids = []
    for each, place in zip(vectors, places, strict=True):
        shape = [1] * count
        shape[place] = -1
        grids.append(call.op("Expand", call.reshape(call.name(each), shape), sizes))
    return call.give_many(grids)


@TABLE.of("ReverseV2")
def _reverse(call: Call) -> Value:
    axes = call.static(1)
    axes = axes if isinstance(axes, tuple) else (axes,)
    starts, ends = [-1] * len(axes), [np.iinfo(np.int64).min] * len(axes)
    steps = call.ints(*[-1] * len(axes))
    return call.give(call.op("Slice", call[0], call.ints(*starts), call.ints(*ends), call.ints(*axes), steps))


@TABLE.of("Roll")
def _roll(call: Call) -> Value:
    shifts, axes = call.static(1), call.static(2)
    shifts = shifts if isinstance(shifts, tuple) else (shifts,)
    name, whole = call[0], call.op("Shape", call[0])
    flat = axes is None or axes == ()
    if flat:
        name, axes = call.reshape(name, [-1]), (0,)
    axes = axes if isinstance(axes, tuple) else (axes,)
    for shift, axis in zip(shifts, axes, strict=True):
        name = _rolled(call, name, int(shift), int(axis))
    return call.give(call.op("Reshape", name, whole) if flat else name)


def _rolled(call: Call, name: str, shift: int, axis: int) -> str:
    """Elements move by `shift`, also where that is more than the size, which may be open."""
    size = call.op("Gather", call.op("Shape", name), call.ints(axis), axis=0)
    cut = call.op("Mod", call.ints(-shift), size)
    head = call.op("Slice", name, call.ints(0), cut, call.ints(axis))
    tail = call.op("Slice", name, cut, size, call.ints(axis))
    return call.op("Concat", tail, head, axis=axis)


# --- pad ----------------------------------------------------------------------------------------------------


@TABLE.of("Pad")
def _pad(call: Call) -> Value:
    paddings = call.attributes.get("paddings") or call.static(1)
    return call.give(_padded(call, [tuple(pair) for pair in paddings], "constant", None))


@TABLE.of("PadV3")
def _pad_v3(call: Call) -> Value:
    """Pairs from the last axis backwards; a fill value where the mode is constant."""
    mode = call.attributes.get("mode", "constant")
    pairs = _from_last_axis(call, 1)
    contiguous = call.attributes.get("paddings_contiguous", True)
    if not contiguous:
        raise NoForm("gives its paddings in two halves")
    fill = call.like(2, call.out.dtype) if call.has(2) and mode == "constant" else None
    kinds = {"constant": "constant", "reflect": "reflect", "edge": "edge", "circular": "wrap"}
    if kinds[mode] == "wrap":
        raise NoForm("pads in a circle, which ONNX has from opset 19 on")
    return call.give(_padded(call, pairs, kinds[mode], fill))


@TABLE.of("ConstantPadND")
def _constant_pad(call: Call) -> Value:
    fill = call.like(2, call.out.dtype) if call.has(2) else None
    return call.give(_padded(call, _from_last_axis(call, 1), "constant", fill))


@TABLE.of(
    "ReflectionPad1D",
    "ReflectionPad2D",
    "ReflectionPad3D",
    "ReplicationPad1D",
    "ReplicationPad2D",
    "ReplicationPad3D",
)
def _mode_pad(call: Call) -> Value:
    mode = "reflect" if call.primitive.startswith("Reflection") else "edge"
    return call.give(_padded(call, _from_last_axis(call, 1), mode, None))


@TABLE.of("MirrorPad")
def _mirror_pad(call: Call) -> Value:
    if call.attributes.get("mode", "REFLECT") != "REFLECT":
        raise NoForm("mirrors with the edge repeated (SYMMETRIC), which ONNX has not")
    pairs = np.asarray(call.static(1)).reshape(-1, 2)
    return call.give(_padded(call, [(int(a), int(b)) for a, b in pairs], "reflect", None))


def _from_last_axis(call: Call, index: int) -> list[tuple[int, int]]:
    numbers = [int(n) for n in np.atleast_1d(np.asarray(call.static(index))).ravel()]
    pairs = list(zip(numbers[::2], numbers[1::2], strict=True))[::-1]
    return [(0, 0)] * (call.rank(0) - len(pairs)) + pairs


def _padded(call: Call, pairs: Sequence[tuple[int, int]], mode: str, fill: str | None) -> str:
    pads = call.ints(*[before for before, _ in pairs], *[after for _, after in pairs])
    more = [] if fill is None else [fill]
    dtype = call.dtype(0)
    if dtype == np.dtype(bool):
        raise NoForm("pads a bool tensor")
    return call.op("Pad", call[0], pads, *more, mode=mode)
