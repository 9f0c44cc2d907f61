"""What skl2onnx wrote, brought to the form of the source's own answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import onnx

from paritygate.converter.errors import ExportError
from paritygate.converter.types import DType, Feeds, TensorSpec


def keep_outputs(graph: onnx.GraphProto, answers: Feeds, opset: int, *, narrow: bool) -> None:
    """Make the graph give what the source gives, in rank too; what the source was not asked for goes.

    Args:
        graph: What skl2onnx wrote; changes.
        answers: What the source gives.
        opset: Version of the default operator set.
        narrow: Whether floats are given as float32 although the graph computes in float64.

    Raises:
        ExportError: If the graph gives fewer outputs, or one that is no tensor.
    """
    given = list(graph.output)
    if len(given) < len(answers):
        raise ExportError(
            f"skl2onnx gives the outputs {[v.name for v in given]}, the source {list(answers)}."
        )
    kept = []
    # These operators give float32 whatever they are given; float64 would promise digits that are not there.
    narrow = narrow or any(node.op_type.startswith("TreeEnsemble") for node in graph.node)
    for value, (name, answer) in zip(given, answers.items(), strict=False):
        rank = len(value.type.tensor_type.shape.dim)
        if not value.type.HasField("tensor_type"):
            raise ExportError(f"skl2onnx gives {name!r} as a sequence or map, not as a tensor.")
        if rank == 2 and answer.ndim == 1:
            value = _squeezed(graph, value, opset)
        elif rank != answer.ndim:
            # skl2onnx declares one axis for the labels of several classes at once, and gives two, as it should.
            value.type.tensor_type.ClearField("shape")
        if narrow and value.type.tensor_type.elem_type == onnx.TensorProto.DOUBLE:
            value = _narrowed(graph, value)
        kept.append(value)
    del graph.output[:]
    graph.output.extend(kept)


def widened_beside_bools(specs: Sequence[TensorSpec]) -> list[TensorSpec]:
    """The inputs to tell skl2onnx: it joins bools and int32 columns as bools, but bools and int64 as numbers."""
    if not any(spec.dtype is DType.BOOL for spec in specs):
        return list(specs)
    return [replace(spec, dtype=DType.INT64) if spec.dtype is DType.INT32 else spec for spec in specs]


def in_float64(specs: Sequence[TensorSpec]) -> list[TensorSpec]:
    """The inputs to tell skl2onnx where the graph shall compute in float64 whatever it takes."""
    return [
        replace(spec, dtype=DType.FLOAT64) if spec.dtype is DType.FLOAT32 else spec
        for spec in widened_beside_bools(specs)
    ]


def check_types(model: onnx.ModelProto) -> None:
    """Refuse a graph whose operators are given types that they do not take.

    Raises:
        ExportError: If one is.
    """
    asked = onnx.ModelProto()
    asked.CopyFrom(model)
    for value in asked.graph.output:  # skl2onnx declares some of their sizes wrongly
        value.type.tensor_type.ClearField("shape")
    try:
        onnx.shape_inference.infer_shapes(asked, check_type=True, strict_mode=True)
    except onnx.shape_inference.InferenceError as error:
        raise ExportError(f"skl2onnx wrote a graph that onnx refuses: {error}") from error


def narrow_inputs(graph: onnx.GraphProto, specs: Sequence[TensorSpec]) -> None:
    """Let the graph take the types that were asked for where it was told wider ones."""
    for value, spec in zip(graph.input, specs, strict=True):
        told = value.type.tensor_type.elem_type
        if told == spec.dtype.onnx:
            continue
        wide = f"{value.name}_wide"
        for node in graph.node:
            node.input[:] = [wide if name == value.name else name for name in node.input]
        graph.node.insert(0, onnx.helper.make_node("Cast", [value.name], [wide], name=wide, to=told))
        value.type.tensor_type.elem_type = spec.dtype.onnx


def _narrowed(graph: onnx.GraphProto, value: onnx.ValueInfoProto) -> onnx.ValueInfoProto:
    """A float64 graph output as float32."""
    given = onnx.ValueInfoProto()
    given.CopyFrom(value)
    given.name = f"{value.name}_float"
    given.type.tensor_type.elem_type = onnx.TensorProto.FLOAT
    graph.node.append(
        onnx.helper.make_node("Cast", [value.name], [given.name], name=given.name, to=onnx.TensorProto.FLOAT)
    )
    return given


def _squeezed(graph: onnx.GraphProto, value: onnx.ValueInfoProto, opset: int) -> onnx.ValueInfoProto:
    """A graph output [n, 1] as [n]. Squeeze and not Reshape: it fails if the axis is not 1 after all."""
    name, axes = f"{value.name}_flat", f"{value.name}_flat_axes"
    if opset >= 13:
        graph.initializer.append(onnx.numpy_helper.from_array(np.array([1], np.int64), axes))
        node = onnx.helper.make_node("Squeeze", [value.name, axes], [name], name=name)
    else:
        node = onnx.helper.make_node("Squeeze", [value.name], [name], name=name, axes=[1])
    graph.node.append(node)
    return onnx.helper.make_tensor_value_info(name, value.type.tensor_type.elem_type, [None])


def settle_opsets(model: onnx.ModelProto, wanted: int) -> int:
    """One entry a domain, and the default one at the wanted version wherever that changes no operator.

    skl2onnx writes the default domain twice, and as old as its nodes allow; a strict reader keeps the wrong one.

    Returns:
        The version of the default domain.
    """
    versions: dict[str, int] = {}
    for entry in model.opset_import:
        versions[entry.domain] = max(entry.version, versions.get(entry.domain, 0))
    own = versions.get("", wanted)
    kinds = {node.op_type for node in model.graph.node if node.domain == ""}
    if all(_same_at(kind, own, wanted) for kind in kinds):
        own = wanted
    versions[""] = own
    del model.opset_import[:]
    model.opset_import.extend(onnx.helper.make_opsetid(domain, v) for domain, v in sorted(versions.items()))
    return own


def _same_at(kind: str, own: int, wanted: int) -> bool:
    """Whether an operator means the same in both versions: newer ones only take more types, a few excepted."""
    before = onnx.defs.get_schema(kind, max_inclusive_version=own).since_version
    after = onnx.defs.get_schema(kind, max_inclusive_version=wanted).since_version
    return before == after or (kind in _ONLY_MORE_TYPES)


_ONLY_MORE_TYPES = {
    "Cast", "Concat", "Reshape", "Identity", "Add", "Sub", "Mul", "Div", "MatMul", "Gemm", "Shape", "Gather",
    "Transpose", "Flatten", "Sqrt", "Exp", "Log", "Abs", "Neg", "Equal", "Less", "Greater", "Where", "Sigmoid",
    "Tanh", "Relu", "Max", "Min", "Pow", "Not", "And", "Or", "Floor", "Sign", "IsNaN", "Expand", "Reciprocal",
    "Constant", "ConstantOfShape", "ArgMax", "ArgMin", "Tile", "CumSum",
    "StringNormalizer", "Sum", "Mean", "LessOrEqual", "GreaterOrEqual",
}  # fmt: skip
