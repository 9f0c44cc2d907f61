"""Pooling with a window, and to a size."""

from __future__ import annotations

from typing import Any

import numpy as np

from paritygate.converter.exporters._mindspore.emitter import Call, NoForm
from paritygate.converter.exporters._mindspore.operators.convolution import channels_first, numbers, padding
from paritygate.converter.exporters._mindspore.operators.table import Table
from paritygate.converter.exporters._mindspore.values import Value

TABLE = Table()

_INT64 = np.dtype(np.int64)


@TABLE.of("MaxPool", "MaxPool3D", "AvgPool3D")
def _pool(call: Call) -> Value:
    channels_first(call)
    get = call.attributes.get
    count = call.rank(0) - 2
    options: dict[str, Any] = {
        "kernel_shape": numbers(get("kernel_size"), count),
        "strides": numbers(get("strides"), count),
        **padding(get("pad_mode", "valid"), get("pad_list", 0), count),
    }
    if get("ceil_mode"):
        options["ceil_mode"] = 1
    if call.primitive != "AvgPool3D":
        return call.give(call.op("MaxPool", call[0], **options))
    if get("divisor_override"):
        raise NoForm("divides by a number of its own")
    options["count_include_pad"] = int(bool(get("count_include_pad", True)))
    return call.give(call.op("AveragePool", call[0], **options))


@TABLE.of("AvgPool")
def _avg_pool(call: Call) -> Value:
    """Window, steps, mode, layout; padding never counts."""
    if call.static(4, "NCHW") in ("NHWC", 1):
        raise NoForm("keeps its channels last")
    count = call.rank(0) - 2
    options = {
        "kernel_shape": numbers(call.static(1), count),
        "strides": numbers(call.static(2), count),
        **padding(call.static(3, "valid"), None, count),
    }
    return call.give(call.op("AveragePool", call[0], **options))


@TABLE.of("AvgPool1D", "AvgPool2D", "AvgPool3DExt")
def _avg_pool_ext(call: Call) -> Value:
    """Window, steps, padding, rounding up, whether padding counts, divisor."""
    if call.static(6) is not None:
        raise NoForm("divides by a number of its own")
    count = {"AvgPool1D": 1, "AvgPool2D": 2}.get(call.primitive, 3)
    window = numbers(call.static(1), count)
    options = {
        "kernel_shape": window,
        "strides": numbers(call.static(2) or window, count),
        "ceil_mode": int(bool(call.static(4, False))),
        "count_include_pad": int(bool(call.static(5, True))),
        **padding("pad", numbers(call.static(3, 0), count), count),
    }
    return call.give(_batched(call, "AveragePool", options, count))


@TABLE.of("MaxPoolWithMask", "MaxPoolWithIndices", "MaxPoolWithArgmaxV2", "FuncMaxPool2D")
def _max_pool_mask(call: Call) -> Value:
    get = call.attributes.get
    window = call.static(1) if len(call.inputs) > 1 else get("kernel_size")
    strides = (call.static(2) if len(call.inputs) > 1 else get("strides")) or window
    pads = call.static(3, 0) if len(call.inputs) > 1 else get("pads", 0)
    dilation = call.static(4, 1) if len(call.inputs) > 1 else get("dilation", 1)
    up = call.static(5, False) if len(call.inputs) > 1 else get("ceil_mode", False)
    options = {
        "kernel_shape": numbers(window, 2), "strides": numbers(strides, 2), "dilations": numbers(dilation, 2),
        "ceil_mode": int(bool(up)), **padding("pad", numbers(pads, 2), 2),
    }  # fmt: skip
    name = _batched(call, "MaxPool", options, 2)
    return call.give_many([name]) if isinstance(call.abstract, list) else call.give(name)


@TABLE.of("MaxPool3DWithArgmax")
def _max_pool_volume(call: Call) -> Value:
    get = call.attributes.get
    options: dict[str, Any] = {
        "kernel_shape": numbers(get("ksize", get("kernel_size")), 3),
        "strides": numbers(get("strides"), 3),
        "dilations": numbers(get("dilation"), 3),
        "ceil_mode": int(bool(get("ceil_mode", False))),
        **padding("pad", numbers(get("pads", 0), 3), 3),
    }
    return call.give_many([call.op("MaxPool", call[0], **options)])


def _batched(call: Call, op: str, options: dict[str, Any], count: int) -> str:
    """These primitives also take one example without a batch axis."""
    if call.rank(0) == count + 2:
        return call.op(op, call[0], **options)
    one = call.op("Unsqueeze", call[0], call.ints(0))
    return call.op("Squeeze", call.op(op, one, **options), call.ints(0))


@TABLE.of("AdaptiveAvgPool1D", "AdaptiveAvgPool2D", "AdaptiveAvgPool2DExt", "AdaptiveAvgPool3D",
          "AdaptiveAvgPool3DExt", "AdaptiveMaxPool1D", "AdaptiveMaxPool2D", "AdaptiveMaxPool3D")  # fmt: skip
def _adaptive(call: Call) -> Value:
    kind = "Max" if "Max" in call.primitive else "Average"
    count = int(call.primitive.split("Pool")[1][0])
    wanted = call.attributes.get("output_size", call.static(1) if len(call.inputs) > 1 else None)
    sizes = wanted if isinstance(wanted, tuple) else (wanted,) * count
    given = call.shape(0)[-count:]
    goals = [size if goal in (None, -1) else int(goal) for goal, size in zip(sizes, given, strict=True)]
    name = _to_sizes(call, kind, goals, given)
    return call.give_many([name]) if isinstance(call.abstract, list) else call.give(name)


def _to_sizes(call: Call, kind: str, goals: list[int | None], given: tuple[int | None, ...]) -> str:
    count = len(given)
    op, axes = ("ReduceMax" if kind == "Max" else "ReduceMean"), call.ints(*range(-count, 0))
    if all(goal == 1 for goal in goals):
        return call.op(op, call[0], axes, keepdims=1)
    if None in given or None in goals:
        raise NoForm("pools an open size to a fixed one, so that the window is open too")
    pairs = [(int(size or 0), int(goal or 1)) for size, goal in zip(given, goals, strict=True)]
    if all(size % goal == 0 for size, goal in pairs):
        window = [size // goal for size, goal in pairs]
        return _batched(call, f"{kind}Pool", {"kernel_shape": window, "strides": window}, count)
    return _uneven(call, op, pairs)


def _uneven(call: Call, op: str, pairs: list[tuple[int, int]]) -> str:
    """Windows of unlike sizes, one axis after the other: a mean of means is right, since each axis is apart."""
    name = call[0]
    for place, (size, goal) in enumerate(pairs):
        axis = place - len(pairs)
        parts = []
        for k in range(goal):
            first, last = k * size // goal, -(-(k + 1) * size // goal)
            cut = call.op("Slice", name, call.ints(first), call.ints(last), call.ints(axis))
            parts.append(call.op(op, cut, call.ints(axis), keepdims=1))
        name = call.op("Concat", *parts, axis=axis)
    return name
