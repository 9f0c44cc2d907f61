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
    """Write out what `FusedBatchNormV3` computes, since it has no float64 kernel.

    In inference it is given mean and variance; where it measures them itself, Keras 2 normalises layers with it.
    """
    for node in [n for n in graph_def.node if n.op == "FusedBatchNormV3"]:
        axes = {b"": (0, 1, 2), b"NHWC": (0, 1, 2), b"NCHW": (0, 2, 3)}.get(node.attr["data_format"].s)
        if axes is None:
            continue
        x, *given = node.input
        write = _Writer(graph_def, node.name)
        epsilon, training, name = float(node.attr["epsilon"].f), node.attr["is_training"].b, node.name
        graph_def.node.remove(node)
        scale, offset, mean, variance = (write.along_channel(value, axes) for value in given[:4])
        if training:
            mean = write.mean(x, axes)
            variance = write.mean(write("SquaredDifference", x, mean), axes)
        factor = write("Mul", scale, write("Rsqrt", write("AddV2", variance, write.constant(epsilon))))
        shift = write("Sub", offset, write("Mul", mean, factor))
        write("AddV2", write("Mul", x, factor), shift, name=name)


class _Writer:
    """Adds nodes of float64 to a graph."""

    def __init__(self, graph_def: Any, scope: str) -> None:
        self._graph_def = graph_def
        self._scope = scope
        self._count = 0

    def __call__(self, operator: str, *inputs: str, name: str | None = None, **attributes: Any) -> str:
        from tensorflow.core.framework import types_pb2

        node = self._graph_def.node.add(name=name or self._new(), op=operator)
        node.input.extend(inputs)
        node.attr["T"].type = types_pb2.DT_DOUBLE
        for key, value in attributes.items():
            if isinstance(value, bool):
                node.attr[key].b = value
            else:
                node.attr[key].type = value
        return str(node.name)

    def mean(self, value: str, axes: Sequence[int]) -> str:
        from tensorflow.core.framework import types_pb2

        where = self.constant(np.array(axes, np.int32))
        return self("Mean", value, where, keep_dims=True, Tidx=types_pb2.DT_INT32)

    def along_channel(self, value: str, axes: Sequence[int]) -> str:
        """float64[channels] so that it spreads over the other axes."""
        from tensorflow.core.framework import types_pb2

        shape = np.array([1 if axis in axes else -1 for axis in range(4)], np.int32)
        return self("Reshape", value, self.constant(shape), Tshape=types_pb2.DT_INT32)

    def constant(self, value: Any) -> str:
        from tensorflow.python.framework import tensor_util

        proto = tensor_util.make_tensor_proto(np.asarray(value))
        node = self._graph_def.node.add(name=self._new(), op="Const")
        node.attr["dtype"].type = proto.dtype
        node.attr["value"].tensor.CopyFrom(proto)
        return str(node.name)

    def _new(self) -> str:
        self._count += 1
        return f"{self._scope}/wide_{self._count}"
