"""A plain network of 25.2 M parameters in an ONNX file."""

from __future__ import annotations

import atexit
import shutil
import tempfile
from pathlib import Path
from typing import Any

ENVIRONMENT: str | None = None
MODEL = "ONNX file of six Gemm layers, 25.2 M parameters"

_WIDTH, _LAYERS = 2048, 6


def build() -> tuple[Any, dict[str, Any]]:
    """The file, in a folder that goes when the process ends."""
    import numpy as np
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    rng = np.random.default_rng(0)
    weights, nodes, last = [], [], "x"
    for layer in range(_LAYERS):
        weight = rng.normal(0, _WIDTH**-0.5, (_WIDTH, _WIDTH)).astype(np.float32)
        weights += [
            numpy_helper.from_array(weight, f"w{layer}"),
            numpy_helper.from_array(np.zeros(_WIDTH, np.float32), f"b{layer}"),
        ]
        nodes.append(helper.make_node("Gemm", [last, f"w{layer}", f"b{layer}"], [f"g{layer}"]))
        last = "y" if layer == _LAYERS - 1 else f"h{layer}"
        nodes.append(helper.make_node("Tanh", [f"g{layer}"], [last]))
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, ["batch", _WIDTH]) for n in "xy")
    graph = helper.make_graph(nodes, "net", [x], [y], initializer=weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    scratch = Path(tempfile.mkdtemp(prefix="paritygate-benchmark-"))
    atexit.register(shutil.rmtree, scratch, ignore_errors=True)
    onnx.save(model, scratch / "net.onnx")
    return scratch / "net.onnx", {}


def bare(model: Any, options: dict[str, Any], path: Path) -> None:
    """What one does with a file by hand: load, check, save with the weights beside it."""
    import onnx

    loaded = onnx.load(model)
    onnx.checker.check_model(loaded, full_check=True)
    onnx.save(loaded, path, save_as_external_data=True, location="model.onnx.data")
