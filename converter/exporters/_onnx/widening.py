"""The same model in double precision: the twin whose distance from the answers shows their rounding noise."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import onnx
from onnx import TensorProto, numpy_helper

from paritygate.converter.types import Array

_NARROW = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16)

_DTYPE_ATTRIBUTES = ("to", "dtype", "output_dtype", "output_datatype")
"""Attributes that name the element type of an output. Source: onnx/docs/Operators.md."""


def widen(model: onnx.ModelProto) -> None:
    """Turn every narrow float of a model into a double, in place; its weights must be in memory.

    Types below float16 (float8, int4) are left: they are what quantisation rounds to, and part of the model.
    """
    _widen_graph(model.graph)
    for function in model.functions:
        for value in function.value_info:
            _widen_value(value)
        _widen_nodes(function.node)


def _widen_graph(graph: onnx.GraphProto) -> None:
    for values in (graph.input, graph.output, graph.value_info):
        for value in values:
            _widen_value(value)
    for tensor in graph.initializer:
        _widen_tensor(tensor)
    for sparse in graph.sparse_initializer:
        _widen_tensor(sparse.values)
    _widen_nodes(graph.node)


def _widen_nodes(nodes: Iterable[onnx.NodeProto]) -> None:
    for node in nodes:
        standard = node.domain in ("", "ai.onnx")
        for attribute in node.attribute:
            _widen_attribute(attribute, standard=standard)
        if not standard:
            continue
        if node.op_type == "Constant":
            _widen_constant(node)
        if node.op_type == "ConstantOfShape" and not node.attribute:
            node.attribute.append(onnx.helper.make_attribute("value", _double(np.zeros(1))))


def _widen_attribute(attribute: onnx.AttributeProto, *, standard: bool) -> None:
    if attribute.HasField("t"):
        _widen_tensor(attribute.t)
    for tensor in attribute.tensors:
        _widen_tensor(tensor)
    if attribute.HasField("sparse_tensor"):
        _widen_tensor(attribute.sparse_tensor.values)
    graphs = [attribute.g] if attribute.HasField("g") else []
    for graph in (*graphs, *attribute.graphs):
        _widen_graph(graph)
    if standard and attribute.name in _DTYPE_ATTRIBUTES and attribute.i in _NARROW:
        attribute.i = TensorProto.DOUBLE


def _widen_constant(node: onnx.NodeProto) -> None:
    """`value_float` and `value_floats` mean float32 and cannot say otherwise."""
    for attribute in node.attribute:
        if attribute.name == "value_float":
            values = np.array(attribute.f, np.float64)
        elif attribute.name == "value_floats":
            values = np.array(attribute.floats, np.float64)
        else:
            continue
        attribute.CopyFrom(onnx.helper.make_attribute("value", _double(values)))


def _double(values: Array) -> onnx.TensorProto:
    return numpy_helper.from_array(np.asarray(values, np.float64))


def _widen_tensor(tensor: onnx.TensorProto) -> None:
    if tensor.data_type in _NARROW:
        name = tensor.name
        tensor.CopyFrom(_double(numpy_helper.to_array(tensor)))
        tensor.name = name


def _widen_value(value: onnx.ValueInfoProto) -> None:
    kind = value.type.tensor_type
    if kind.elem_type in _NARROW:
        kind.elem_type = TensorProto.DOUBLE
