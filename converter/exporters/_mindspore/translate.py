"""Translate a MindIR program into an ONNX graph: the walk over graphs, calls, branches and loops.

A value is translated when an output needs it, inputs first, so that the order of the ONNX nodes hangs on the
program alone and never on MindSpore's numbering, and what only keeps an order of effects (UpdateState) vanishes.
What each primitive becomes stands in `operators/`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from paritygate.converter.errors import ExportError
from paritygate.converter.exporters._mindspore.emitter import Call, Emitter, NoForm, Refusing, Writer
from paritygate.converter.exporters._mindspore.mindir import Graph, Node, Program
from paritygate.converter.exporters._mindspore.operators import OPERATORS
from paritygate.converter.exporters._mindspore.scopes import Scope
from paritygate.converter.exporters._mindspore.values import (
    Abstract,
    Choice,
    Function,
    Known,
    Many,
    Tensor,
    Value,
    is_known,
    python_value,
)

_ORDER_ONLY = {"Load", "Depend"}
"""Primitives that give their first input; the others keep an order of effects."""

_MAKERS = {"MakeTuple", "MakeList", "make_tuple", "make_list"}

STRUCTURE = frozenset({"UpdateState", "Partial", "Switch", "Return", "return", *_ORDER_ONLY, *_MAKERS})
"""Primitives that are no operators: what the walk itself takes care of."""

MAX_TRANSLATED = 300_000
"""Nodes with every call of a graph written out; more come from graphs that call each other to exhaust whoever
expands them."""

MAX_DEPTH = 128
"""Graphs that are called one inside the other."""

Unsupported = Callable[[Node, str], ExportError]
"""Makes the error for a node that has no ONNX form, from the node and the reason."""


@dataclass
class _Frame:
    """One call of a graph."""

    graph: Graph
    writer: Writer
    values: dict[str, Value] = field(default_factory=dict)
    caller: _Frame | None = None

    def chain(self) -> Iterator[_Frame]:
        frame: _Frame | None = self
        while frame is not None:
            yield frame
            frame = frame.caller


class Translator:
    """Translates one program.

    Attributes:
        refuses: The cells that raise an error for some inputs, which a graph cannot do.
    """

    def __init__(self, program: Program, emitter: Emitter, unsupported: Unsupported) -> None:
        self._program = program
        self._emitter = emitter
        self._unsupported = unsupported
        self.refuses: set[str] = set()
        self._translated = 0
        self._constants: dict[str, Value] = {}
        for graph in program.graphs():
            self._constants |= graph.constants

    def outputs(self, inputs: Sequence[Tensor], weights: Mapping[str, Tensor]) -> list[Value]:
        """Write the whole program; gives its outputs, tuples flattened.

        Args:
            inputs: The graph inputs, in order.
            weights: The weights by their names in the program.
        """
        frame = _Frame(self._program.main, self._emitter.main)
        names = (name for name, _ in self._program.main.inputs)
        frame.values |= dict(zip(names, inputs, strict=True))
        frame.values |= weights
        return [leaf for name in frame.graph.outputs for leaf in flat(self._evaluate(name, frame))]

    # --- values -------------------------------------------------------------------------------------------

    def _evaluate(self, name: str, frame: _Frame) -> Value:
        """The value of a name; without recursion over nodes, since an unrolled loop is thousands deep."""
        pending = [name]
        while pending:
            current = pending[-1]
            if self._found(current, frame) is not None:
                pending.pop()
                continue
            owner, node = self._node(current, frame)
            missing = [each for each in _needed(node) if self._found(each, owner) is None]
            if missing:
                pending.extend(reversed(missing))
                continue
            owner.values[current] = self._translate(node, owner)
            pending.pop()
        found = self._found(name, frame)
        assert found is not None
        return found

    def _found(self, name: str, frame: _Frame) -> Value | None:
        for each in frame.chain():
            if name in each.values:
                return each.values[name]
        if name in self._constants:
            return self._constants[name]
        return Function(name, ()) if name in self._program.functions else None

    def _node(self, name: str, frame: _Frame) -> tuple[_Frame, Node]:
        for each in frame.chain():
            if name in each.graph.nodes:
                return each, each.graph.nodes[name]
        raise ExportError(f"the MindIR graph {frame.graph.name!r} uses {name!r}, which nothing gives.")

    def _translate(self, node: Node, frame: _Frame) -> Value:
        self._translated += 1
        if self._translated > MAX_TRANSLATED:
            raise ExportError(
                f"the MindIR program has more than {MAX_TRANSLATED:,} nodes once its calls are written out; no "
                "model is built so."
            )
        if not node.primitive:
            callee = self._evaluate(node.called, frame)
            return self._call(callee, [self._evaluate(each, frame) for each in node.inputs], frame, node)
        if node.called in _ORDER_ONLY:
            return self._evaluate(node.inputs[0], frame)
        if node.called == "UpdateState":
            return Known(None)  # a token of order, where one is handed to a function
        inputs = [self._evaluate(each, frame) for each in node.inputs]
        if node.called == "Partial":
            function = inputs[0]
            assert isinstance(function, Function)
            return Function(function.graph, (*function.bound, *inputs[1:]))
        if node.called == "Switch":
            return self._switch(inputs)
        if node.called in _MAKERS:
            return Many(tuple(inputs))
        return self._operator(node, inputs, frame)

    def _operator(self, node: Node, inputs: list[Value], frame: _Frame) -> Value:
        handler = OPERATORS.get(node.called)
        if handler is None:
            raise self._unsupported(node, "has no ONNX form in this exporter")
        call = Call(
            self._emitter,
            frame.writer,
            node.called,
            tuple(inputs),
            node.attributes,
            node.abstract,
            Scope.parse(node.scope),
            start=len(frame.writer.nodes),
        )
        try:
            return self._emitter.with_rank(call, handler(call))
        except NoForm as error:
            raise self._unsupported(node, str(error)) from error
        except LookupError as error:
            raise self._unsupported(
                node, f"needs an argument that is known only when the graph runs ({error})"
            ) from error

    def _switch(self, inputs: Sequence[Value]) -> Value:
        condition, yes, no = inputs
        if is_known(condition):
            return yes if python_value(condition) else no
        return Choice(condition, yes, no)

    # --- calls --------------------------------------------------------------------------------------------

    def _call(self, callee: Value, arguments: Sequence[Value], frame: _Frame, node: Node) -> Value:
        if isinstance(callee, Choice):
            return self._if(callee, arguments, frame, node)
        if not isinstance(callee, Function):
            raise self._unsupported(node, "calls something that is no function")
        given = (*callee.bound, *arguments)
        graph = self._program.functions[callee.graph]
        callers = [each.graph.name for each in frame.chain()]
        if len(callers) > MAX_DEPTH:
            raise ExportError(f"the MindIR program calls more than {MAX_DEPTH} graphs one inside the other.")
        if graph.name in callers:
            raise self._unsupported(
                node,
                "is a loop whose number of rounds hangs on the values of tensors, which is not converted",
            )
        return self._evaluate(graph.outputs[0], self._enter(graph, given, frame, frame.writer))

    def _enter(self, graph: Graph, given: Sequence[Value], caller: _Frame, writer: Writer) -> _Frame:
        frame = _Frame(graph, writer, caller=caller)
        # What is left over of the arguments are weights and tokens of order, which are found by name.
        frame.values |= {name: value for (name, _), value in zip(graph.inputs, given, strict=False)}
        return frame

    def _if(self, choice: Choice, arguments: Sequence[Value], frame: _Frame, node: Node) -> Value:
        branches = [self._branch(each, arguments, frame, node) for each in (choice.yes, choice.no)]
        given = [branch for branch in branches if branch is not None]
        if not given:
            raise Refusing
        if len(given) == 1:  # the other one raises an error, which no graph can: this one is all there is
            self.refuses.add(str(Scope.parse(node.scope)))
            return self._call(choice.yes if branches[1] is None else choice.no, arguments, frame, node)
        kinds = _abstracts(node.abstract)
        leaves = [flat(value) for _, value in given]
        if len(leaves[0]) != len(leaves[1]) or len(kinds) != len(leaves[0]):
            raise self._unsupported(node, "gives other outputs in one branch than in the other")
        written = [(writer, values) for (writer, _), values in zip(given, leaves, strict=True)]
        names = self._emitter.branch(frame.writer, choice.condition, written, kinds, Scope.parse(node.scope))
        return _rebuilt(
            given[0][1], iter([Tensor(name, kind) for name, kind in zip(names, kinds, strict=True)])
        )

    def _branch(
        self, callee: Value, arguments: Sequence[Value], frame: _Frame, node: Node
    ) -> tuple[Writer, Value] | None:
        """One branch in nodes of its own, or None where it raises an error."""
        writer = frame.writer.nested()
        try:
            return writer, self._call(callee, arguments, _Frame(frame.graph, writer, caller=frame), node)
        except Refusing:
            return None


def _needed(node: Node) -> Sequence[str]:
    if node.primitive and node.called in _ORDER_ONLY:
        return node.inputs[:1]
    if node.primitive and node.called == "UpdateState":
        return ()
    return node.inputs if node.primitive else (node.called, *node.inputs)


def flat(value: Value) -> list[Value]:
    """The leaves of nested tuples, in order."""
    return [leaf for item in value.items for leaf in flat(item)] if isinstance(value, Many) else [value]


def _abstracts(abstract: Any) -> list[Abstract]:
    if isinstance(abstract, list):
        return [leaf for part in abstract for leaf in _abstracts(part)]
    return [] if abstract is None else [abstract]


def _rebuilt(like: Value, leaves: Iterator[Tensor]) -> Value:
    if isinstance(like, Many):
        return Many(tuple(_rebuilt(item, leaves) for item in like.items))
    return next(leaves)
