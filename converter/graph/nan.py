"""What a reader should know of NaN: operators of onnxruntime that pass over it in silence.

Measured on onnxruntime 1.31.1's CPU kernels: the largest of NaN and 3 is 3 in `ReduceMax`, `ReduceMin`,
`TopK`, `ArgMax`, `ArgMin`, `MaxPool` and `GlobalMaxPool`, depending on where the NaN stands; torch,
TensorFlow, JAX and numpy answer NaN, or its place. All other operators that were tried pass a NaN on. Probes
do not ask it (a sound model would be refused for inputs that nobody means to send), except where a source
takes NaN for a missing value, or the user's example holds it. A graph that puts a number in the place of NaN is
as little proven of it.
"""

from __future__ import annotations

from collections.abc import Iterator

import onnx

from paritygate.converter.graph.inspect import subgraphs

PASS_OVER_NAN = ("ArgMax", "ArgMin", "GlobalMaxPool", "MaxPool", "ReduceMax", "ReduceMin", "TopK")

_REMEDY = "Send none, or give samples that hold it (include_samples) to have it proven."


def nan_notes(model: onnx.ModelProto) -> list[str]:
    """Sentences for the manifest where a NaN in a request may end in a number that looks like any other."""
    if not any(_is_floating(value) for value in model.graph.input):
        return []
    kinds = set(_kinds(model.graph))
    found = sorted(kinds & set(PASS_OVER_NAN))
    notes = []
    if found:
        notes.append(
            f"NaN was not asked: onnxruntime passes over it in {', '.join(found)}, where the source may answer "
            f"NaN. {_REMEDY}"
        )
    if "IsNaN" in kinds:
        notes.append(
            "NaN was not asked, and the graph looks for it (IsNaN): what it puts in its place is not proven. "
            f"{_REMEDY}"
        )
    return notes


def _kinds(graph: onnx.GraphProto) -> Iterator[str]:
    for node in graph.node:
        if node.domain in ("", "ai.onnx"):
            yield node.op_type
        for inner in subgraphs(node):
            yield from _kinds(inner)


def _is_floating(value: onnx.ValueInfoProto) -> bool:
    kinds = onnx.TensorProto
    floats = (kinds.FLOAT, kinds.DOUBLE, kinds.FLOAT16, kinds.BFLOAT16)
    return value.type.tensor_type.elem_type in floats
