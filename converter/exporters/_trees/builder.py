"""Nodes and constants of a small graph, named as they come."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx

from paritygate.converter.exporters._trees.emit import ML_DOMAIN, ML_OPSET
from paritygate.converter.types import Array, DType, TensorSpec


class GraphBuilder:
    """A graph that grows by one operator at a time."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []

    def add(self, operator: str, *given: str, **attributes: Any) -> str:
        """Add an operator with one output; gives the name of the output."""
        name = f"{operator.lower()}_{len(self.nodes)}"
        self.nodes.append(onnx.helper.make_node(operator, list(given), [name], name=name, **attributes))
        return name

    def append(self, node: onnx.NodeProto) -> str:
        """Add an operator that is there already; gives the name of its first output."""
        self.nodes.append(node)
        return str(node.output[0])

    def constant(self, values: Any) -> str:
        """Add a constant; arrays of `str` become string tensors."""
        name = f"constant_{len(self.constants)}"
        array = np.asarray(values)
        if array.dtype.kind in "OU":
            tensor = onnx.numpy_helper.from_array(as_strings(array), name)
        else:
            tensor = onnx.numpy_helper.from_array(array, name)
        self.constants.append(tensor)
        return name

    def cast(self, value: str, dtype: Any) -> str:
        """Add a Cast."""
        return self.add("Cast", value, to=DType.from_numpy(np.dtype(dtype)).onnx)

    def column(self, value: str) -> str:
        """A tensor [batch, 1] as [batch]. Squeeze and not Reshape: it fails if the axis is not 1 after all."""
        return self.add("Squeeze", value, self.constant(np.array([1], np.int64)))

    def model(
        self, inputs: Sequence[TensorSpec], outputs: Sequence[tuple[str, DType, int]], opset: int
    ) -> onnx.ModelProto:
        """The finished model.

        Args:
            inputs: What it takes.
            outputs: Name, dtype and rank of what it gives; all sizes are left open.
            opset: Version of the default operator set.
        """
        graph = onnx.helper.make_graph(
            self.nodes,
            "trees",
            [onnx.helper.make_tensor_value_info(s.name, s.dtype.onnx, s.shape) for s in inputs],
            [onnx.helper.make_tensor_value_info(n, d.onnx, [None] * rank) for n, d, rank in outputs],
            self.constants,
        )
        opsets = [onnx.helper.make_opsetid("", opset), onnx.helper.make_opsetid(ML_DOMAIN, ML_OPSET)]
        version = onnx.helper.find_min_ir_version_for(opsets)
        return onnx.helper.make_model(
            graph, opset_imports=opsets, ir_version=version, producer_name="paritygate"
        )


def as_strings(values: Array) -> Array:
    """Texts as an object array of `str`."""
    return values.astype(str).astype(object)
