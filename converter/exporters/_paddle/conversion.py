"""A saved program becomes ONNX: paddle2onnx in a process of its own, then what it leaves undone."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx

from paritygate.converter.errors import ExportError, ModelInvalid, UnsupportedOperator
from paritygate.converter.exporters._paddle.programs import Operation, operations
from paritygate.converter.graph.weights import read_apart

OLDEST_OPSET, NEWEST_OPSET = 13, 21
"""paddle2onnx 2.1.0 writes 7 to 21 and ends the process for others; older than 13 no exporter here writes."""

TIMEOUT_S = 1800.0

_LARGEST_BYTES = 2**31 - 2**24

# Names under which paddle2onnx lists what it supports, where the program calls it otherwise. Source: paddle's
# paddle/phi/ops/yaml/op_compat.yaml. Only used to explain a refusal, never to decide one.
_OLD_NAMES = {
    "add": "elementwise_add", "subtract": "elementwise_sub", "multiply": "elementwise_mul",
    "divide": "elementwise_div", "floor_divide": "elementwise_floordiv", "remainder": "elementwise_mod",
    "maximum": "elementwise_max", "minimum": "elementwise_min", "matmul": "matmul_v2", "sum": "reduce_sum",
    "mean": "reduce_mean", "max": "reduce_max", "min": "reduce_min", "prod": "reduce_prod", "all": "reduce_all",
    "any": "reduce_any", "argmax": "arg_max", "argmin": "arg_min", "topk": "top_k_v2", "expand": "expand_v2",
    "nonzero": "where_index", "flatten": "flatten_contiguous_range", "arange": "range", "unsqueeze": "unsqueeze2",
    "hardswish": "hard_swish", "hardsigmoid": "hard_sigmoid", "batch_norm_": "batch_norm", "scatter_": "scatter",
    "fill_constant": "full", "assign_value_": "assign_value", "full_": "full", "grid_sample": "grid_sampler",
    "deformable_conv": "deformable_conv", "relu_": "relu", "scale_": "scale", "crop": "crop_tensor",
}  # fmt: skip

_STRUCTURE = {"data", "feed", "fetch", "combine", "split", "slice", "if", "while", "yield", "shadow_output"}


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


def convert_program(program: Path, parameters: Path | None, opset: int) -> Converted:
    """The ONNX form of a program in paddle's JSON form.

    Args:
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
    readable.write_text(json.dumps(_as_paddle2onnx_reads(document)), "utf-8")
    written = _in_a_process(readable, parameters, opset, operations(document))
    model = _read(written)
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


# --- the process --------------------------------------------------------------------------------------------


def _in_a_process(program: Path, parameters: Path | None, opset: int, known: list[Operation]) -> Path:
    from paritygate.converter.environments.processes import run_supervised

    target = program.with_name("converted.onnx")
    said = _Said()
    ended = run_supervised(
        [
            sys.executable, "-I", Path(__file__).with_name("converting.py"), _extension(), program,
            parameters or "", str(opset), target,
        ],
        timeout_s=TIMEOUT_S,
        environment=_environment(),
        on_output=said.hear,
    )  # fmt: skip
    if ended.ok and target.exists():
        return target
    if said.unsupported:
        raise _unsupported(known)
    fault = said.fault or f"its process {ended.describe()}"
    if said.exporting:
        operation = _at(known, said.exporting)
        raise UnsupportedOperator(
            f"paddle2onnx cannot convert {operation.name}{operation.where}: {fault}",
            operator=operation.name,
            module=operation.layer,
        )
    raise ExportError(f"paddle2onnx could not convert the model: {fault}")


def _at(known: list[Operation], name: str) -> Operation:
    plain = name.rpartition(".")[2]
    return next((entry for entry in known if entry.name == plain), Operation(plain, None))


class _Said:
    """What paddle2onnx says while it works, as far as it tells where it stopped."""

    def __init__(self) -> None:
        self.exporting = ""
        self.unsupported = False
        self.fault = ""

    def hear(self, line: bytes) -> None:
        text = line.decode("utf-8", "replace").strip()
        started = re.match(r"\[Paddle2ONNX\] Start export (\S+), op_id", text)
        if started is not None:
            self.exporting = started[1]
        elif text.startswith("[Paddle2ONNX] Finish export"):
            self.exporting = ""
        elif "unsupported operators" in text:
            self.unsupported = True
        elif not self.fault:
            self.fault = _fault_in(text)


def _fault_in(text: str) -> str:
    found = re.search(r"\[ERROR\](?:\[Paddle2ONNX\])?\s*(.+)|^RuntimeError: (.+)", text)
    return "" if found is None else (found[1] or found[2]).strip()[:300]


def _extension() -> Path:
    """paddle2onnx's extension module; its Python package is not imported."""
    spec = importlib.util.find_spec("paddle2onnx")
    assert spec is not None, "checked when the exporter was opened"
    assert spec.origin is not None
    found = sorted(Path(spec.origin).parent.glob("paddle2onnx_cpp2py_export*.so"))
    if not found:
        raise ExportError("paddle2onnx is installed without its extension module; install it again.")
    return found[0]


def _environment() -> dict[str, str]:
    """The extension needs paddle's own libraries, which its wheel looks for where it was built."""
    spec = importlib.util.find_spec("paddle")
    assert spec is not None
    assert spec.origin is not None
    package = Path(spec.origin).parent
    path = os.pathsep.join(
        filter(None, [str(package / "base"), str(package / "libs"), os.environ.get("LD_LIBRARY_PATH")])
    )
    return {**os.environ, "LD_LIBRARY_PATH": path}


def _unsupported(known: list[Operation]) -> UnsupportedOperator:
    import paddle2onnx.paddle2onnx_cpp2py_export as extension

    supported = set(extension.get_all_supported_operators_pir())
    lacking = [entry for entry in known if not _is_supported(entry.name, supported)]
    first = lacking[0] if lacking else Operation("an operator", None)
    names = ", ".join(dict.fromkeys(entry.name for entry in lacking)) or "an operator that it does not name"
    return UnsupportedOperator(
        f"paddle2onnx has no ONNX form of {names}{first.where}; write that part with other operators.",
        operator=first.name,
        module=first.layer,
    )


def _is_supported(name: str, supported: set[str]) -> bool:
    spellings = {name, _OLD_NAMES.get(name, name), name.rstrip("_"), f"builtin_{name}"}
    return name in _STRUCTURE or bool(spellings & supported)


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
