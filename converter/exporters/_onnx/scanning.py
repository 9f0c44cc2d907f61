"""What a file must not hold, told from its structure before anything of it is computed."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

import onnx
from onnx import defs

from paritygate.converter.config import DEFAULT_OPSET, ExportConfig
from paritygate.converter.errors import ExportError, SourceError, UnsafeSource
from paritygate.converter.exporters._onnx.naming import real_inputs, tensor_dtype
from paritygate.converter.graph.inspect import opsets, tensors
from paritygate.converter.types import DType

OLDEST_OPSET = 7
"""onnxruntime promises nothing of older files. Source: its docs/Versioning.md."""

MAX_EXPANDED_NODES = 1_000_000
"""Nodes with every call of a local function written out; more come from functions that call each other to
exhaust whoever expands them."""

_COUNTED_TO = 10**15

_RANDOM = {
    "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Multinomial", "Bernoulli",
}  # fmt: skip

_FLOAT_CODES = {dtype.onnx for dtype in DType if dtype.is_floating}

_Key = tuple[str, str, str]
"""Domain, name and overload of an operator or function."""


def scan(model: onnx.ModelProto, config: ExportConfig) -> list[str]:
    """Refuse what cannot be proven or would exhaust whoever looks at it.

    Returns:
        Sentences for the manifest.

    Raises:
        ExportError: If an input or output is no tensor, random numbers are drawn, or the opset cannot be kept.
        SourceError: If local functions call each other in a circle.
        UnsafeSource: If local functions expand into too many nodes.
    """
    for value in (*real_inputs(model.graph), *model.graph.output):
        tensor_dtype(value)
    notes = [_opset_note(model, config)]
    size = _expanded_size(model)
    if size > MAX_EXPANDED_NODES and not config.trust:
        raise UnsafeSource(
            f"the file's local functions expand into {size:.3g} nodes, more than {MAX_EXPANDED_NODES:,}; that "
            "exhausts whoever opens it. Pass --trust (trust=True) if you know where the file comes from."
        )
    _refuse_random(model)
    return notes


def _opset_note(model: onnx.ModelProto, config: ExportConfig) -> str:
    version = opsets(model).get("ai.onnx")
    newest = defs.onnx_opset_version()
    if version is None:
        return "The file uses no operator of the default domain."
    if not OLDEST_OPSET <= version <= newest:
        raise ExportError(
            f"the file is written in opset {version}; expected {OLDEST_OPSET} to {newest}. Convert it first: "
            "onnx.version_converter.convert_version(model, 18)."
        )
    if config.opset not in (DEFAULT_OPSET, version):
        raise ExportError(
            f"opset {config.opset} was asked for, but a file keeps its own, which is {version}. Leave opset out, "
            f"or convert the file first: onnx.version_converter.convert_version(model, {config.opset})."
        )
    return f"The file's own opset {version} was kept."


# --- functions that call functions --------------------------------------------------------------------------


def _expanded_size(model: onnx.ModelProto) -> int:
    """How many nodes the model has once every call of a local function is written out."""
    calls: dict[_Key, Counter[_Key]] = {}
    for function in model.functions:  # two of the same name count as one that calls what either does
        key = (function.domain, function.name, function.overload)
        calls[key] = calls.get(key, Counter()) | _calls(function.node)
    sizes: dict[_Key, int] = {}
    for key in calls:
        _measure(key, calls, sizes)
    return _expanded(_calls(model.graph.node), sizes)


def _calls(nodes: Iterable[onnx.NodeProto]) -> Counter[_Key]:
    """How often each operator or function stands in a body."""
    return Counter((node.domain, node.op_type, node.overload) for node in _nodes(nodes))


def _measure(start: _Key, calls: Mapping[_Key, Counter[_Key]], sizes: dict[_Key, int]) -> None:
    """Fill in the expanded size of a function and of all that it calls; iterative, since chains may be long."""
    open_keys = [(start, iter(calls[start]))] if start not in sizes else []
    path = {start}
    while open_keys:
        key, rest = open_keys[-1]
        called = next((each for each in rest if each in calls and each not in sizes), None)
        if called is None:
            sizes[key] = _expanded(calls[key], sizes)
            path.discard(key)
            open_keys.pop()
        elif called in path:
            raise SourceError(
                f"the file's local function {called[0]}.{called[1]} calls itself, which ONNX does not allow; "
                "export the model again."
            )
        else:
            path.add(called)
            open_keys.append((called, iter(calls[called])))


def _expanded(calls: Counter[_Key], sizes: Mapping[_Key, int]) -> int:
    """The nodes of a body once its calls are written out; counted no further than it takes to refuse them."""
    size = sum(times * (1 + sizes.get(each, 0)) for each, times in calls.items())
    return min(size, _COUNTED_TO)


# --- random numbers -----------------------------------------------------------------------------------------


def _refuse_random(model: onnx.ModelProto) -> None:
    false = _false_constants(model)
    for node in all_nodes(model):
        if node.domain not in ("", "ai.onnx"):
            continue
        drops = node.op_type == "Dropout" and len(node.input) > 2 and node.input[2] not in false
        if node.op_type in _RANDOM or drops:
            mode = " in training mode" if drops else ""
            name = node.name or ", ".join(node.output)
            raise ExportError(
                f"the file draws random numbers: {node.op_type} (node {name!r}){mode}. Two "
                "runs never agree, so nothing can be proven; export the model in inference mode, or draw outside "
                "it and feed the numbers."
            )


def _false_constants(model: onnx.ModelProto) -> set[str]:
    """Names of values that are surely a single False; what is left out (an empty name) counts as one."""
    found = {"", *(t.name for t in model.graph.initializer if _is_false(t))}
    for node in all_nodes(model):
        if node.op_type == "Constant" and any(a.name == "value" and _is_false(a.t) for a in node.attribute):
            found |= set(node.output)
    return found


def _is_false(tensor: onnx.TensorProto) -> bool:
    if tensor.data_type != onnx.TensorProto.BOOL or math.prod(tensor.dims) != 1:
        return False
    return not any(tensor.raw_data) and not any(tensor.int32_data)


def all_nodes(model: onnx.ModelProto) -> Iterator[onnx.NodeProto]:
    """Every node of a model: subgraphs and the bodies of local functions too, each once."""
    yield from _nodes(model.graph.node)
    for function in model.functions:
        yield from _nodes(function.node)


def _nodes(nodes: Iterable[onnx.NodeProto]) -> Iterator[onnx.NodeProto]:
    for node in nodes:
        yield node
        for attribute in node.attribute:
            graphs = [attribute.g] if attribute.HasField("g") else []
            for graph in (*graphs, *attribute.graphs):
                yield from _nodes(graph.node)


# --- what the structure tells of the inputs -----------------------------------------------------------------

_PASSES_INDICES_ON = (
    "Cast", "Identity", "Reshape", "Squeeze", "Unsqueeze", "Flatten", "Transpose", "Expand", "Tile",
)  # fmt: skip


def index_ranges(graph: onnx.GraphProto) -> dict[str, tuple[int, int]]:
    """Smallest and largest index of every integer input that picks rows of a table stored in the graph."""
    rows = {t.name: int(t.dims[0]) for t in graph.initializer if len(t.dims) > 1}
    origin = {value.name: value.name for value in real_inputs(graph) if tensor_dtype(value).is_integer}
    ranges: dict[str, tuple[int, int]] = {}
    for node in graph.node:
        if node.op_type in _PASSES_INDICES_ON and node.input and node.output and node.input[0] in origin:
            origin[node.output[0]] = origin[node.input[0]]
        if node.op_type != "Gather" or len(node.input) < 2:
            continue
        if node.input[0] not in rows or node.input[1] not in origin:
            continue
        if any(attribute.name == "axis" and attribute.i != 0 for attribute in node.attribute):
            continue
        name = origin[node.input[1]]
        ranges[name] = (0, min(rows[node.input[0]] - 1, ranges.get(name, (0, 2**62))[1]))
    return ranges


def holds_floats(model: onnx.ModelProto) -> bool:
    """Whether any float stands in a model: a weight, an attribute, an input, an output, or a cast to one."""
    values = (*model.graph.input, *model.graph.output)
    if any(value.type.tensor_type.elem_type in _FLOAT_CODES for value in values):
        return True
    if any(tensor.data_type in _FLOAT_CODES for tensor in tensors(model)):
        return True
    return any(
        attribute.floats
        or attribute.HasField("f")
        or (node.op_type == "Cast" and attribute.name == "to" and attribute.i in _FLOAT_CODES)
        for node in all_nodes(model)
        for attribute in node.attribute
    )
