"""What an ONNX file says of itself: signature, opsets, and where its weights lie. Reads bytes, opens no file."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from pathlib import PurePosixPath

import onnx
from google.protobuf.message import DecodeError

from paritygate.converter.errors import ModelInvalid
from paritygate.converter.types import Dim, DType, Signature, TensorSpec


def parse_model(data: bytes, *, size_bytes: int | None = None) -> onnx.ModelProto:
    """The model in these bytes; external data is not touched.

    Args:
        data: The bytes.
        size_bytes: How many the file has, where its weights are not among them; said in errors.

    Raises:
        ModelInvalid: If the bytes are cut short, are not ONNX, or hold no graph with outputs.
    """
    size = size_bytes or len(data)
    try:
        model: onnx.ModelProto = onnx.ModelProto.FromString(data)
    except DecodeError as error:
        raise ModelInvalid(
            f"the {size} bytes are not an ONNX model: cut short, or something else. Export it again."
        ) from error
    if not model.graph.output or not model.opset_import:
        raise ModelInvalid(
            f"the {size} bytes hold no ONNX graph with outputs and an opset: the file is cut short or is "
            "something else. Export it again."
        )
    return model


def graph_signature(model: onnx.ModelProto) -> Signature:
    """Inputs and outputs of the graph, in its order; a dim without a name is called `<tensor>_dim_<axis>`.

    Initializers that old files list among the inputs are weights and left out.

    Raises:
        ModelInvalid: If an input or output is no tensor (sequence, map, optional) or of an unknown element type.
    """
    weights = {tensor.name for tensor in model.graph.initializer}
    inputs = tuple(_spec(value) for value in model.graph.input if value.name not in weights)
    return Signature(inputs, tuple(_spec(value) for value in model.graph.output))


def opsets(model: onnx.ModelProto) -> dict[str, int]:
    """Opset number by domain; the standard domain is called `ai.onnx`."""
    return {entry.domain or "ai.onnx": int(entry.version) for entry in model.opset_import}


def tensors(model: onnx.ModelProto) -> Iterator[onnx.TensorProto]:
    """Every tensor stored in the model: initializers and attributes, in subgraphs and functions too."""
    yield from _graph_tensors(model.graph)
    for function in model.functions:
        for node in function.node:
            yield from _node_tensors(node)
        for attribute in function.attribute_proto:
            yield from _attribute_tensors(attribute)
    for training in model.training_info:
        yield from _graph_tensors(training.initialization)
        yield from _graph_tensors(training.algorithm)


def is_external(tensor: onnx.TensorProto) -> bool:
    """Whether the tensor's values lie in another file."""
    return tensor.data_location == onnx.TensorProto.EXTERNAL


def external_location(tensor: onnx.TensorProto) -> str:
    """The file name that an external tensor gives, checked to be a plain name inside the model's directory.

    Raises:
        ModelInvalid: If the name is missing, absolute, or leaves the directory.
    """
    fields = {entry.key: entry.value for entry in tensor.external_data}
    location: str = fields.get("location", "")
    if not is_contained(location):
        raise ModelInvalid(
            f"weight {tensor.name!r} lies in {location!r}, which is not a file name inside the model's directory. "
            "Save the model with its data beside it."
        )
    return location


def external_locations(model: onnx.ModelProto) -> set[str]:
    """The files, relative to the model's directory, that hold weights of this model.

    Raises:
        ModelInvalid: If one of the names leaves the directory.
    """
    return {external_location(tensor) for tensor in tensors(model) if is_external(tensor)}


def is_contained(name: str) -> bool:
    """Whether a relative POSIX path names something below the directory it starts from, in its plain spelling."""
    if not name or "\\" in name or "\0" in name:
        return False
    path = PurePosixPath(name)
    return not path.is_absolute() and ".." not in path.parts and str(path) == name and name != "."


def graphs(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    """A graph and those inside its nodes, the outer ones first."""
    yield graph
    for node in graph.node:
        for inner in subgraphs(node):
            yield from graphs(inner)


def subgraphs(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    """The graphs that a node holds in its attributes: branches, loop bodies."""
    for attribute in node.attribute:
        if attribute.type == onnx.AttributeProto.GRAPH:
            yield attribute.g
        yield from attribute.graphs


def computed_from(graph: onnx.GraphProto, names: Iterable[str], *, beyond: Collection[str] = ()) -> set[str]:
    """All values of a graph that hang on the given ones, those included; graphs inside a node count as its inputs.

    Args:
        graph: Its nodes are in the order in which they are computed.
        names: Where to begin.
        beyond: Operators that hand nothing on, such as `Shape` where only the numbers themselves matter.
    """
    found = set(names)
    for node in graph.node:
        if node.op_type not in beyond and not found.isdisjoint(_taken(node)):
            found.update(node.output)
    return found


def _taken(node: onnx.NodeProto) -> set[str]:
    inner = (other for graph in subgraphs(node) for other in graph.node)
    return set(node.input).union(*map(_taken, inner))


def _spec(value: onnx.ValueInfoProto) -> TensorSpec:
    kind = value.type.WhichOneof("value")
    if kind != "tensor_type":
        spelled = (kind or "untyped").removesuffix("_type")
        raise ModelInvalid(
            f"{value.name!r} is of kind {spelled}; models here take and give tensors only. "
            "Export it so that each output is one tensor (scikit-learn: zipmap=False)."
        )
    tensor = value.type.tensor_type
    if not tensor.HasField("shape"):
        raise ModelInvalid(
            f"{value.name!r} has no shape, not even a rank. Export it with a known number of dimensions."
        )
    try:
        dtype = DType.from_onnx(tensor.elem_type)
    except ValueError as error:
        raise ModelInvalid(f"{value.name!r}: {error}") from error
    return TensorSpec(
        value.name, dtype, tuple(_dim(value.name, axis, dim) for axis, dim in enumerate(tensor.shape.dim))
    )


def _dim(name: str, axis: int, dim: onnx.TensorShapeProto.Dimension) -> Dim:
    if dim.HasField("dim_value"):
        return int(dim.dim_value)
    return str(dim.dim_param) or f"{name}_dim_{axis}"


def _graph_tensors(graph: onnx.GraphProto) -> Iterator[onnx.TensorProto]:
    yield from graph.initializer
    for sparse in graph.sparse_initializer:
        yield from (sparse.values, sparse.indices)
    for node in graph.node:
        yield from _node_tensors(node)


def _node_tensors(node: onnx.NodeProto) -> Iterator[onnx.TensorProto]:
    for attribute in node.attribute:
        yield from _attribute_tensors(attribute)


def _attribute_tensors(attribute: onnx.AttributeProto) -> Iterator[onnx.TensorProto]:
    if attribute.HasField("t"):
        yield attribute.t
    yield from attribute.tensors
    sparse = [attribute.sparse_tensor] if attribute.HasField("sparse_tensor") else []
    for entry in [*sparse, *attribute.sparse_tensors]:
        yield from (entry.values, entry.indices)
    graphs = [attribute.g] if attribute.HasField("g") else []
    for graph in [*graphs, *attribute.graphs]:
        yield from _graph_tensors(graph)
