"""The operators that split and lower texts, in another order than skl2onnx writes them.

skl2onnx lowers texts and then splits them. Python lowers the capital İ to an i and a dot above, which ends a word;
onnxruntime lowers it to an i alone. In texts that are split before they are lowered nothing is lost.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx

from paritygate.converter.exporters._sklearn.lowering import DOTTED_I
from paritygate.converter.exporters._sklearn.patterns import TokenPattern
from paritygate.converter.types import Array

LOCALE = "C.UTF-8"
"""A locale that knows all letters and is part of glibc since 2.35, and of Debian and Ubuntu before that."""


def settle_tokenizers(graph: onnx.GraphProto, patterns: Mapping[str, TokenPattern]) -> None:
    """Split texts before they are lowered, and fill short ones up with what is no word.

    Args:
        graph: What skl2onnx wrote; changes.
        patterns: By the expression that stands in the graph.
    """
    pad = _unknown(graph)
    lowering = {node.output[0]: node for node in graph.node if node.op_type == "StringNormalizer"}
    nodes: list[onnx.NodeProto] = []
    for node in graph.node:
        if node.op_type == "StringNormalizer":
            continue
        nodes.append(node)
        if node.op_type != "Tokenizer":
            continue
        _set(node, "pad_value", pad)
        before = lowering.get(node.input[0])
        if before is not None:
            node.input[0] = before.input[0]
            if not _attribute(before, "is_case_sensitive").i:
                hides = patterns[_attribute(node, "tokenexp").s.decode()].hides_dotted_i
                nodes += _lowered(graph, node, pad, hides=hides)
    del graph.node[:]
    graph.node.extend(nodes)


def _lowered(graph: onnx.GraphProto, node: onnx.NodeProto, pad: str, *, hides: bool) -> list[onnx.NodeProto]:
    """Operators that lower the tokens of a tokenizer; where told so, those with İ become unknown.

    Each text gets one that is no word, since StringNormalizer refuses to be given none.
    """
    texts, result = node.input[0], node.output[0]
    raw = node.output[0] = f"{result}_raw"
    made: list[onnx.NodeProto] = []

    def add(kind: str, inputs: list[str], name: str, **attributes: Any) -> str:
        made.append(onnx.helper.make_node(kind, inputs, [name], name=name, **attributes))
        return name

    def constant(array: Array, name: str) -> str:
        graph.initializer.append(onnx.numpy_helper.from_array(array, name))
        return name

    one_axis = constant(np.array([-1], np.int64), f"{result}_one_axis")
    column = constant(np.array([-1, 1], np.int64), f"{result}_column")
    rows = add("Shape", [add("Reshape", [texts, column], f"{result}_texts")], f"{result}_rows")
    none = add("Expand", [constant(np.array([[pad]], object), f"{result}_pad"), rows], f"{result}_pads")
    every = add("Concat", [raw, none], f"{result}_never_none", axis=1)
    shape = add("Shape", [every], f"{result}_shape")
    flat = add("Reshape", [every, one_axis], f"{result}_flat")
    if hides:
        flat = add(
            "Tokenizer",
            [flat],
            f"{result}_without_dotted",
            domain=node.domain,
            tokenexp=rf"\A[^{DOTTED_I}]+\z",
            mark=0,
            mincharnum=1,
            pad_value=pad,
        )
        flat = add("Reshape", [flat, one_axis], f"{result}_without_dotted_flat")
    options = {"case_change_action": "LOWER", "is_case_sensitive": 1, "locale": LOCALE}
    lower = add("StringNormalizer", [flat], f"{result}_lowered", **options)
    add("Reshape", [lower, shape], result)
    return made


def _unknown(graph: onnx.GraphProto) -> str:
    """A text that is no token of any vocabulary, not even a part of an n-gram."""
    known = {
        token.decode()
        for node in graph.node
        if node.op_type == "TfIdfVectorizer"
        for token in _attribute(node, "pool_strings").strings
    }
    pad = "#"
    while pad in known:
        pad += "#"
    return pad


def _attribute(node: onnx.NodeProto, name: str) -> onnx.AttributeProto:
    found: onnx.AttributeProto = next(attribute for attribute in node.attribute if attribute.name == name)
    return found


def _set(node: onnx.NodeProto, name: str, value: object) -> None:
    kept = [attribute for attribute in node.attribute if attribute.name != name]
    del node.attribute[:]
    node.attribute.extend([*kept, onnx.helper.make_attribute(name, value)])
