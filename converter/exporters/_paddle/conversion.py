"""A saved program becomes ONNX: paddle2onnx in a process of its own, then what it leaves undone."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx

from paritygate.converter.errors import ExportError, ModelInvalid
from paritygate.converter.exporters._paddle.near_zero import replace_stand_ins, stood_in
from paritygate.converter.exporters._paddle.process import Paddle2Onnx
from paritygate.converter.exporters._paddle.programs import operations
from paritygate.converter.exporters._paddle.whole import without_own_casts
from paritygate.converter.graph.weights import read_apart

OLDEST_OPSET, NEWEST_OPSET = 13, 21
"""paddle2onnx 2.1.0 writes 7 to 21 and ends the process for others; older than 13 no exporter here writes."""

_LARGEST_BYTES = 2**31 - 2**24


def check_opset(opset: int) -> None:
    """Refuse an opset before paddle2onnx ends the process over it.

    Raises:
        ExportError: Naming the range.
    """
    if not OLDEST_OPSET <= opset <= NEWEST_OPSET:
        raise ExportError(
            f"opset {opset} was asked for; paddle2onnx writes {OLDEST_OPSET} to {NEWEST_OPSET}. "
            "Leave it out for 18."
        )


@dataclass(frozen=True)
class Converted:
    """What became of a program.

    Attributes:
        model: The model, its weights as initializers; large ones point to where they lie in `weights`.
        weights: The file that paddle2onnx wrote.
    """

    model: onnx.ModelProto
    weights: Path


def convert_program(converter: Paddle2Onnx, program: Path, parameters: Path | None, opset: int) -> Converted:
    """The ONNX form of a program in paddle's JSON form.

    Args:
        converter: The process that converts it; it is used up by this.
        program: The `.json` file; a copy with what paddle2onnx cannot read rewritten is put beside it.
        parameters: The `.pdiparams` file, or None for a program without weights.
        opset: Version of the default operator set.

    Raises:
        UnsupportedOperator: If paddle2onnx cannot convert an operator; names it and the layer it stands in.
        ExportError: If it fails otherwise.
    """
    check_opset(opset)
    if parameters is not None and parameters.stat().st_size > _LARGEST_BYTES:
        raise ExportError(
            f"the weights have {parameters.stat().st_size} bytes; paddle2onnx writes one file, which cannot pass "
            "2 GiB. Convert the model in parts."
        )
    document = json.loads(program.read_text("utf-8"))
    readable = program.with_name("readable.json")
    told, meant = stood_in(_as_paddle2onnx_reads(document))
    readable.write_text(json.dumps(told), "utf-8")
    written = program.with_name("converted.onnx")
    converter.convert(readable, parameters, opset, written, operations(document))
    model = _read(written)
    replace_stand_ins(model, meant)
    without_own_casts(model.graph)
    _lift_constants(model.graph)
    _concatenate_lists(model)
    return Converted(model, written)


def _read(written: Path) -> onnx.ModelProto:
    empty = "paddle2onnx wrote an empty graph; it could not read the program or its parameters."
    try:
        model = read_apart(written, written.name)
    except ModelInvalid as error:
        raise ExportError(empty) from error
    if not model.graph.node:
        raise ExportError(empty)
    return model


def _as_paddle2onnx_reads(value: Any) -> Any:
    """The document with lists of doubles as lists of floats: paddle2onnx's reader knows only those.

    Such lists are the scales of interpolations, which paddle's Python API writes as doubles.
    """
    if isinstance(value, list):
        return [_as_paddle2onnx_reads(item) for item in value]
    if not isinstance(value, dict):
        return value
    if value.get("#") == "0.a_array" and all(i.get("#") == "0.a_f64" for i in value.get("D") or [{}]):
        return {**value, "D": [{**item, "#": "0.a_f32"} for item in value["D"]]}
    return {key: _as_paddle2onnx_reads(item) for key, item in value.items()}


# --- the graph ----------------------------------------------------------------------------------------------


def _lift_constants(graph: onnx.GraphProto) -> None:
    """Weights are initializers in a served model: they can be kept in a side file, and are found by tools."""
    kept = []
    for node in graph.node:
        value = node.attribute[0] if node.op_type == "Constant" and len(node.attribute) == 1 else None
        if value is None or not value.HasField("t"):
            kept.append(node)
            continue
        tensor = graph.initializer.add()
        tensor.CopyFrom(value.t)
        tensor.name = node.output[0]
    remaining = [_copy(node) for node in kept]
    del graph.node[:]
    graph.node.extend(remaining)


def _copy(node: onnx.NodeProto) -> onnx.NodeProto:
    twin = onnx.NodeProto()
    twin.CopyFrom(node)
    return twin


def _concatenate_lists(model: onnx.ModelProto) -> None:
    """Give scalars that are concatenated to a shape the axis that Concat asks for.

    Programs of paddle 2 hold sizes as tensors of one element where paddle 3 has scalars; paddle2onnx mixes the two
    and writes a Concat over scalars, which no runtime loads. One element along the one axis is what both mean.
    """
    ranks = _ranks(model)
    nodes: list[onnx.NodeProto] = []
    for node in model.graph.node:
        if node.op_type == "Concat":
            for index, name in enumerate(node.input):
                if ranks.get(name) == 0:
                    listed = f"{name}_as_list_{len(nodes)}"
                    shape = f"{listed}_shape"
                    one = onnx.helper.make_tensor(shape, onnx.TensorProto.INT64, [1], [1])
                    model.graph.initializer.append(one)
                    nodes.append(onnx.helper.make_node("Reshape", [name, shape], [listed]))
                    node.input[index] = listed
        nodes.append(_copy(node))
    del model.graph.node[:]
    model.graph.node.extend(nodes)


def _ranks(model: onnx.ModelProto) -> Mapping[str, int]:
    """The number of axes of every value, as far as it can be inferred; weights are looked at, not copied."""
    ranks = {tensor.name: len(tensor.dims) for tensor in model.graph.initializer}
    bare = onnx.ModelProto()
    bare.CopyFrom(model)
    try:
        inferred = onnx.shape_inference.infer_shapes(bare)
    except onnx.shape_inference.InferenceError:
        return ranks
    for value in (*inferred.graph.value_info, *inferred.graph.input):
        if value.type.tensor_type.HasField("shape"):
            ranks[value.name] = len(value.type.tensor_type.shape.dim)
    return ranks
