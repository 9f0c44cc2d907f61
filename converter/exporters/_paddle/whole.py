"""Integers that paddle2onnx casts before an operator which onnxruntime computes in int64 as they are."""

from __future__ import annotations

import onnx

_OPERATORS = ("ArgMax", "ArgMin")
_OWN_CASTS = "auto.cast."
"""How paddle2onnx 2.1 names the results of casts of its own; those of the program are called `p2o.pd_op.cast.`."""


def without_own_casts(graph: onnx.GraphProto) -> None:
    """Let int64 reach argmax and argmin: as int32, a later timestamp is not always the larger number.

    Args:
        graph: Changed in place; casts that nobody reads any more are left to whoever tidies up.
    """
    types = {value.name: value.type.tensor_type.elem_type for value in (*graph.input, *graph.value_info)}
    types |= {tensor.name: tensor.data_type for tensor in graph.initializer}
    for node in graph.node:
        if node.op_type == "Cast":
            types[node.output[0]] = next(a.i for a in node.attribute if a.name == "to")
    whole = {
        node.output[0]: node.input[0]
        for node in graph.node
        if node.op_type == "Cast"
        and node.output[0].startswith(_OWN_CASTS)
        and types.get(node.input[0]) == onnx.TensorProto.INT64
    }
    for node in graph.node:
        if node.op_type in _OPERATORS and all(name in whole for name in node.input):
            node.input[:] = [whole[name] for name in node.input]
