"""Whole numbers that a graph compares, limits or divides by: what an input is worth being asked beside."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import onnx

from paritygate.converter.graph.inspect import computed_from, graphs

_DECIDING = frozenset((
    "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Equal", "Clip", "Max", "Min", "Mod", "Div",
))  # fmt: skip
_ELEMENTS = 8
"""Elements of a constant that is looked at; a table is no threshold."""

_LARGEST = 2.0**53

_LARGEST_SIZE = 2**16
"""Largest number that is asked where it may be a size: 2**28 steps of an int64 `Range` are 2 GiB."""

_SIZES: Mapping[str, slice] = {
    "Range": slice(None),
    "ConstantOfShape": slice(None),
    "Loop": slice(0, 1),
    **dict.fromkeys(("Expand", "OneHot", "Reshape", "Tile"), slice(1, 2)),
    **dict.fromkeys(("Pad", "Resize"), slice(1, None)),
}
"""By operator, which of its inputs say how large its output is or how long it takes."""


def deciding_constants(model: onnx.ModelProto) -> list[int]:
    """The constants beside comparisons and the like, in the order of the graph, each once; 0 and 1 left out.

    Floats that are whole numbers count too: a converter may have turned integers into them.
    """
    known: dict[str, onnx.TensorProto] = {}
    found: list[int] = []
    for graph in graphs(model.graph):
        known |= {tensor.name: tensor for tensor in graph.initializer}
        for node in graph.node:
            for attribute in node.attribute:
                if node.op_type == "Constant" and attribute.name == "value":
                    known[node.output[0]] = attribute.t
            if node.op_type in _DECIDING:
                found += [n for name in node.input if name in known for n in _numbers(known[name])]
    most = _LARGEST_SIZE if _asks_for_size(model.graph) else math.inf
    return [number for number in dict.fromkeys(found) if number not in (0, 1) and abs(number) <= most]


def _asks_for_size(graph: onnx.GraphProto) -> bool:
    """Whether how large something becomes hangs on the numbers of an input."""
    given = computed_from(graph, (value.name for value in graph.input), beyond=("Shape", "Size"))
    sizes = (name for node in graph.node for name in node.input[_SIZES.get(node.op_type, slice(0))])
    return any(name in given for name in sizes)


def _numbers(tensor: onnx.TensorProto) -> list[int]:
    if math.prod(tensor.dims) > _ELEMENTS or tensor.data_location == onnx.TensorProto.EXTERNAL:
        return []
    values = onnx.numpy_helper.to_array(tensor).ravel()
    if values.dtype.kind == "f":
        values = values[(values == np.rint(values)) & (np.abs(values) < _LARGEST)]
    return [int(value) for value in values] if values.dtype.kind in "iuf" else []
