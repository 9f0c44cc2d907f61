"""Whole numbers that a graph compares, limits or divides by: what an input is worth being asked beside."""

from __future__ import annotations

import math

import numpy as np
import onnx

from paritygate.converter.graph.inspect import graphs

_DECIDING = frozenset((
    "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Equal", "Clip", "Max", "Min", "Mod", "Div",
))  # fmt: skip
_ELEMENTS = 8
"""Elements of a constant that is looked at; a table is no threshold."""

_LARGEST = 2.0**53


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
    return [number for number in dict.fromkeys(found) if number not in (0, 1)]


def _numbers(tensor: onnx.TensorProto) -> list[int]:
    if math.prod(tensor.dims) > _ELEMENTS or tensor.data_location == onnx.TensorProto.EXTERNAL:
        return []
    values = onnx.numpy_helper.to_array(tensor).ravel()
    if values.dtype.kind == "f":
        values = values[(values == np.rint(values)) & (np.abs(values) < _LARGEST)]
    return [int(value) for value in values] if values.dtype.kind in "iuf" else []
