"""Change the weights of an ONNX file so that it stays valid and computes something else: parity must refuse it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import numpy_helper

_ML_WEIGHTS = ("coefficients", "class_weights", "target_weights", "nodes_values", "target_weights_as_tensor")


def change_weights(path: Path) -> None:
    """Scale the largest weight of a file by 1.5 and shift it, wherever the converter keeps it."""
    model = onnx.load(path)
    tensors = [
        t for t in model.graph.initializer if t.data_type in (onnx.TensorProto.FLOAT, onnx.TensorProto.DOUBLE)
    ]
    known = [a for node in model.graph.node for a in node.attribute if a.name in _ML_WEIGHTS]
    attributes = [a for a in known if a.floats or a.HasField("t")]
    if attributes:
        largest = max(attributes, key=lambda a: len(a.floats) or int(np.prod(a.t.dims)))
        if largest.HasField("t"):
            changed = numpy_helper.to_array(largest.t) * 1.5 + 0.25
            largest.t.CopyFrom(numpy_helper.from_array(changed, largest.t.name))
        largest.floats[:] = [1.5 * value + 0.25 for value in largest.floats]
    else:
        tensor = max(tensors, key=lambda t: int(np.prod(t.dims)))
        tensor.CopyFrom(
            numpy_helper.from_array(
                numpy_helper.to_array(tensor) * np.float32(1.5) + np.float32(0.25), tensor.name
            )
        )
    onnx.save(model, path)
