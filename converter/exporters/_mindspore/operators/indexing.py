"""Parts of tensors: slices, gathers, scatters, sorting."""

from __future__ import annotations

import numpy as np

from paritygate.converter.exporters._mindspore.emitter import Call, NoForm
from paritygate.converter.exporters._mindspore.operators.table import Table
from paritygate.converter.exporters._mindspore.values import Known, Many, Tensor, Value, is_none

TABLE = Table()

_INT64 = np.dtype(np.int64)
_LAST = np.iinfo(np.int64).max
_FIRST = np.iinfo(np.int64).min


# --- slices -------------------------------------------------------------------------------------------------


@TABLE.of("StridedSlice")
def _strided_slice(call: Call) -> Value:
    """As TensorFlow has it: bits of the masks say which axes begin or end at the border, go, or are new."""
    begin, end, strides = (_items(call, index) for index in (1, 2, 3))
    begin_mask, end_mask, ellipsis_mask, new_mask, shrink_mask = (int(call.static(k, 0)) for k in range(4, 9))
    if ellipsis_mask or new_mask:
        raise NoForm("has an ellipsis or a new axis, which MindSpore resolves before the export")
    starts: list[Value] = []
    stops: list[Value] = []
    steps: list[int] = []
    for axis, (first, last, step) in enumerate(zip(begin, end, strides, strict=True)):
        bit = 1 << axis
        stride = _number(step, "a stride")
        if shrink_mask & bit:
            starts.append(first)
            stops.append(_after(call, first))
            steps.append(1)
            continue
        back = stride < 0
        starts.append(Known(_LAST if back else 0) if begin_mask & bit else first)
        stops.append(Known(_FIRST if back else _LAST) if end_mask & bit else last)
        steps.append(stride)
    axes = call.ints(*range(len(steps)))
    cut = call.op("Slice", call[0], call.vector(Many(tuple(starts))), call.vector(Many(tuple(stops))), axes,
                  call.ints(*steps))  # fmt: skip
    gone = [axis for axis in range(len(steps)) if shrink_mask & (1 << axis)]
    return call.give(call.op("Squeeze", cut, call.ints(*gone)) if gone else cut)


def _items(call: Call, index: int) -> tuple[Value, ...]:
    value = call.inputs[index]
    if isinstance(value, Many):
        return value.items
    if isinstance(value, Known):
        return tuple(Known(int(n)) for n in np.atleast_1d(value.value))
    if isinstance(value, Tensor) and value.abstract.shape and value.abstract.shape[0] is not None:
        count = value.abstract.shape[0]
        return tuple(
            Tensor(call.op("Gather", value.name, call.number(k, _INT64), axis=0), value.abstract)
            for k in range(count)
        )
    raise NoForm("slices along a number of axes that is known only when the graph runs")


def _number(value: Value, what: str) -> int:
    if isinstance(value, Known):
        return int(value.value)
    raise LookupError(what)


def _after(call: Call, first: Value) -> Value:
    """Where the one element at `first` ends; the last one, -1, ends at the border."""
    if isinstance(first, Known):
        return Known(_LAST if first.value == -1 else int(first.value) + 1)
    start = call.vector(first)
    last = call.op("Equal", start, call.ints(-1))
    name = call.op("Where", last, call.ints(_LAST), call.op("Add", start, call.ints(1)))
    return Tensor(name, first.abstract)  # type: ignore[union-attr]


@TABLE.of("Slice")
def _slice(call: Call) -> Value:
    """From `begin`, `size` elements; -1 is all that follow."""
    rank = call.rank(0)
    begins, sizes = _items(call, 1), _items(call, 2)
    stops: list[Value] = []
    for begin, size in zip(begins, sizes, strict=True):
        if isinstance(begin, Known) and isinstance(size, Known):
            stops.append(Known(_LAST if size.value == -1 else begin.value + size.value))
        else:
            stop = call.op("Add", call.vector(begin), call.vector(size))
            stops.append(Tensor(stop, (begin if isinstance(begin, Tensor) else size).abstract))  # type: ignore[union-attr]
    axes = call.ints(*range(rank))
    return call.give(
        call.op("Slice", call[0], call.vector(Many(begins)), call.vector(Many(tuple(stops))), axes)
    )


@TABLE.of("SliceExt", "SliceExtView")
def _slice_ext(call: Call) -> Value:
    axis = call.ints(int(call.static(1)))
    ends = [call.vector(call.inputs[index]) for index in (2, 3)]
    return call.give(call.op("Slice", call[0], *ends, axis, call.vector(call.inputs[4])))


@TABLE.of("Narrow", "NarrowView")
def _narrow(call: Call) -> Value:
    start = call.vector(call.inputs[2])
    end = call.op("Add", start, call.vector(call.inputs[3]))
    return call.give(call.op("Slice", call[0], start, end, call.ints(int(call.static(1)))))


@TABLE.of("SelectExtView")
def _select(call: Call) -> Value:
    index = call.op("Reshape", call.like(2, _INT64), call.ints())
    return call.give(call.op("Gather", call[0], index, axis=int(call.static(1))))


# --- gather -------------------------------------------------------------------------------------------------


@TABLE.of("Gather", "IndexSelect")
def _gather(call: Call) -> Value:
    indices, axis = (2, 1) if call.primitive == "IndexSelect" else (1, 2)
    batch = int(call.static(3, 0)) if call.primitive == "Gather" else 0
    if batch:
        raise NoForm(f"gathers within {batch} batch axes")
    return call.give(call.op("Gather", call[0], call.like(indices, _INT64), axis=int(call.static(axis))))


@TABLE.of("Embedding")
def _embedding(call: Call) -> Value:
    if call.has(3):
        raise NoForm("rescales the rows of an embedding (max_norm)")
    return call.give(call.op("Gather", call[1], call.like(0, _INT64), axis=0))


@TABLE.of("EmbeddingLookup")
def _embedding_lookup(call: Call) -> Value:
    offset = int(call.static(2, 0))
    if offset:
        raise NoForm(f"looks up with the offset {offset}")
    return call.give(call.op("Gather", call[0], call.like(1, _INT64), axis=0))


@TABLE.of("GatherD", "GatherDGradV2")
def _gather_elements(call: Call) -> Value:
    return call.give(call.op("GatherElements", call[0], call.like(2, _INT64), axis=int(call.static(1))))


@TABLE.of("GatherNd", "GatherNdExt")
def _gather_nd(call: Call) -> Value:
    return call.give(call.op("GatherND", call[0], call.like(1, _INT64)))


@TABLE.of("Take")
def _take(call: Call) -> Value:
    return call.give(call.op("Gather", call.reshape(call[0], [-1]), call.like(1, _INT64), axis=0))


@TABLE.of("Index", "InnerIndex")
def _index(call: Call) -> Value:
    """Advanced indexing: integer tensors for the first axes, broadcast against each other."""
    many = call.inputs[1]
    indices = many.items if isinstance(many, Many) else (many,)
    if any(is_none(each) or call.dtype_of(each) == np.dtype(bool) for each in indices):
        raise NoForm("indexes with a mask or leaves axes out")
    if any(
        isinstance(each, Tensor) and each.abstract.shape in ((0,), (9,)) and len(indices) > 1
        for each in indices
    ):
        raise NoForm("leaves axes out of its indices")
    names = [call.cast(call.name(each), _INT64, call.dtype_of(each)) for each in indices]
    if len(names) == 1:
        return call.give(call.op("Gather", call[0], names[0], axis=0))
    sizes = call.op(
        "Shape", call.op("Sum", *[call.cast(name, np.dtype(np.float32), _INT64) for name in names])
    )
    last = call.ints(-1)
    wide = [call.op("Unsqueeze", call.op("Expand", name, sizes), last) for name in names]
    return call.give(call.op("GatherND", call[0], call.op("Concat", *wide, axis=-1)))


# --- scatter ------------------------------------------------------------------------------------------------


@TABLE.of(
    "TensorScatterUpdate",
    "TensorScatterAdd",
    "TensorScatterSub",
    "TensorScatterMul",
    "TensorScatterMax",
    "TensorScatterMin",
)
def _tensor_scatter(call: Call) -> Value:
    dtype = call.out.dtype
    kind = call.primitive.removeprefix("TensorScatter")
    updates = call.like(2, dtype)
    if kind == "Sub":
        kind, updates = "Add", call.op("Neg", updates)
    reduction = {"Update": "none", "Add": "add", "Mul": "mul", "Max": "max", "Min": "min"}[kind]
    return call.give(
        call.op("ScatterND", call.like(0, dtype), call.like(1, _INT64), updates, reduction=reduction)
    )


@TABLE.of("ScatterNd")
def _scatter_nd(call: Call) -> Value:
    dtype = call.out.dtype
    zeros = call.op("Expand", call.number(0, dtype), call.vector(call.inputs[2]))
    return call.give(call.op("ScatterND", zeros, call.like(0, _INT64), call.like(1, dtype), reduction="add"))


@TABLE.of("TensorScatterElements")
def _scatter_elements(call: Call) -> Value:
    axis, reduction = int(call.static(3, 0)), call.static(4, "none")
    kind = {0: "none", 1: "add"}.get(reduction, reduction)
    names = [call[0], call.like(1, _INT64), call.like(2, call.out.dtype)]
    return call.give(call.op("ScatterElements", *names, axis=axis, reduction=kind))


@TABLE.of("Scatter", "ScatterAddExt", "ScatterValue")
def _scatter(call: Call) -> Value:
    if call.primitive == "ScatterValue":
        raise NoForm("scatters one number")
    kind = (
        "add" if call.primitive == "ScatterAddExt" else {0: "none", 1: "add"}.get(call.static(4, 0), "none")
    )
    names = [call[0], call.like(2, _INT64), call.like(3, call.out.dtype)]
    return call.give(call.op("ScatterElements", *names, axis=int(call.static(1)), reduction=kind))


# --- order --------------------------------------------------------------------------------------------------


@TABLE.of("TopK")
def _top_k(call: Call) -> Value:
    count = call.reshape(call.like(1, _INT64), [1])
    ordered = int(bool(call.attributes.get("sorted", True)))
    values, places = call.ops("TopK", call[0], count, outputs=2, axis=-1, largest=1, sorted=ordered)
    return call.give_many([values, call.cast(places, call.abstract[1].dtype, _INT64)])


@TABLE.of("TopkExt")
def _top_k_ext(call: Call) -> Value:
    count = call.reshape(call.like(1, _INT64), [1])
    options = {
        "axis": int(call.static(2, -1)),
        "largest": int(bool(call.static(3, True))),
        "sorted": int(bool(call.static(4, True))),
    }
    values, places = call.ops("TopK", call[0], count, outputs=2, **options)
    return call.give_many([values, call.cast(places, call.abstract[1].dtype, _INT64)])


@TABLE.of("Sort", "SortExt", "ArgSort")
def _sort(call: Call) -> Value:
    if call.primitive == "Sort":
        axis, descending = call.attributes.get("axis", -1), call.attributes.get("descending", False)
    else:
        axis, descending = call.static(1, -1), call.static(2, False)
    size = call.op("Gather", call.op("Shape", call[0]), call.ints(int(axis)), axis=0)
    values, places = call.ops(
        "TopK", call[0], size, outputs=2, axis=int(axis), largest=int(bool(descending)), sorted=1
    )
    if call.primitive == "ArgSort":
        return call.give(call.cast(places, call.out.dtype, _INT64))
    return call.give_many([values, call.cast(places, call.abstract[1].dtype, _INT64)])


@TABLE.of("NonZero", "NonZeroExt", "InnerNonZero")
def _non_zero(call: Call) -> Value:
    found = call.op("NonZero", call[0])
    if call.primitive != "NonZero":
        raise NoForm("gives a tuple of places")
    return call.give(call.op("Transpose", found, perm=[1, 0]))


@TABLE.of("MaskedSelect")
def _masked_select(call: Call) -> Value:
    sizes = call.op("Shape", call[0])
    mask = call.op("Expand", call[1], sizes)
    return call.give(call.op("Compress", call.reshape(call[0], [-1]), call.reshape(mask, [-1]), axis=0))
