"""Make a freshly converted graph say what was declared: names, dims, nothing of the machine that wrote it.

Works on the structure alone: weights in a side file are neither read nor moved. Parsing and writing a model that
carries its weights takes as long as a good part of its conversion, so the steps share one parsed model.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import onnx

from paritygate.converter.errors import ExportError
from paritygate.converter.graph.inspect import subgraphs
from paritygate.converter.types import Dim, DType, TensorSpec

_SYMBOL = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")

KEPT_NODE_METADATA = ("namespace", "pkg.torch.onnx.name_scopes", "pkg.torch.onnx.class_hierarchy")
"""Which layer a node came from. Everything else, stack traces with local paths first of all, is dropped."""


def read_structure(path: Path) -> onnx.ModelProto:
    """A model as its file has it; weights in a side file stay there."""
    return onnx.load(path, load_external_data=False)


def save_structure(model: onnx.ModelProto, path: Path) -> None:
    """Write a model without touching its external data; the same model gives the same bytes."""
    path.write_bytes(model.SerializeToString(deterministic=True))


def finish_graph(
    model: onnx.ModelProto,
    *,
    name: str,
    inputs: Sequence[TensorSpec],
    own_inputs: Sequence[str],
    outputs: Sequence[str],
) -> list[str]:
    """Rename a converted model's inputs, outputs and open dims, and check that it fits the declaration.

    Args:
        model: Changed in place.
        name: The graph's new name.
        inputs: The declared inputs in order, with open dims by name.
        own_inputs: What the source calls the same inputs; the graph's inputs are found by these names, or by
            position where the names are foreign.
        outputs: The declared names of the outputs, in the graph's order.

    Returns:
        Sentences for the manifest.

    Raises:
        ExportError: If number, dtype or rank of inputs or outputs differ from the declaration.
    """
    notes = _match_inputs(model.graph, inputs, own_inputs)
    _separate_outputs(model.graph)
    _check_output_count(model.graph, outputs)
    renames = {value.name: spec.name for value, spec in zip(model.graph.input, inputs, strict=True)}
    renames |= {value.name: new for value, new in zip(model.graph.output, outputs, strict=True)}
    rename_values(model.graph, renames)
    _name_dims(model.graph, inputs)
    _forget_origin(model)
    model.graph.name = name
    return notes


def frozen_dims(
    model: onnx.ModelProto, inputs: Sequence[TensorSpec], own_inputs: Sequence[str]
) -> dict[str, int]:
    """Dims that were to stay open and that the converter fixed without a word, with the size it gave them."""
    values = {value.name: value for value in _real_inputs(model.graph)}
    in_order = list(values.values()) if not set(values) <= set(own_inputs) else []
    frozen: dict[str, int] = {}
    for index, (own, spec) in enumerate(zip(own_inputs, inputs, strict=True)):
        value = in_order[index] if index < len(in_order) else values.get(own)
        dims = [] if value is None else value.type.tensor_type.shape.dim
        for dim, declared in zip(dims, spec.shape, strict=False):
            fixed = str(dim.dim_value) if dim.HasField("dim_value") else dim.dim_param
            if isinstance(declared, str) and fixed.isdecimal():
                frozen[declared] = int(fixed)
    return frozen


def output_values(model: onnx.ModelProto) -> list[tuple[str, DType, tuple[Dim, ...] | None]]:
    """Name, dtype and shape of each graph output; a dim without size or name is `""`, no shape is None."""
    found: list[tuple[str, DType, tuple[Dim, ...] | None]] = []
    for value in model.graph.output:
        tensor = value.type.tensor_type
        if not value.type.HasField("tensor_type"):
            kind = value.type.WhichOneof("value")
            raise ExportError(
                f"graph output {value.name!r} is a {kind}, not a tensor; served models give tensors."
            )
        shape = tuple(_dim(d) for d in tensor.shape.dim) if tensor.HasField("shape") else None
        found.append((value.name, DType.from_onnx(tensor.elem_type), shape))
    return found


def declare_outputs(path: Path, outputs: Sequence[TensorSpec]) -> None:
    """Write the shapes of the outputs into the file and check the whole graph.

    Raises:
        ExportError: If onnx's checker or its shape inference refuses the file.
    """
    model = read_structure(path)
    before = [value.SerializeToString() for value in model.graph.output]
    for value, spec in zip(model.graph.output, outputs, strict=True):
        _set_shape(value, spec.shape)
    if [value.SerializeToString() for value in model.graph.output] != before:
        save_structure(model, path)
    try:
        onnx.checker.check_model(str(path))
        _leave_out_values(model)
        onnx.shape_inference.infer_shapes(model, check_type=True, strict_mode=True)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError) as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        raise ExportError(
            f"the converter wrote a graph that onnx refuses: {' '.join(lines)[:400]}"
        ) from error


_READ_BY_INFERENCE_BYTES = 4096
"""Shape inference reads the values of what may be a shape; larger weights it only asks for their own."""


def _leave_out_values(model: onnx.ModelProto) -> None:
    """Take the bytes of large weights out, which shape inference would carry through its own copies."""
    for tensor in model.graph.initializer:
        if len(tensor.raw_data) > _READ_BY_INFERENCE_BYTES:
            tensor.ClearField("raw_data")
            tensor.data_location = onnx.TensorProto.EXTERNAL
            tensor.external_data.add(key="location", value="left_out")


def _dim(dim: onnx.TensorShapeProto.Dimension) -> Dim:
    return int(dim.dim_value) if dim.HasField("dim_value") else str(dim.dim_param)


def _real_inputs(graph: onnx.GraphProto) -> list[onnx.ValueInfoProto]:
    weights = {tensor.name for tensor in graph.initializer}
    return [value for value in graph.input if value.name not in weights]


def _match_inputs(graph: onnx.GraphProto, inputs: Sequence[TensorSpec], own: Sequence[str]) -> list[str]:
    """Put the graph's inputs into the declared order; one that the converter dropped as unused comes back."""
    values = _real_inputs(graph)
    by_name = {value.name: value for value in values}
    notes: list[str] = []
    if set(by_name) <= set(own):
        ordered = [by_name.get(name) for name in own]
    elif len(values) == len(inputs):
        ordered = list(values)
    else:
        raise ExportError(
            f"the converted graph takes {list(by_name)}, but the model takes {list(own)}; "
            f"an input was lost in the conversion."
        )
    final = []
    for value, spec in zip(ordered, inputs, strict=True):
        if value is None:
            notes.append(f"Input {spec.name!r} does not act on any output; it is accepted and ignored.")
            value = onnx.helper.make_tensor_value_info(spec.name, spec.dtype.onnx, spec.shape)
        elif value.type.tensor_type.elem_type != spec.dtype.onnx:
            raise ExportError(
                f"input {spec.name!r} is {spec.dtype.value} in the source, but "
                f"{onnx.TensorProto.DataType.Name(value.type.tensor_type.elem_type)} in the converted graph."
            )
        final.append(_copy(value))
    del graph.input[:]
    graph.input.extend(final)
    return notes


def _copy(value: onnx.ValueInfoProto) -> onnx.ValueInfoProto:
    twin = onnx.ValueInfoProto()
    twin.CopyFrom(value)
    return twin


def _separate_outputs(graph: onnx.GraphProto) -> None:
    """Give each output a value of its own: one that is an input, a weight or a second output gets an Identity."""
    taken = {value.name for value in graph.input} | {tensor.name for tensor in graph.initializer}
    for index, value in enumerate(graph.output):
        if value.name in taken:
            fresh = _fresh_name(graph, f"{value.name}_output_{index}")
            graph.node.append(
                onnx.helper.make_node("Identity", [value.name], [fresh], name=f"Identity_{fresh}")
            )
            value.name = fresh
        taken.add(value.name)


def _check_output_count(graph: onnx.GraphProto, outputs: Sequence[str]) -> None:
    if len(graph.output) != len(outputs):
        raise ExportError(
            f"the converted graph gives {len(graph.output)} outputs {[v.name for v in graph.output]}, "
            f"but the source gives {len(outputs)}: {list(outputs)}."
        )


def rename_values(graph: onnx.GraphProto, renames: Mapping[str, str]) -> None:
    """Rename values everywhere in a graph, subgraphs included; a name that is in the way gives way."""
    wanted = {old: new for old, new in renames.items() if old != new}
    in_the_way = (set(wanted.values()) & _all_names(graph)) - set(wanted)
    full = dict(wanted)
    used = _all_names(graph) | set(wanted.values())
    for name in sorted(in_the_way):
        full[name] = _unused(f"{name}_inner", used)
        used.add(full[name])
    _apply(graph, full)


def _apply(graph: onnx.GraphProto, renames: Mapping[str, str]) -> None:
    for values in (graph.input, graph.output, graph.value_info, graph.initializer):
        for value in values:
            value.name = renames.get(value.name, value.name)
    for sparse in graph.sparse_initializer:
        sparse.values.name = renames.get(sparse.values.name, sparse.values.name)
    for note in graph.quantization_annotation:
        note.tensor_name = renames.get(note.tensor_name, note.tensor_name)
    for node in graph.node:
        node.input[:] = [renames.get(name, name) for name in node.input]
        node.output[:] = [renames.get(name, name) for name in node.output]
        for subgraph in subgraphs(node):
            _apply(subgraph, renames)


def _all_names(graph: onnx.GraphProto) -> set[str]:
    names = {value.name for values in (graph.input, graph.output, graph.initializer) for value in values}
    for node in graph.node:
        names |= {*node.input, *node.output}
        for subgraph in subgraphs(node):
            names |= _all_names(subgraph)
    return names


def _fresh_name(graph: onnx.GraphProto, stem: str) -> str:
    return _unused(stem, _all_names(graph))


def _unused(stem: str, used: set[str]) -> str:
    name, number = stem, 1
    while name in used:
        number += 1
        name = f"{stem}_{number}"
    return name


def _name_dims(graph: onnx.GraphProto, inputs: Sequence[TensorSpec]) -> None:
    """Write the declared dims; the converter's own symbols become the declared names wherever they stand."""
    symbols: dict[str, str] = {}
    for value, spec in zip(graph.input, inputs, strict=True):
        dims = value.type.tensor_type.shape.dim
        if value.type.tensor_type.HasField("shape") and len(dims) != len(spec.shape):
            raise ExportError(f"input {spec} has {len(dims)} axes in the converted graph.")
        for dim, declared in zip(dims, spec.shape, strict=False):
            if dim.dim_param and isinstance(declared, str):
                symbols[dim.dim_param] = declared
        _set_shape(value, spec.shape)
    for value in [*graph.output, *graph.value_info]:
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_param:
                dim.dim_param = _SYMBOL.sub(lambda m: symbols.get(m[0], m[0]), dim.dim_param)


def _set_shape(value: onnx.ValueInfoProto, shape: Sequence[Dim]) -> None:
    target = value.type.tensor_type.shape
    target.Clear()
    target.SetInParent()
    for size in shape:
        dim = target.dim.add()
        if isinstance(size, str):
            dim.dim_param = size
        else:
            dim.dim_value = size


def _forget_origin(model: onnx.ModelProto) -> None:
    model.doc_string = ""
    del model.metadata_props[:]
    _forget_in(model.graph)
    for function in model.functions:
        function.doc_string = ""
        del function.metadata_props[:]
        for node in function.node:
            _forget_node(node)


def _forget_in(graph: onnx.GraphProto) -> None:
    graph.doc_string = ""
    del graph.metadata_props[:]
    for values in (graph.input, graph.output, graph.value_info, graph.initializer):
        for value in values:
            value.doc_string = ""
            del value.metadata_props[:]
    for node in graph.node:
        _forget_node(node)


def _forget_node(node: onnx.NodeProto) -> None:
    node.doc_string = ""
    kept = [prop for prop in node.metadata_props if prop.key in KEPT_NODE_METADATA]
    pairs = sorted((prop.key, prop.value) for prop in kept)
    del node.metadata_props[:]
    for key, text in pairs:
        node.metadata_props.add(key=key, value=text)
    for subgraph in subgraphs(node):
        _forget_in(subgraph)
