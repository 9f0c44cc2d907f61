"""A perceptron of MindSpore, 25.2 M parameters, from memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

ENVIRONMENT: str | None = "mindspore"
MODEL = "MindSpore perceptron of six layers, 25.2 M parameters"
_WIDTH = 2048


def build() -> tuple[Any, dict[str, Any]]:
    """The cell, with random weights."""
    import mindspore as ms
    from mindspore import nn

    ms.set_seed(0)
    layers = [layer for _ in range(6) for layer in (nn.Dense(_WIDTH, _WIDTH), nn.ReLU())]
    return nn.SequentialCell(layers), {"inputs": {"x": np.ones((2, _WIDTH), np.float32)}}


def bare(model: Any, options: dict[str, Any], path: Path) -> None:
    """MindSpore's own call, which ends at opset 11, with an open batch."""
    import mindspore as ms

    model.set_train(False)
    opened = ms.Tensor(shape=[None, _WIDTH], dtype=ms.float32)
    ms.onnx.export(model, opened, file_name=str(path))
