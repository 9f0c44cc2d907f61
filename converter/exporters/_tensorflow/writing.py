"""Convert a `tf.function` with tf2onnx and write the file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from paritygate.converter.errors import ExportError
from paritygate.converter.exporters._tensorflow.heard import heard_errors, raise_heard
from paritygate.converter.exporters._tensorflow.imports import first_line
from paritygate.converter.exporters._tensorflow.operators import custom_handlers
from paritygate.converter.exporters._tensorflow.source_lines import source_line
from paritygate.converter.exporters.base import ConversionRequest
from paritygate.converter.types import TensorSpec


def write_onnx(
    function: Any,
    signature: Sequence[Any],
    request: ConversionRequest,
    output_shapes: Sequence[Sequence[int | None]],
    *,
    large: bool,
) -> None:
    """Convert a `tf.function` and write the file under the source's own input names.

    Args:
        function: What to convert.
        signature: Its inputs.
        request: Where to, under which names, at which opset.
        output_shapes: What the framework says of the outputs' sizes; may be empty.
        large: Whether weights go to a side file.

    Raises:
        UnsupportedOperator: If tf2onnx has no form of an operator; named with the layer that uses it.
        ExportError: If tf2onnx fails otherwise.
    """
    import tf2onnx

    options = {"opset": request.opset, "custom_op_handlers": custom_handlers(), "large_model": large}

    def line_of(node: str, operator: str) -> str | None:
        return source_line(function.get_concrete_function(*signature).graph, node, operator)

    with heard_errors() as heard, _numpy_2_for_large_models():
        try:
            model, storage = _converted(function, signature, options)
        except Exception as error:
            raise_heard(heard, request.opset, line_of)
            raise _cannot_convert(error, tf2onnx.__version__) from error
    raise_heard(heard, request.opset, line_of)
    _rename_inputs(model, signature, request.inputs)
    _declare_sizes(model.graph, output_shapes)
    if storage is None:
        request.path.write_bytes(model.SerializeToString(deterministic=True))
    else:
        _write_with_side_file(model, storage.name_to_tensor_data, request.path)


def _converted(function: Any, signature: Sequence[Any], options: dict[str, Any]) -> tuple[Any, Any]:
    """What tf2onnx makes of a function; tensors that it captured by value become constants first.

    Freezing only knows variables: a captured tensor (of a SavedModel's frozen part, for one) would be left as an
    input that nobody feeds.
    """
    import tf2onnx

    concrete = function.get_concrete_function(*signature)
    captured = {
        inner.name.split(":")[0]: outer.numpy()
        for outer, inner in concrete.graph.captures
        if outer.dtype.name not in ("resource", "variant")
    }
    if not captured:
        model, storage = tf2onnx.convert.from_function(function, input_signature=signature, **options)
        return model, storage
    inputs = [tensor.name for tensor in concrete.inputs if tensor.dtype.name != "resource"]
    outputs = [tensor.name for tensor in concrete.outputs]
    graph_def = tf2onnx.tf_loader.from_function(concrete, inputs, outputs, large_model=options["large_model"])
    for node in graph_def.node:
        if node.op == "Placeholder" and node.name in captured:
            _make_constant(node, captured[node.name])
    own = [name for name in inputs if name.split(":")[0] not in captured]
    model, storage = tf2onnx.convert.from_graph_def(
        graph_def, input_names=own, output_names=outputs, **options
    )
    return model, storage


def _make_constant(node: Any, value: Any) -> None:
    from tensorflow.python.framework import tensor_util

    node.op = "Const"
    del node.attr["shape"]
    node.attr["value"].tensor.CopyFrom(tensor_util.make_tensor_proto(value))


def _cannot_convert(error: Exception, version: str) -> ExportError:
    if "Assign" in str(error):
        return ExportError(
            f"the model changes a variable when it is called ({first_line(error)}), and a served model keeps no "
            "state. Take the assignment out of inference."
        )
    return ExportError(f"tf2onnx {version} cannot convert the model: {first_line(error)}")


@contextmanager
def _numpy_2_for_large_models() -> Iterator[None]:
    """Let tf2onnx 1.17 write side files under NumPy 2: `graph.py` still calls `np.product`, which is gone."""
    from tf2onnx import graph

    if hasattr(np, "product"):
        yield
        return
    graph.np = _NumpyWithProduct()
    try:
        yield
    finally:
        graph.np = np


class _NumpyWithProduct:
    product = staticmethod(np.prod)

    def __getattr__(self, name: str) -> Any:
        return getattr(np, name)


def _rename_inputs(model: onnx.ModelProto, signature: Sequence[Any], inputs: Sequence[TensorSpec]) -> None:
    own = {placeholder.name: spec.name for placeholder, spec in zip(signature, inputs, strict=True)}
    for value in model.graph.input:
        inner = value.name
        value.name = own[inner.split(":")[0]]
        for node in model.graph.node:
            _rename_in_node(node, inner, value.name)
        for output in model.graph.output:
            output.name = value.name if output.name == inner else output.name


def _declare_sizes(graph: onnx.GraphProto, shapes: Sequence[Sequence[int | None]]) -> None:
    """Write the framework's own word on sizes where tf2onnx lost it (behind loops, for one)."""
    for value, shape in zip(graph.output, shapes, strict=len(shapes) > 0):
        dims = value.type.tensor_type.shape.dim
        if len(dims) != len(shape):
            continue
        for dim, size in zip(dims, shape, strict=True):
            if size is not None and not dim.HasField("dim_value"):
                dim.dim_value = size


def _rename_in_node(node: onnx.NodeProto, old: str, new: str) -> None:
    node.input[:] = [new if name == old else name for name in node.input]
    for attribute in node.attribute:
        for graph in (attribute.g, *attribute.graphs):
            for inner in graph.node:
                _rename_in_node(inner, old, new)


def _write_with_side_file(model: onnx.ModelProto, tensors: Mapping[str, bytes], path: Path) -> None:
    for tensor in _all_tensors(model.graph):
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            key = next(entry.value for entry in tensor.external_data if entry.key == "location")
            tensor.raw_data = tensors[key]
            tensor.data_location = onnx.TensorProto.DEFAULT
            del tensor.external_data[:]
    onnx.save_model(
        model, str(path), save_as_external_data=True, all_tensors_to_one_file=True,
        location=f"{path.name}.data", size_threshold=1024,
    )  # fmt: skip


def _all_tensors(graph: onnx.GraphProto) -> Iterator[onnx.TensorProto]:
    yield from graph.initializer
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("t"):
                yield attribute.t
            for inner in (attribute.g, *attribute.graphs):
                yield from _all_tensors(inner)
