"""Forms of integer operators that onnxruntime computes exactly, in place of those that it does not.

Measured on onnxruntime 1.31.1 (x86-64): `Max`, `Min`, `Clip`, `ReduceMax` and `ReduceMin` of int64 compare the
lower halves of two numbers as if they were signed: of two timestamps in milliseconds within seven weeks of each
other, the earlier may be taken for the later. `Sign` is wrong from 2**31 to 2**32, a sum (`ReduceSum`, `ReduceL1`,
`ReduceSumSquare`) is added in float64, and so is the remainder of `Mod` with fmod, which is wrong above 2**53.
Sums are exact here up to 2**22 numbers of any size, and beyond as long as those of both halves stay below 2**53.
Not mended: `ReduceProd`, `ReduceMean` and `Pow` above 2**53, which parity reports where it meets them.
`Greater`, `Less`, `Where`, `Mod` without fmod, `Div`, `Abs`, `Add` and `Mul` are exact, and so are all of them on
numbers below 2**31, which is why sizes, computed from `Shape` and constants alone, keep their operators.

The lowest int32 or int64 divided by -1 makes the processor trap, which would end a whole server for one request.
So a divisor of -1 never reaches a kernel; the quotient wraps, and the rest is 0. A divisor of zero is an error.
"""

from __future__ import annotations

import math
from collections import ChainMap
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import onnx
import onnx.inliner

from paritygate.converter.graph.inspect import graphs, subgraphs

_HALF = 2**32
_FOLDED = {"Max": "Greater", "Min": "Less"}
_SUMS = ("ReduceSum", "ReduceL1", "ReduceSumSquare")
_DIVIDING = ("Div", "Mod")
_MENDED = (*_FOLDED, "Clip", "Sign", *_DIVIDING, "ReduceMax", "ReduceMin", *_SUMS)
_DIVISORS = 64
"""Elements of a constant divisor that are looked at."""
_SIZES = ("Shape", "Size")


def keep_integers_exact(model: onnx.ModelProto) -> None:
    """Replace, in a graph and its subgraphs, what would be inexact on the int64 numbers of a request.

    Local functions that hold such an operator are put where they are called: what a function's values hang on is
    another thing at each call.

    Args:
        model: Changed in place; opset 10 or later. Weights are not touched.
    """
    if any(
        node.op_type in _MENDED
        for function in model.functions
        for body in graphs(function)
        for node in body.node
    ):
        model.CopyFrom(onnx.inliner.inline_local_functions(model))
    everywhere = list(graphs(model.graph))
    if not any(node.op_type in _MENDED for graph in everywhere for node in graph.node):
        return
    used = {name for graph in everywhere for name in _names(graph)}
    _mend(model.graph, _typed(model), _Facts(ChainMap(), used=used))


def _names(graph: onnx.GraphProto) -> Iterator[str]:
    yield from (value.name for value in graph.input)
    yield from (tensor.name for tensor in graph.initializer)
    for node in graph.node:
        yield from (*node.input, *node.output)


def _mend(graph: onnx.GraphProto, typed: onnx.GraphProto, outer: _Facts) -> _Facts:
    """Mend a graph and what is inside it; gives what is known of its values.

    Args:
        graph: Changed in place.
        typed: The same graph, in which the types of values are told.
        outer: What is known of the values around it. Two branches may use one name for two values.
    """
    facts = outer.inside(graph, typed)
    for node, twin in zip(graph.node, typed.node, strict=True):
        inner = [_mend(*pair, facts) for pair in zip(subgraphs(node), subgraphs(twin), strict=True)]
        facts.follow(node, inner)
    if any(facts.is_to_mend(node) for node in graph.node):
        _rewrite(graph, facts)
    return facts


@dataclass
class _Facts:
    """What is known of the values of a graph and of those around it.

    Attributes:
        types: Element type by name.
        moving: Values that hang on the numbers of a request, and not on the sizes of its tensors alone.
        harmless: Divisors that are never -1.
        used: All names of the model, whatever the graph.
        outputs: The graph's own outputs.
    """

    types: ChainMap[str, int]
    moving: set[str] = field(default_factory=set)
    harmless: set[str] = field(default_factory=set)
    used: set[str] = field(default_factory=set)
    outputs: tuple[str, ...] = ()

    def inside(self, graph: onnx.GraphProto, typed: onnx.GraphProto) -> _Facts:
        """What is known inside one of the graphs of a node, before its own nodes are followed."""
        weights = {tensor.name: tensor for tensor in graph.initializer}
        inputs = {value.name for value in graph.input} - weights.keys()
        own = {*inputs, *weights, *(name for node in graph.node for name in node.output)}
        return _Facts(
            self.types.new_child(_told_types(typed)),
            (self.moving - own) | inputs,
            (self.harmless - own) | {name for name, tensor in weights.items() if _never_minus_one(tensor)},
            self.used,
            tuple(value.name for value in graph.output),
        )

    def follow(self, node: onnx.NodeProto, inner: Sequence[_Facts]) -> None:
        """Take note of what a node gives, whose graphs were followed."""
        if node.op_type == "Constant" and any(
            a.name == "value" and _never_minus_one(a.t) for a in node.attribute
        ):
            self.harmless |= set(node.output)
        moves = any(name in self.moving for name in node.input)
        moves |= any(name in facts.moving for facts in inner for name in facts.outputs)
        if moves and node.op_type not in _SIZES:
            self.moving |= set(node.output)

    def is_to_mend(self, node: onnx.NodeProto) -> bool:
        """Whether onnxruntime may get this operator wrong, or trap in it."""
        if node.op_type not in _MENDED or node.domain not in ("", "ai.onnx"):
            return False
        if not any(name in self.moving for name in node.input):
            return False
        return self._may_trap(node) or self._is_inexact(node)

    def _may_trap(self, node: onnx.NodeProto) -> bool:
        return (
            node.op_type in _DIVIDING
            and not _is_fmod(node)
            and self.types.get(node.input[0]) in (onnx.TensorProto.INT32, onnx.TensorProto.INT64)
            and node.input[1] not in self.harmless
        )

    def _is_inexact(self, node: onnx.NodeProto) -> bool:
        return (
            self.types.get(node.input[0]) == onnx.TensorProto.INT64
            and (node.op_type not in _FOLDED or len(node.input) > 1)
            and (node.op_type not in _DIVIDING or _is_fmod(node))
            # Until opset 18 their axes were an attribute, which ReduceSum does not have any more.
            and (
                node.op_type not in _SUMS
                or node.op_type == "ReduceSum"
                or all(a.name != "axes" for a in node.attribute)
            )
        )

    def fresh(self, stem: str) -> str:
        """A name that no value has."""
        name, number = stem, 1
        while name in self.used:
            number += 1
            name = f"{stem}_{number}"
        self.used.add(name)
        return name


def _is_fmod(node: onnx.NodeProto) -> bool:
    return node.op_type == "Mod" and any(a.name == "fmod" and a.i for a in node.attribute)


def _never_minus_one(tensor: onnx.TensorProto) -> bool:
    """Whether a constant of integers is small enough to look at, and holds no -1."""
    if tensor.data_type not in (onnx.TensorProto.INT32, onnx.TensorProto.INT64):
        return False
    if math.prod(tensor.dims) > _DIVISORS or tensor.data_location == onnx.TensorProto.EXTERNAL:
        return False
    return not bool((onnx.numpy_helper.to_array(tensor) == -1).any())


def _typed(model: onnx.ModelProto) -> onnx.GraphProto:
    """The graph with types told; inferred, without the weights' values, where the file does not tell them all."""
    if not _lacks_types(model.graph, ChainMap()):
        return model.graph
    bare = onnx.ModelProto(ir_version=model.ir_version, opset_import=model.opset_import)
    bare.functions.extend(model.functions)
    bare.graph.CopyFrom(_without_values(model.graph))
    return onnx.shape_inference.infer_shapes(bare).graph


def _lacks_types(graph: onnx.GraphProto, outer: ChainMap[str, int]) -> bool:
    types = outer.new_child(_told_types(graph))
    return any(
        (node.op_type in _MENDED and node.input[0] not in types)
        or any(_lacks_types(inner, types) for inner in subgraphs(node))
        for node in graph.node
    )


def _without_values(graph: onnx.GraphProto) -> onnx.GraphProto:
    """The same graph, its weights told by type and shape as if they were inputs."""
    bare = onnx.GraphProto(name=graph.name or "graph", node=graph.node, value_info=graph.value_info)
    known = {value.name for value in graph.input}
    bare.input.extend(graph.input)
    bare.output.extend(graph.output)
    for tensor in graph.initializer:
        if tensor.name not in known:
            bare.input.append(
                onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, list(tensor.dims))
            )
    return bare


def _told_types(graph: onnx.GraphProto) -> dict[str, int]:
    types = {tensor.name: tensor.data_type for tensor in graph.initializer}
    for value in (*graph.input, *graph.output, *graph.value_info):
        if value.type.HasField("tensor_type") and value.type.tensor_type.elem_type:
            types[value.name] = value.type.tensor_type.elem_type
    return types


def _rewrite(graph: onnx.GraphProto, facts: _Facts) -> None:
    nodes: list[onnx.NodeProto] = []
    for node in graph.node:
        nodes += _Writer(node, facts).written() if facts.is_to_mend(node) else [node]
    copies = [_copy(node) for node in nodes]  # `del` below would empty those that the graph owns
    del graph.node[:]
    graph.node.extend(copies)


def _copy(node: onnx.NodeProto) -> onnx.NodeProto:
    twin = onnx.NodeProto()
    twin.CopyFrom(node)
    return twin


class _Writer:
    """The exact form of one node, under the name and for the output of the node itself."""

    def __init__(self, node: onnx.NodeProto, facts: _Facts) -> None:
        self._node = node
        self._facts = facts
        self._nodes: list[onnx.NodeProto] = []

    def written(self) -> list[onnx.NodeProto]:
        """The nodes, in order."""
        forms: dict[str, Callable[[], str]] = {
            "Clip": self._clip, "Sign": self._sign, "Div": self._quotient, **dict.fromkeys(_SUMS, self._sum),
            "Mod": self._rest if _is_fmod(self._node) else self._modulo,
        }  # fmt: skip
        kind = self._node.op_type
        result = forms.get(kind, self._fold if kind in _FOLDED else self._extreme)()
        last = next(node for node in reversed(self._nodes) if result in node.output)
        last.output[0] = self._node.output[0]
        return self._nodes

    def _add(self, kind: str, *inputs: str, **attributes: Any) -> str:
        stem = self._node.name or self._node.output[0]
        output = self._facts.fresh(f"{stem}_exact")
        made = onnx.helper.make_node(kind, list(inputs), [output], name=output, **attributes)
        made.metadata_props.extend(self._node.metadata_props)
        self._nodes.append(made)
        return output

    def _constant(self, number: int) -> str:
        """A number of the type of the node's first input."""
        kind = self._facts.types[self._node.input[0]]
        return self._add("Constant", value=onnx.helper.make_tensor("", kind, [], [number]))

    def _larger(self, a: str, b: str) -> str:
        return self._add("Where", self._add("Greater", a, b), a, b)

    def _smaller(self, a: str, b: str) -> str:
        return self._add("Where", self._add("Less", a, b), a, b)

    def _fold(self) -> str:
        choose = self._larger if self._node.op_type == "Max" else self._smaller
        result: str = self._node.input[0]
        others = self._node.input[1:]
        for other in others:
            result = choose(result, other)
        return result

    def _clip(self) -> str:
        result, low, high = (*self._node.input, "", "")[:3]
        if low:
            result = self._larger(result, low)
        if high:
            result = self._smaller(result, high)
        return result if result != self._node.input[0] else self._add("Identity", result)

    def _sign(self) -> str:
        given, zero = self._node.input[0], self._constant(0)
        above, below = (self._whole(self._add(kind, given, zero)) for kind in ("Greater", "Less"))
        return self._add("Sub", above, below)

    def _whole(self, truth: str) -> str:
        return self._add("Cast", truth, to=onnx.TensorProto.INT64)

    def _rest(self) -> str:
        """The remainder with the dividend's sign, out of the one with the divisor's."""
        value, zero = self._node.input[0], self._constant(0)
        _, divisor = self._without_minus_one()
        rest = self._add("Mod", value, divisor)
        negative = self._add("Less", value, zero)
        other = self._add("Xor", negative, self._add("Less", rest, zero))
        moved = self._add("And", other, self._add("Not", self._add("Equal", rest, zero)))
        return self._add("Where", moved, self._add("Sub", rest, divisor), rest)

    def _without_minus_one(self) -> tuple[str, str]:
        """Whether the divisor is -1, and the divisor with 1 in those places."""
        divisor = self._node.input[1]
        if divisor in self._facts.harmless:
            return "", divisor
        minus_one = self._add("Equal", divisor, self._constant(-1))
        return minus_one, self._add("Where", minus_one, self._constant(1), divisor)

    def _quotient(self) -> str:
        minus_one, divisor = self._without_minus_one()
        quotient = self._add("Div", self._node.input[0], divisor)
        return self._add("Where", minus_one, self._add("Neg", quotient), quotient)

    def _modulo(self) -> str:
        _, divisor = self._without_minus_one()
        return self._add("Mod", self._node.input[0], divisor)

    def _halves(self, given: str) -> tuple[str, str]:
        """The upper half, from -2**31 to 2**31 - 1, and the lower one, from 0 to 2**32 - 1."""
        whole = self._constant(_HALF)
        low = self._add("Mod", given, whole)
        return self._add("Div", self._add("Sub", given, low), whole), low

    def _joined(self, high: str, low: str) -> str:
        return self._add("Add", self._add("Mul", high, self._constant(_HALF)), low)

    def _reduce(self, value: str, *, keepdims: bool | None = None) -> str:
        """The node's own reduction of something else; as long as that is below 2**31, or 2**53 for sums."""
        kind = "ReduceSum" if self._node.op_type in _SUMS else self._node.op_type
        made = self._add(kind, value, *self._node.input[1:])
        attributes = {attribute.name: attribute for attribute in self._node.attribute}
        if keepdims is not None:
            attributes["keepdims"] = onnx.helper.make_attribute("keepdims", int(keepdims))
        self._nodes[-1].attribute.extend(attributes.values())
        return made

    def _sum(self) -> str:
        term = self._node.input[0]
        if self._node.op_type == "ReduceL1":
            term = self._add("Abs", term)
        elif self._node.op_type == "ReduceSumSquare":
            term = self._add("Mul", term, term)
        high, low = self._signed_halves(term)
        return self._joined(self._reduce(high), self._reduce(low))

    def _signed_halves(self, given: str) -> tuple[str, str]:
        """Both from -2**31 to 2**31 - 1, so that a small number is its own lower half; what overflows wraps."""
        whole, middle = self._constant(_HALF), self._constant(_HALF // 2)
        low = self._add("Sub", self._add("Mod", self._add("Add", given, middle), whole), middle)
        return self._add("Div", self._add("Sub", given, low), whole), low

    def _extreme(self) -> str:
        """The largest upper half, and among its owners the largest lower half; both moved to below 2**31."""
        high, low = self._halves(self._node.input[0])
        middle = self._constant(_HALF // 2)
        worst = self._constant(-_HALF // 2 if self._node.op_type == "ReduceMax" else _HALF // 2 - 1)
        owns = self._add("Equal", high, self._reduce(high, keepdims=True))
        lowest = self._add("Where", owns, self._add("Sub", low, middle), worst)
        return self._joined(self._reduce(high), self._add("Add", self._reduce(lowest), middle))
