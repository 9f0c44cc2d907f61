"""Frozen graphs (`.pb`): a `GraphDef` whose weights are constants, without a word on what goes in and out.

Inputs are its placeholders, outputs its sinks: nodes whose results nothing in it takes. Names that stand in the
graph choose others: `input_names` and `output_names` that are names of nodes (or tensors, `node:1`) cut it there,
other names only rename. A `PlaceholderWithDefault` keeps its default unless `input_names` names it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from paritygate.converter.checkpoints.files import file_sha256
from paritygate.converter.config import ExportConfig
from paritygate.converter.errors import SourceError
from paritygate.converter.exporters._tensorflow.imports import first_line
from paritygate.converter.exporters._tensorflow.model import TensorFlowModel
from paritygate.converter.exporters._tensorflow.modules import open_specs
from paritygate.converter.exporters._tensorflow.scan import Graph, node_of, refuse_unsafe
from paritygate.converter.exporters._tensorflow.structure import unused_name
from paritygate.converter.exporters.base import SourceModel, Weights

_NO_ANSWER = frozenset(
    {"NoOp", "Assert", "Const", "Placeholder", "PlaceholderWithDefault", "PlaceholderV2", "SaveV2", "RestoreV2",
     "Save", "Assign", "AssignAdd", "AssignSub", "AssignVariableOp", "Print", "PrintV2", "VariableV2",
     "VarHandleOp"}
)  # fmt: skip
_VARIABLES = frozenset({"Variable", "VariableV2", "VarHandleOp"})
_HANDS_ON = frozenset({"Identity", "IdentityN", "PartitionedCall", "StatefulPartitionedCall"})


def open_frozen(path: Path, config: ExportConfig) -> SourceModel:
    """Import the part of a frozen graph that its answers come from.

    Raises:
        UnsafeSource: If that part could run code or touch files and it is not trusted.
        SourceError: If it is damaged, not frozen, or nothing in it is an input or an output.
    """
    graph_def = _read(path)
    whole = Graph.of(graph_def)
    fetches = _chosen(config.output_names, whole, path) or _sinks(whole, path)
    part = _part(graph_def, whole, fetches)
    feeds = _chosen(config.input_names, whole, path)
    feeds = feeds or [node.name for node in part.node if node.op in ("Placeholder", "PlaceholderV2")]
    _refuse_unfrozen(part, feeds, path)
    refuse_unsafe(Graph.of(part), path, trust=config.trust, with_saver=False)
    model = open_part(part, feeds, fetches, config, Weights("as in the frozen graph", file_sha256(path)))
    model.constant_bytes = path.stat().st_size
    return model


def open_part(
    graph_def: Any,
    feeds: Sequence[str],
    fetches: Sequence[str],
    config: ExportConfig,
    weights: Weights,
    names: tuple[Sequence[str], Sequence[str]] | None = None,
) -> TensorFlowModel:
    """A graph of constants as a model from some of its tensors to others.

    Args:
        graph_def: The graph.
        feeds: The tensors or nodes that go in, in order.
        fetches: The tensors or nodes that come out.
        config: The user's words on sizes, and an example.
        weights: Where the weights are from.
        names: What inputs and outputs are called; None makes names out of those of the nodes.

    Raises:
        SourceError: If TensorFlow cannot import it.
    """
    import tensorflow as tf

    try:
        wrapped = tf.compat.v1.wrap_function(lambda: tf.import_graph_def(graph_def, name=""), [])
    except Exception as error:
        raise SourceError(f"the graph cannot be imported by TensorFlow: {first_line(error)}") from error
    tensors = [wrapped.graph.as_graph_element(_tensor(name)) for name in feeds]
    answers = [tensor for name in fetches for tensor in _results(wrapped.graph, name)]
    pruned = wrapped.prune(tensors, answers)
    graph = Graph.of(graph_def)
    given, said = names or (
        _plain_names(feeds, graph, "input"), _plain_names([tensor.name for tensor in answers], graph, "output"),
    )  # fmt: skip
    specs = [(n, tf.TensorSpec(t.shape, t.dtype)) for n, t in zip(given, tensors, strict=True)]
    model = open_specs(lambda *given: list(pruned(*given)), specs, config, weights)
    model.positional_names = said
    return model


def _read(path: Path) -> Any:
    from google.protobuf.message import DecodeError
    from tensorflow.core.framework import graph_pb2

    graph_def = graph_pb2.GraphDef()
    try:
        graph_def.ParseFromString(path.read_bytes())
    except DecodeError as error:
        raise SourceError(
            f"{path} is damaged or half written ({first_line(error)}). Freeze the graph again."
        ) from error
    return graph_def


def _chosen(names: Sequence[str] | None, graph: Graph, path: Path) -> list[str]:
    """The user's names, if they are names of the graph; empty if they only rename."""
    known = [name for name in names or () if node_of(name) in graph.nodes]
    if known and names is not None and len(known) != len(names):
        strange = [name for name in names if name not in known]
        raise SourceError(
            f"{path} has a node {known[0]!r}, but none that is called {strange[0]!r}; give names of its nodes "
            "alone, which choose its inputs or outputs, or new names alone."
        )
    return known


def _sinks(graph: Graph, path: Path) -> list[str]:
    taken = {
        node_of(name) for node in graph.nodes.values() for name in node.input if not name.startswith("^")
    }
    sinks = [n.name for n in graph.nodes.values() if n.name not in taken and n.op not in _NO_ANSWER]
    if not sinks:
        raise SourceError(
            f"{path} has no node that is an output. Name it: --output-name NODE (output_names=)."
        )
    return sinks


def _part(graph_def: Any, whole: Graph, fetches: Iterable[str]) -> Any:
    """The nodes that answers depend on, and the functions that these call."""
    kept = whole.ancestors(fetches)
    called = whole.called(kept.values())
    part = type(graph_def)(versions=graph_def.versions)
    part.node.extend(node for node in graph_def.node if node.name in kept)
    part.library.function.extend(f for f in graph_def.library.function if f.signature.name in called)
    return part


def _refuse_unfrozen(part: Any, feeds: Sequence[str], path: Path) -> None:
    variables = [node.name for node in part.node if node.op in _VARIABLES]
    if variables:
        raise SourceError(
            f"{path} is not frozen: its variable {variables[0]!r} ({len(variables)} in all) has no value in it. "
            "Freeze it, or export the SavedModel or checkpoint that it belongs to."
        )
    if not feeds:
        raise SourceError(f"{path} has no placeholder. Name what goes in with input_names=, as nodes of it.")


def _tensor(name: str) -> str:
    return name if ":" in name else f"{name}:0"


def _results(graph: Any, name: str) -> list[Any]:
    return [graph.as_graph_element(name)] if ":" in name else list(graph.as_graph_element(name).outputs)


# --- names --------------------------------------------------------------------------------------------------


def _plain_names(tensors: Sequence[str], graph: Graph, otherwise: str) -> list[str]:
    names: list[str] = []
    for tensor in tensors:
        names.append(unused_name(_plain(graph.nodes[node_of(tensor)], graph) or otherwise, set(names)))
    return names


def _plain(node: Any, graph: Graph) -> str:
    """The last part of a name that a person gave: not an operator's own, nor one that only hands on."""
    seen: set[str] = set()
    while node.op in _HANDS_ON and _is_counted(node.name.rsplit("/", 1)[-1], node.op) and node.input:
        if node.name in seen or node_of(node.input[0]) not in graph.nodes:
            break
        seen.add(node.name)
        node = graph.nodes[node_of(node.input[0])]
    parts = [
        part for part in node.name.split("/") if part not in ("StatefulPartitionedCall", "PartitionedCall")
    ]
    while parts and _is_counted(parts[-1], node.op):
        parts.pop()
    return parts[-1].removeprefix("serving_default_") if parts else ""


def _is_counted(part: str, operator: str) -> bool:
    return re.fullmatch(rf"{re.escape(operator)}(_\d+)?(:\d+)?", part) is not None
