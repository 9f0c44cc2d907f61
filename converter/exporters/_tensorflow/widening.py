"""The same graph in double precision: weights frozen into it, every floating type made float64.

Works for whatever TensorFlow can trace, where Keras's own configuration is not at hand. An operator without a
float64 kernel, or with an output that is float32 whatever goes in, makes it fail, and then there is no twin.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from paritygate.converter.exporters._tensorflow.calls import Call

LIMIT_BYTES = 3 * 2**29
"""Weights in double precision above this do not fit into one message of a graph."""


def widened_call(concrete: Any) -> Call:
    """A traced function computed in float64.

    Args:
        concrete: A `ConcreteFunction` of tensors that gives a flat list of tensors.

    Returns:
        Takes its inputs in float64, gives its outputs in order.
    """
    import tensorflow as tf
    from tensorflow.python.framework.convert_to_constants import convert_variables_to_constants_v2

    frozen = convert_variables_to_constants_v2(concrete, lower_control_flow=False, aggressive_inlining=True)
    graph_def = frozen.graph.as_graph_def()
    _widen(graph_def)
    _without_fused_norms(graph_def)
    wrapped = tf.compat.v1.wrap_function(lambda: tf.import_graph_def(graph_def, name=""), [])
    feeds = [wrapped.graph.as_graph_element(tensor.name) for tensor in frozen.inputs]
    fetches = [wrapped.graph.as_graph_element(tensor.name) for tensor in frozen.outputs]
    pruned = wrapped.prune(feeds, fetches)

    def call(tensors: Sequence[Any]) -> Any:
        return pruned(*tensors)

    return call


def _widen(graph_def: Any) -> None:
    for function in graph_def.library.function:
        for argument in (*function.signature.input_arg, *function.signature.output_arg):
            argument.type = _wide(argument.type)
        for attributes in function.arg_attr.values():
            _widen_attributes(attributes.attr.values())
        for node in function.node_def:
            _widen_attributes(node.attr.values())
    for node in graph_def.node:
        _widen_attributes(node.attr.values())


def _widen_attributes(values: Iterable[Any]) -> None:
    from tensorflow.python.framework import tensor_util

    for value in values:
        kind = value.WhichOneof("value")
        if kind == "type":
            value.type = _wide(value.type)
        elif kind == "list":
            value.list.type[:] = [_wide(dtype) for dtype in value.list.type]
        elif kind == "tensor" and _wide(value.tensor.dtype) != value.tensor.dtype:
            array = tensor_util.MakeNdarray(value.tensor)
            value.tensor.CopyFrom(tensor_util.make_tensor_proto(array.astype(np.float64), shape=array.shape))


def _wide(dtype: int) -> int:
    from tensorflow.core.framework import types_pb2

    narrow = (types_pb2.DT_FLOAT, types_pb2.DT_HALF, types_pb2.DT_BFLOAT16)
    return int(types_pb2.DT_DOUBLE) if dtype in narrow else dtype


# --- batch normalisation ------------------------------------------------------------------------------------


def _without_fused_norms(graph_def: Any) -> None:
    """Write out what `FusedBatchNormV3` does in inference, since it has no float64 kernel."""
    for node in [n for n in graph_def.node if n.op == "FusedBatchNormV3" and not n.attr["is_training"].b]:
        if node.attr["data_format"].s not in (b"", b"NHWC", b"NDHWC"):
            continue
        x, scale, offset, mean, variance = node.input
        name, epsilon = node.name, float(node.attr["epsilon"].f)
        graph_def.node.remove(node)
        write = _Writer(graph_def, name)
        spread = write("AddV2", variance, write.constant(epsilon))
        factor = write("Mul", scale, write("Rsqrt", spread))
        shift = write("Sub", offset, write("Mul", mean, factor))
        write("AddV2", write("Mul", x, factor), shift, name=name)


class _Writer:
    def __init__(self, graph_def: Any, scope: str) -> None:
        self._graph_def = graph_def
        self._scope = scope
        self._count = 0

    def __call__(self, operator: str, *inputs: str, name: str | None = None) -> str:
        from tensorflow.core.framework import types_pb2

        self._count += 1
        node = self._graph_def.node.add(name=name or f"{self._scope}/wide_{self._count}", op=operator)
        node.input.extend(inputs)
        node.attr["T"].type = types_pb2.DT_DOUBLE
        return str(node.name)

    def constant(self, number: float) -> str:
        from tensorflow.core.framework import types_pb2
        from tensorflow.python.framework import tensor_util

        node = self._graph_def.node.add(name=f"{self._scope}/wide_constant", op="Const")
        node.attr["dtype"].type = types_pb2.DT_DOUBLE
        node.attr["value"].tensor.CopyFrom(tensor_util.make_tensor_proto(np.float64(number)))
        return str(node.name)
