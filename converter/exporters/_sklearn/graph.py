"""What skl2onnx wrote, brought to the form of the source's own answers."""

from __future__ import annotations

import numpy as np
import onnx

from paritygate.converter.errors import ExportError
from paritygate.converter.types import Feeds


def keep_outputs(graph: onnx.GraphProto, answers: Feeds) -> None:
    """Make the graph give what the source gives, in rank too; what the source was not asked for goes.

    Raises:
        ExportError: If the graph gives fewer outputs, or one that is no tensor.
    """
    given = list(graph.output)
    if len(given) < len(answers):
        raise ExportError(
            f"skl2onnx gives the outputs {[v.name for v in given]}, the source {list(answers)}."
        )
    kept = []
    for value, (name, answer) in zip(given, answers.items(), strict=False):
        rank = len(value.type.tensor_type.shape.dim)
        if not value.type.HasField("tensor_type"):
            raise ExportError(f"skl2onnx gives {name!r} as a sequence or map, not as a tensor.")
        if rank == 2 and answer.ndim == 1:
            value = _squeezed(graph, value)
        elif rank != answer.ndim:
            # skl2onnx declares one axis for the labels of several classes at once, and gives two, as it should.
            value.type.tensor_type.ClearField("shape")
        kept.append(value)
    del graph.output[:]
    graph.output.extend(kept)


def _squeezed(graph: onnx.GraphProto, value: onnx.ValueInfoProto) -> onnx.ValueInfoProto:
    """A graph output [n, 1] as [n]. Squeeze and not Reshape: it fails if the axis is not 1 after all."""
    name, axes = f"{value.name}_flat", f"{value.name}_flat_axes"
    graph.initializer.append(onnx.numpy_helper.from_array(np.array([1], np.int64), axes))
    graph.node.append(onnx.helper.make_node("Squeeze", [value.name, axes], [name], name=name))
    return onnx.helper.make_tensor_value_info(name, value.type.tensor_type.elem_type, [None])


def merge_opsets(model: onnx.ModelProto) -> None:
    """One entry a domain: skl2onnx writes the default domain twice, and a strict reader keeps the wrong one."""
    versions: dict[str, int] = {}
    for entry in model.opset_import:
        versions[entry.domain] = max(entry.version, versions.get(entry.domain, 0))
    del model.opset_import[:]
    model.opset_import.extend(onnx.helper.make_opsetid(domain, v) for domain, v in sorted(versions.items()))
