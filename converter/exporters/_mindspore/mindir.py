"""A MindIR program as it stands in its protobuf message, in terms of Python."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from paritygate.converter.errors import SourceError
from paritygate.converter.exporters._mindspore.values import (
    Abstract,
    Known,
    Many,
    UnknownType,
    Value,
    dtype_of_tensor,
)

_REFERENCE = "REF::"
_NUMBERS = (2, 3, 4, 5, 6, 7, 12, 13)
_OPEN_RANK = -2


@dataclass(frozen=True)
class Node:
    """One node of a graph.

    Attributes:
        output: The name of its value, unique in the program.
        called: The primitive, or the name of the graph or value that is called.
        primitive: Whether `called` is a primitive.
        inputs: Names of values.
        abstract: What MindSpore inferred: one, a list for tuples, or None where it is no tensor.
        attributes: Those of the primitive.
        scope: The path of cells, as MindSpore writes it.
    """

    output: str
    called: str
    primitive: bool
    inputs: tuple[str, ...]
    abstract: Any
    attributes: Mapping[str, Any]
    scope: str


@dataclass(frozen=True)
class Graph:
    """One function of a program."""

    name: str
    inputs: tuple[tuple[str, Any], ...]
    outputs: tuple[str, ...]
    nodes: Mapping[str, Node]
    constants: Mapping[str, Value]


@dataclass
class Program:
    """A whole program.

    Attributes:
        main: The graph that is run.
        functions: The graphs that it calls, by name.
        parameters: Names of the weights in the program -> their own names.
    """

    main: Graph
    functions: dict[str, Graph]
    parameters: dict[str, str] = field(default_factory=dict)

    def graphs(self) -> Iterator[Graph]:
        """All graphs, the main one first."""
        yield self.main
        yield from self.functions.values()

    def primitives(self) -> set[str]:
        """The names of all primitives in use."""
        return {node.called for graph in self.graphs() for node in graph.nodes.values() if node.primitive}


def program_of(model: Any) -> Program:
    """Read a MindIR message.

    Raises:
        SourceError: If it holds what no program of MindSpore has, such as a value that hangs on itself.
    """
    primitives = {p.name: (p.op_type, _attributes(p.attribute)) for p in model.primitives}
    functions = {graph.name: _graph(graph, primitives) for graph in model.functions}
    parameters = {p.name: own_name(p.name) for p in model.graph.parameter}
    program = Program(_graph(model.graph, primitives), functions, parameters)
    _refuse_circles(program)
    return program


def _refuse_circles(program: Program) -> None:
    """Refuse values that hang on themselves: a walk over them would never end.

    Raises:
        SourceError: Naming one.
    """
    nodes: dict[str, Node] = {}
    for graph in program.graphs():
        twice = nodes.keys() & graph.nodes.keys()
        if twice:
            raise SourceError(f"the MindIR program gives {min(twice)!r} in two graphs.")
        nodes |= graph.nodes
    waiting = {name: {each for each in node.inputs if each in nodes} for name, node in nodes.items()}
    users: dict[str, list[str]] = {}
    for name, inputs in waiting.items():
        for each in inputs:
            users.setdefault(each, []).append(name)
    ready = [name for name, inputs in waiting.items() if not inputs]
    while ready:
        done = ready.pop()
        del waiting[done]
        for user in users.get(done, ()):
            waiting[user].discard(done)
            if not waiting[user]:
                ready.append(user)
    if waiting:
        raise SourceError(f"the MindIR value {min(waiting)!r} hangs on itself.")


def own_name(parameter: str) -> str:
    """The name of a weight without that of its graph."""
    return parameter.partition(":")[2] or parameter


def _graph(graph: Any, primitives: Mapping[str, tuple[str, Mapping[str, Any]]]) -> Graph:
    nodes: dict[str, Node] = {}
    constants: dict[str, Value] = {}
    for node in graph.node:
        if len(node.output) != 1:
            raise SourceError(
                f"a node of the MindIR graph {graph.name!r} has {len(node.output)} outputs, not one."
            )
        if node.output[0] in nodes:
            raise SourceError(f"the MindIR graph {graph.name!r} gives {node.output[0]!r} twice.")
        if node.op_type == "Constant":
            constants[node.output[0]] = _constant(node)
        else:
            nodes[node.output[0]] = _node(node, primitives)
    inputs = tuple((value.name, _abstract_of_value(value)) for value in graph.input)
    if not graph.output:
        raise SourceError(f"the MindIR graph {graph.name!r} gives nothing.")
    return Graph(graph.name, inputs, tuple(value.name for value in graph.output), nodes, constants)


def _node(node: Any, primitives: Mapping[str, tuple[str, Mapping[str, Any]]]) -> Node:
    called = node.op_type.removeprefix(_REFERENCE)
    attributes = _attributes(node.attribute)
    primitive = called in primitives or not node.op_type.startswith(_REFERENCE)
    if called in primitives:
        called, own = primitives[called]
        attributes = {**own, **attributes}
    abstract = next((_abstract(each) for each in node.attribute if each.name == "shape"), None)
    return Node(node.output[0], called, primitive, tuple(node.input), abstract, attributes, node.domain)


def _constant(node: Any) -> Value:
    found = next((each for each in node.attribute if each.name == "value"), None)
    return Known(None) if found is None else _value(found)


def _attributes(attributes: Any) -> dict[str, Any]:
    return {each.name: _plain(_value(each)) for each in attributes if each.name != "shape"}


def _plain(value: Value) -> Any:
    if isinstance(value, Many):
        return tuple(_plain(item) for item in value.items)
    return value.value if isinstance(value, Known) else None


def _value(attribute: Any) -> Value:
    """A constant: a number, a text, None, an array, or a tuple of these."""
    kind = attribute.AttributeType.Name(attribute.type)
    if kind in ("TUPLE", "LIST"):
        return Many(tuple(_value(each) for each in attribute.values))
    if kind == "TENSORS":
        return Known(array_of_tensor(attribute.tensors[0]) if attribute.tensors else None)
    if kind == "TENSOR":
        return Known(array_of_tensor(attribute.t))
    if kind == "STRING":
        return Known(_only(attribute.s, attribute.strings).decode("utf-8", "replace"))
    if kind == "BOOL":
        return Known(bool(_only(attribute.i, attribute.ints)))
    if attribute.type in _NUMBERS:
        return Known(int(_only(attribute.i, attribute.ints)))
    if kind == "FLOAT":
        return Known(float(np.float32(_only(attribute.f, attribute.floats))))
    if kind == "DOUBLE":
        return Known(float(_only(attribute.d, attribute.doubles)))
    return Known(None)


def _only(single: Any, several: Any) -> Any:
    return several[0] if several else single


def array_of_tensor(tensor: Any) -> np.ndarray[Any, Any]:
    """The array of a tensor that holds its data.

    Raises:
        SourceError: If the data are not as many as the sizes say.
    """
    try:
        dtype = dtype_of_tensor(tensor.data_type)
    except UnknownType as error:
        raise SourceError(
            f"the MindIR tensor {tensor.name!r} has the element {error}, which is not known."
        ) from error
    check_size(tensor, len(tensor.raw_data), dtype)
    return np.frombuffer(tensor.raw_data, dtype).reshape(tuple(tensor.dims))


def check_size(tensor: Any, held: int, dtype: np.dtype[Any]) -> None:
    """Refuse a tensor whose data are not as many as its sizes say.

    Args:
        tensor: The message.
        held: How many bytes there are.
        dtype: The element type that it names.

    Raises:
        SourceError: Naming it.
    """
    count = int(np.prod(tensor.dims, dtype=object)) if tensor.dims else 1
    if held != count * dtype.itemsize or any(size < 0 for size in tensor.dims):
        raise SourceError(
            f"the MindIR tensor {tensor.name!r} holds {held} bytes, but its sizes {list(tensor.dims)} of {dtype} "
            f"need {count * dtype.itemsize}."
        )


def _abstract_of_value(value: Any) -> Any:
    if value.tensor:
        return _tensor_abstract(value.tensor[0], scalar=False)
    return _abstract(value.attr_info) if value.HasField("attr_info") else None


def _abstract(attribute: Any) -> Any:
    kind = attribute.AttributeType.Name(attribute.type)
    if kind in ("TUPLE", "LIST"):
        return [_abstract(each) for each in attribute.values]
    if kind in ("TENSORS", "SCALAR") and attribute.tensors:
        return _tensor_abstract(attribute.tensors[0], scalar=kind == "SCALAR")
    return None


def _tensor_abstract(tensor: Any, *, scalar: bool) -> Abstract | None:
    try:
        dtype = dtype_of_tensor(tensor.data_type)
    except UnknownType:
        return None
    if scalar:
        return Abstract(dtype, (), scalar=True)
    dims = list(tensor.dims)
    if _OPEN_RANK in dims:
        return Abstract(dtype, None)
    return Abstract(dtype, tuple(None if size < 0 else int(size) for size in dims))
