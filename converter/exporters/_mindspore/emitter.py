"""Write ONNX nodes: fresh names, constants, and the small conversions that every operator needs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import onnx

from paritygate.converter.exporters._mindspore.scopes import Scope
from paritygate.converter.exporters._mindspore.values import (
    Abstract,
    Known,
    Many,
    Shape,
    Tensor,
    Value,
    array_of,
    is_known,
    python_value,
)
from paritygate.converter.types import DType

Names = Sequence[str]
_WITH_GRAPHS = {"If", "Loop"}
_INT64: np.dtype[Any] = np.dtype(np.int64)


class NoForm(Exception):
    """Raised by an operator that has no ONNX form for these arguments; the text says why, to follow its name."""


class Refusing(Exception):
    """Raised by the translation of Python's `raise`: the branch that holds it gives no value."""


@dataclass
class Writer:
    """The nodes of one ONNX graph or subgraph, in order."""

    nodes: list[onnx.NodeProto] = field(default_factory=list)
    written: dict[tuple[Any, ...], list[str]] = field(default_factory=dict)

    def nested(self) -> Writer:
        """For a subgraph."""
        return Writer()


class Emitter:
    """Collects the nodes and constants of one model.

    Attributes:
        main: The outermost graph.
        initializers: Small constants; weights are added by the caller.
        kinds: What is known of tensors by their names.
    """

    def __init__(self, taken: Sequence[str]) -> None:
        self.main = Writer()
        self.initializers: list[onnx.TensorProto] = []
        self._taken = set(taken)
        self.kinds: dict[str, Abstract] = {}
        self._constants: dict[tuple[Any, ...], str] = {}
        self._counts: dict[str, int] = {}

    def fresh(self, stem: str) -> str:
        """A name that nothing has."""
        name = stem
        while name in self._taken:
            self._counts[stem] = self._counts.get(stem, 0) + 1
            name = f"{stem}_{self._counts[stem]}"
        self._taken.add(name)
        return name

    def constant(self, array: np.ndarray[Any, Any]) -> str:
        """The name of an initializer that holds an array; equal small arrays share one."""
        key = (str(array.dtype), array.shape, array.tobytes()) if array.size <= 64 else (id(array),)
        if key not in self._constants:
            name = self.fresh("const")
            self.initializers.append(_tensor(array, name))
            self._constants[key] = name
        return self._constants[key]

    def node(
        self, writer: Writer, op: str, inputs: Names, scope: Scope, *, outputs: int = 1, **attributes: Any
    ) -> list[str]:
        """Write a node; gives the names of its outputs."""
        # Every operator that we write is pure, so the same one on the same values is written once.
        key = (
            (op, tuple(inputs), outputs, repr(sorted(attributes.items())))
            if op not in _WITH_GRAPHS
            else (len(writer.nodes),)
        )
        if key in writer.written:
            return writer.written[key]
        stem = f"{scope.path.replace('.', '/')}/{op}".lstrip("/")
        name = self.fresh(stem)
        names = [self.fresh(f"{name}_out") for _ in range(outputs)]
        node = onnx.helper.make_node(op, list(inputs), names, name=name, **attributes)
        if scope.kind:
            node.metadata_props.add(key="namespace", value=f"{scope.path}: {scope.kind}")
        writer.nodes.append(node)
        writer.written[key] = names
        return names

    def with_rank(self, call: Call, value: Value) -> Value:
        """A value whose rank onnx infers where MindSpore leaves it open, as it does behind some pools."""
        if isinstance(value, Many):
            return Many(tuple(self.with_rank(call, item) for item in value.items))
        if not isinstance(value, Tensor):
            return value
        if value.abstract.shape is None:
            shape = inferred_shape(call.writer.nodes[call.start :], value.name, self.initializers, self.kinds)
            value = Tensor(value.name, replace(value.abstract, shape=shape))
        self.kinds[value.name] = value.abstract
        return value

    def branch(
        self,
        writer: Writer,
        condition: Value,
        branches: Sequence[tuple[Writer, Sequence[Value]]],
        kinds: Sequence[Abstract],
        scope: Scope,
    ) -> list[str]:
        """Write an If whose branches were written already; gives the names of its outputs."""
        asked = Call(self, writer, "Switch", (condition,), {}, None, scope)
        flag = asked.op(
            "Reshape", asked.cast(asked.name(condition), np.dtype(bool)), self.constant(array_of([]))
        )
        graphs = {}
        for key, (inner, values) in zip(("then_branch", "else_branch"), branches, strict=True):
            graphs[key] = self._subgraph(inner, values, kinds, scope, key)
        return self.node(writer, "If", [flag], scope, outputs=len(kinds), **graphs)

    def _subgraph(
        self, inner: Writer, values: Sequence[Value], kinds: Sequence[Abstract], scope: Scope, name: str
    ) -> onnx.GraphProto:
        call = Call(self, inner, "Switch", tuple(values), {}, None, scope)
        outputs = []
        for value, kind in zip(values, kinds, strict=True):
            given = call.op("Identity", call.cast(call.name(value, kind.dtype), kind.dtype, _dtype_of(value)))
            code = DType.from_numpy(kind.dtype).onnx
            outputs.append(onnx.helper.make_tensor_value_info(given, code, None))
        return onnx.helper.make_graph(inner.nodes, self.fresh(name), [], outputs)


def _dtype_of(value: Value) -> np.dtype[Any] | None:
    if isinstance(value, Tensor):
        return value.abstract.dtype
    return value.value.dtype if isinstance(value, Known) and isinstance(value.value, np.ndarray) else None


def _tensor(array: np.ndarray[Any, Any], name: str) -> onnx.TensorProto:
    code = DType.from_numpy(array.dtype).onnx
    if array.dtype.kind == "O":
        texts: Any = [str(each).encode() for each in array.ravel()]
        return onnx.helper.make_tensor(name, code, array.shape, texts)
    return onnx.helper.make_tensor(name, code, array.shape, np.ascontiguousarray(array).tobytes(), raw=True)


def inferred_shape(
    nodes: Sequence[onnx.NodeProto],
    name: str,
    constants: Sequence[onnx.TensorProto],
    kinds: Mapping[str, Abstract],
) -> Shape | None:
    """The sizes of a value that some nodes give, as far as onnx infers them."""
    used = {given for node in nodes for given in node.input}
    inputs = [
        onnx.helper.make_tensor_value_info(
            given, DType.from_numpy(kinds[given].dtype).onnx, kinds[given].shape
        )
        for given in sorted(used & set(kinds))
    ]
    held = [tensor for tensor in constants if tensor.name in used]
    graph = onnx.helper.make_graph(list(nodes), "part", inputs, [onnx.ValueInfoProto(name=name)], held)
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 18)])
    output = onnx.shape_inference.infer_shapes(model, data_prop=True).graph.output[0].type.tensor_type
    if not output.HasField("shape"):
        return None
    return tuple(dim.dim_value if dim.HasField("dim_value") else None for dim in output.shape.dim)


@dataclass(frozen=True)
class Call:
    """One primitive with its arguments, and the hand that writes what it becomes.

    Attributes:
        emitter: Names and constants of the model.
        writer: Where nodes go.
        primitive: Its name.
        inputs: Its arguments in order.
        attributes: What it was made with.
        abstract: What MindSpore inferred of its value.
        scope: Where in the model it stands.
        start: How many nodes the writer had before it.
    """

    emitter: Emitter
    writer: Writer
    primitive: str
    inputs: tuple[Value, ...]
    attributes: Any
    abstract: Any
    scope: Scope
    start: int = 0

    # --- arguments ----------------------------------------------------------------------------------------

    def has(self, index: int) -> bool:
        """Whether there is an argument at this place that is not None."""
        return index < len(self.inputs) and not (
            isinstance(self.inputs[index], Known) and self.inputs[index].value is None  # type: ignore[union-attr]
        )

    def static(self, index: int, default: Any = None) -> Any:
        """An argument that has to be known now, as Python's value; the default where it is missing or None.

        Raises:
            LookupError: If it is known only when the graph runs.
        """
        if not self.has(index):
            return default
        try:
            return python_value(self.inputs[index])
        except LookupError as error:
            raise LookupError(f"argument {index}") from error

    def array(self, index: int) -> np.ndarray[Any, Any] | None:
        """An argument that is a constant array, or None."""
        value = self.inputs[index]
        return np.asarray(value.value) if isinstance(value, Known) and value.value is not None else None

    def dtype(self, index: int) -> np.dtype[Any]:
        """The element type of an argument."""
        return self.dtype_of(self.inputs[index])

    def dtype_of(self, value: Value) -> np.dtype[Any]:
        """The element type of a value; Python's numbers count as bool, int64 and float32."""
        if isinstance(value, Tensor):
            return value.abstract.dtype
        if isinstance(value, Known):
            if isinstance(value.value, np.ndarray):
                dtype: np.dtype[Any] = value.value.dtype
                return dtype
            return np.dtype({bool: bool, int: np.int64}.get(type(value.value), np.float32))
        return (
            self.dtype_of(value.items[0]) if isinstance(value, Many) and value.items else np.dtype(np.int64)
        )

    def shape(self, index: int) -> tuple[int | None, ...]:
        """The sizes of an argument.

        Raises:
            LookupError: If its rank is open.
        """
        value = self.inputs[index]
        if isinstance(value, Tensor):
            if value.abstract.shape is None:
                raise LookupError(f"the rank of argument {index}")
            return value.abstract.shape
        if isinstance(value, Known):
            return tuple(np.asarray(value.value).shape)
        return (len(value.items),) if isinstance(value, Many) else ()

    def rank(self, index: int) -> int:
        """The number of axes of an argument."""
        return len(self.shape(index))

    @property
    def out(self) -> Abstract:
        """What MindSpore inferred of the value, where that is one tensor."""
        found = self.abstract[0] if isinstance(self.abstract, list) else self.abstract
        if not isinstance(found, Abstract):
            raise NoForm("gives something that is no tensor")
        return found

    # --- values as ONNX names -----------------------------------------------------------------------------

    def __getitem__(self, index: int) -> str:
        """The ONNX name of an argument."""
        return self.name(self.inputs[index])

    def name(self, value: Value, dtype: np.dtype[Any] | None = None) -> str:
        """The ONNX name of a value; a Python number becomes a constant of `dtype`, a tuple a vector."""
        if isinstance(value, Tensor):
            return value.name
        if isinstance(value, Known):
            if value.value is None or isinstance(value.value, str):
                raise NoForm(f"was given {value.value!r} where a tensor is needed")
            return self.emitter.constant(_as_array(value.value, dtype))
        if isinstance(value, Many):
            return self.vector(value, dtype or self.dtype_of(value))
        raise NoForm("was given a function where a tensor is needed")

    def like(self, index: int, dtype: np.dtype[Any]) -> str:
        """The ONNX name of an argument in this element type."""
        value = self.inputs[index]
        if isinstance(value, Known) and not isinstance(value.value, np.ndarray):
            return self.name(value, dtype)
        return self.cast(self.name(value, dtype), dtype, self.dtype_of(value))

    def vector(self, value: Value, dtype: np.dtype[Any] = _INT64) -> str:
        """A tuple, a vector or a number as the name of a tensor with one axis."""
        if is_known(value):
            return self.emitter.constant(np.atleast_1d(np.array(python_value(value), dtype)))
        if isinstance(value, Many):
            parts = [self.vector(item, dtype) for item in value.items]
            return parts[0] if len(parts) == 1 else self.op("Concat", *parts, axis=0)
        assert isinstance(value, Tensor)
        whole = self.cast(value.name, dtype, value.abstract.dtype)
        return whole if value.abstract.shape and len(value.abstract.shape) == 1 else self.reshape(whole, [-1])

    def ints(self, *numbers: int) -> str:
        """int64[n], a constant."""
        return self.emitter.constant(array_of(numbers))

    def number(self, value: float, dtype: np.dtype[Any]) -> str:
        """A constant without axes."""
        return self.emitter.constant(np.array(value, dtype))

    # --- nodes --------------------------------------------------------------------------------------------

    def op(self, op: str, *inputs: str, **attributes: Any) -> str:
        """Write a node with one output; gives its name."""
        return self.emitter.node(self.writer, op, inputs, self.scope, **attributes)[0]

    def ops(self, op: str, *inputs: str, outputs: int, **attributes: Any) -> list[str]:
        """Write a node with several outputs; gives their names."""
        return self.emitter.node(self.writer, op, inputs, self.scope, outputs=outputs, **attributes)

    def cast(self, name: str, dtype: np.dtype[Any], given: np.dtype[Any] | None = None) -> str:
        """A value in another element type; itself where it is known to have that type."""
        return name if given == dtype else self.op("Cast", name, to=DType.from_numpy(dtype).onnx)

    def reshape(self, name: str, sizes: Sequence[int]) -> str:
        """A value in other sizes; -1 is the rest, 0 keeps one."""
        return self.op("Reshape", name, self.ints(*sizes))

    def give(self, name: str) -> Tensor:
        """The value of this call, from the ONNX name of its one output."""
        return Tensor(name, self.out)

    def give_many(self, names: Names) -> Many:
        """The value of a call that gives a tuple."""
        kinds = self.abstract if isinstance(self.abstract, list) else [self.abstract] * len(names)
        if len(kinds) < len(names):
            raise NoForm(f"gives {len(kinds)} values where {len(names)} were expected")
        return Many(tuple(Tensor(name, kind) for name, kind in zip(names, kinds, strict=False)))


def _as_array(value: Any, dtype: np.dtype[Any] | None) -> np.ndarray[Any, Any]:
    if isinstance(value, np.ndarray):
        return value
    kind = dtype or np.dtype({bool: bool, int: np.int64}.get(type(value), np.float32))
    return np.array(value, kind)
