"""ResNet50 of paddle.vision, 25.6 M parameters, from memory."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

ENVIRONMENT: str | None = "paddle"
MODEL = "PaddlePaddle ResNet50, 25.6 M parameters"


def build() -> tuple[Any, dict[str, Any]]:
    """The model, with random weights."""
    import numpy as np
    import paddle

    paddle.seed(0)
    model = paddle.vision.models.resnet50()
    model.eval()
    image = np.random.default_rng(0).normal(size=(2, 3, 224, 224)).astype(np.float32)
    return model, {"inputs": {"x": image}}


def bare(model: Any, options: dict[str, Any], path: Path) -> None:
    """Paddle's own save and paddle2onnx's own call, without the folding of constants, which asks for pip."""
    import paddle
    import paddle2onnx

    spec = [paddle.static.InputSpec([None, 3, 224, 224], "float32", name="x")]
    with tempfile.TemporaryDirectory() as folder:
        saved = Path(folder) / "net"
        paddle.jit.save(model, str(saved), input_spec=spec)
        paddle2onnx.export(
            f"{saved}.json",
            f"{saved}.pdiparams",
            save_file=str(path),
            opset_version=18,
            verbose=False,
            optimize_tool="None",
        )
