"""What paddle computes by log1p and expm1, in the forms of `exporters/near_zero.py`.

paddle2onnx writes log1p as log(1 + x), in which nothing tells it from a user's own, the logarithm of a sigmoid as
it reads, and expm1 not at all. It is not ours to change, so it is told of another operator with one input and no
attributes that the program does not have, and the nodes that come of that one are replaced.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from paritygate.converter.exporters import near_zero

Form = Callable[[near_zero.Writer, Any], Any]

_FORMS: Mapping[str, Form] = {
    "1.log1p": near_zero.log1p,
    "1.expm1": near_zero.expm1,
    "1.logsigmoid": near_zero.log_sigmoid,
}
_DTYPES: Mapping[str, np.dtype[Any]] = {"0.t_f32": np.dtype(np.float32), "0.t_f64": np.dtype(np.float64)}
_STANDINS: Mapping[str, str] = {
    "1.acos": "Acos", "1.asin": "Asin", "1.atan": "Atan", "1.tan": "Tan", "1.cosh": "Cosh", "1.sinh": "Sinh",
}  # fmt: skip
"""Operators of a program, and the ONNX operator that each alone becomes."""

Meant = dict[str, tuple[Form, "np.dtype[Any]"]]
"""By ONNX operator: the form that its nodes stand for, and the type that they compute in."""


def stood_in(document: Any) -> tuple[Any, Meant]:
    """A program with stand-ins, and what they mean; one that has no stand-in left keeps its operators."""
    used = set(_kinds(document))
    free = [name for name in _STANDINS if name not in used and f"{name}_" not in used]
    chosen: dict[tuple[str, str], str] = {}

    def replaced(value: Any) -> Any:
        if isinstance(value, list):
            return [replaced(item) for item in value]
        if not isinstance(value, dict):
            return value
        twin = {key: replaced(item) for key, item in value.items()}
        own = str(value.get("#")).removesuffix("_")  # with it, the operator works in place
        if own in _FORMS and "O" in value:
            key = (own, value["O"][0]["TT"]["D"][0]["#"])
            if key[1] in _DTYPES and (key in chosen or free):
                twin["#"] = chosen[key] if key in chosen else chosen.setdefault(key, free.pop(0))
        return twin

    document = replaced(document)
    return document, {_STANDINS[name]: (_FORMS[own], _DTYPES[kind]) for (own, kind), name in chosen.items()}


def _kinds(value: Any) -> Iterator[str]:
    parts = value if isinstance(value, list) else value.values() if isinstance(value, dict) else ()
    for part in parts:
        yield from _kinds(part)
    if isinstance(value, dict) and "O" in value:
        yield str(value.get("#"))


class _InGraph:
    """See `near_zero.Writer`: nodes in the place of one node, constants in the outermost graph."""

    def __init__(self, main: onnx.GraphProto, node: onnx.NodeProto, dtype: np.dtype[Any]) -> None:
        self._main = main
        self._stem = node.output[0]
        self._dtype = dtype
        self.eps = float(np.finfo(dtype).eps)
        self.nodes: list[onnx.NodeProto] = []

    def op(self, operator: str, *inputs: str) -> str:
        name = f"{self._stem}_near_zero_{len(self.nodes)}"
        self.nodes.append(helper.make_node(operator, inputs, [name], name=name))
        return name

    def number(self, value: float) -> str:
        name = f"near_zero_{self._dtype}_{value}"
        if all(tensor.name != name for tensor in self._main.initializer):
            self._main.initializer.append(numpy_helper.from_array(np.array(value, self._dtype), name))
        return name


def replace_stand_ins(model: onnx.ModelProto, meant: Meant) -> None:
    """Write the forms where stand-ins are, in inner graphs too."""
    if meant:
        _replace_in(model.graph, model.graph, meant)


def _replace_in(graph: onnx.GraphProto, main: onnx.GraphProto, meant: Meant) -> None:
    nodes: list[onnx.NodeProto] = []
    for node in graph.node:
        for attribute in node.attribute:
            for inner in (*attribute.graphs, *([attribute.g] if attribute.HasField("g") else [])):
                _replace_in(inner, main, meant)
        twin = onnx.NodeProto()
        twin.CopyFrom(node)
        nodes.extend(_written(main, twin, *meant[node.op_type]) if node.op_type in meant else [twin])
    del graph.node[:]
    graph.node.extend(nodes)


def _written(
    main: onnx.GraphProto, node: onnx.NodeProto, form: Form, dtype: np.dtype[Any]
) -> list[onnx.NodeProto]:
    write = _InGraph(main, node, dtype)
    form(write, node.input[0])
    write.nodes[-1].output[0] = node.output[0]
    return write.nodes
