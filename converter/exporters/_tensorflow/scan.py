"""What the graph of a file could do, read as data before TensorFlow imports it.

Two rules. Every operator of the graph and of its function library is in the list of harmless ones
(`harmless.py`): importing a graph already runs some, wherever they stand. And the operators that restore
variables, which can name any file, do not stand where an answer or an initialiser comes from.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from paritygate.converter.errors import SourceError, UnsafeSource
from paritygate.converter.exporters._tensorflow.harmless import HARMLESS, SAVER, WAITS, is_gradient

_CONSTANT_LIMIT = 2**28
"""Elements of all constants that the file does not spell out, in sum."""


@dataclass(frozen=True)
class Graph:
    """A graph with its function library, as the protobuf messages of TensorFlow.

    Attributes:
        nodes: The nodes of the graph itself, by name.
        functions: Of each function of the library, its nodes.
    """

    nodes: Mapping[str, Any]
    functions: Mapping[str, list[Any]]

    @classmethod
    def of(cls, graph_def: Any) -> Graph:
        """Read a `GraphDef`."""
        functions = {f.signature.name: list(f.node_def) for f in graph_def.library.function}
        return cls({node.name: node for node in graph_def.node}, functions)

    def ancestors(self, names: Iterable[str]) -> dict[str, Any]:
        """The nodes that given nodes or tensors depend on, by data or by order, and these themselves."""
        found: dict[str, Any] = {}
        waiting = [node_of(name) for name in names]
        while waiting:
            name = waiting.pop()
            if name in found or name not in self.nodes:
                continue
            found[name] = self.nodes[name]
            waiting += [node_of(given) for given in self.nodes[name].input]
        return found

    def called(self, nodes: Iterable[Any]) -> set[str]:
        """The functions that nodes call, and those that these call in turn."""
        found: set[str] = set()
        waiting = [name for node in nodes for name in self._calls(node)]
        while waiting:
            name = waiting.pop()
            if name not in found:
                found.add(name)
                waiting += [inner for node in self.functions[name] for inner in self._calls(node)]
        return found

    def _calls(self, node: Any) -> Iterator[str]:
        if node.op in self.functions:
            yield node.op
        for value in node.attr.values():
            named = [value.func.name, *(func.name for func in value.list.func)]
            yield from (name for name in named if name in self.functions)


def node_of(tensor: str) -> str:
    """The name of the node that gives a tensor: `a/b` for `a/b`, `a/b:1` and `^a/b`."""
    return tensor.removeprefix("^").split(":")[0]


def refuse_unsafe(graph: Graph, path: object, *, trust: bool, with_saver: bool) -> None:
    """Refuse a graph that holds an operator outside the list of harmless ones.

    Args:
        graph: What would be imported.
        path: The file, for the text.
        trust: Whether it may do what it wants.
        with_saver: Whether the operators that save and restore variables are allowed.

    Raises:
        UnsafeSource: Naming the operator and where it stands.
        SourceError: If an operator belongs to a library that is not loaded here, or a constant is absurdly large.
    """
    refuse_huge(graph, path)
    for place, node in _everywhere(graph):
        _refuse_unknown(node, place, graph, path)
        allowed = node.op in _harmless() or node.op in graph.functions or is_gradient(node.op)
        if not (trust or allowed or (with_saver and node.op in SAVER)):
            raise UnsafeSource(
                f"{path} uses the operator {node.op} in {place}, which is not among those known to touch no file "
                "and call no code, so it was not loaded. Pass --trust (trust=True) if you trust its origin."
            )


def refuse_saver(graph: Graph, nodes: Iterable[Any], where: str, path: object, *, trust: bool) -> None:
    """Refuse operators that read or write variables by file name among nodes that run, and what these call.

    Raises:
        UnsafeSource: Naming the operator.
    """
    nodes = list(nodes)
    inner = (node for name in graph.called(nodes) for node in graph.functions[name])
    for node in (*nodes, *inner):
        if node.op in SAVER and not trust:
            raise UnsafeSource(
                f"{path} uses the operator {node.op} ({node.name}) {where}, where it could read or write any "
                "file, so it was not loaded. Pass --trust (trust=True) if you trust its origin."
            )


@cache
def _harmless() -> frozenset[str]:
    import tf2onnx.tfonnx  # noqa: F401 - registers the handlers
    from tf2onnx.handler import tf_op

    known = tf_op.create_mapping(18, {})
    return (HARMLESS | frozenset(known)) - WAITS


def _everywhere(graph: Graph) -> Iterator[tuple[str, Any]]:
    for node in graph.nodes.values():
        yield f"node {node.name!r}", node
    for function, nodes in graph.functions.items():
        for node in nodes:
            yield f"node {node.name!r} of function {function!r}", node


def _refuse_unknown(node: Any, place: str, graph: Graph, path: object) -> None:
    from tensorflow.python.framework import op_def_registry

    if node.op not in graph.functions and op_def_registry.get(node.op) is None:
        raise SourceError(
            f"{path} uses the operator {node.op} in {place}, which this TensorFlow does not have. If a library of "
            "operators brings it, load that in your own script and export the model there (export_model)."
        )


def refuse_huge(graph: Graph, path: object) -> None:
    """Refuse constants of one repeated value: they take no room in a file, and any room once they are imported.

    Raises:
        SourceError: If their elements are more than `_CONSTANT_LIMIT` in sum.
    """
    total = 0
    for place, node in _everywhere(graph):
        if node.op != "Const":
            continue
        tensor = node.attr["value"].tensor
        sizes = [dim.size for dim in tensor.tensor_shape.dim]
        count = math.prod(max(size, 0) for size in sizes)
        total += count if count > tensor.ByteSize() else 0
        if total > _CONSTANT_LIMIT:
            raise SourceError(
                f"{path} holds a constant of shape {sizes} in {place}, and with those before it {total} elements "
                "that it does not spell out; no model is built so."
            )
