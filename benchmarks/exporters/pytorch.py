"""PyTorch: the layout of ResNet-50 in plain torch, 25.6 million parameters, against torch.onnx.export itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

ENVIRONMENT: str | None = "pytorch"
MODEL = "ResNet-50 layout, 25.6 M parameters"

_STAGES = ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2))
"""Width, blocks and stride of each stage."""


def _normed(inputs: int, outputs: int, size: int, stride: int = 1) -> list[torch.nn.Module]:
    convolution = torch.nn.Conv2d(inputs, outputs, size, stride, size // 2, bias=False)
    return [convolution, torch.nn.BatchNorm2d(outputs)]


class Bottleneck(torch.nn.Module):
    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        self.body = torch.nn.Sequential(
            *_normed(inputs, width, 1), torch.nn.ReLU(), *_normed(width, width, 3, stride), torch.nn.ReLU(),
            *_normed(width, 4 * width, 1),
        )  # fmt: skip
        same = inputs == 4 * width and stride == 1
        self.shortcut = (
            torch.nn.Identity() if same else torch.nn.Sequential(*_normed(inputs, 4 * width, 1, stride))
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.body(x) + self.shortcut(x))


def build() -> tuple[torch.nn.Module, dict[str, Any]]:
    torch.manual_seed(0)
    layers: list[torch.nn.Module] = [*_normed(3, 64, 7, 2), torch.nn.ReLU(), torch.nn.MaxPool2d(3, 2, 1)]
    channels = 64
    for width, blocks, stride in _STAGES:
        for block in range(blocks):
            layers.append(Bottleneck(channels, width, stride if block == 0 else 1))
            channels = 4 * width
    net = torch.nn.Sequential(
        *layers, torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(channels, 1000)
    )
    picture = np.random.default_rng(0).standard_normal((2, 3, 64, 64)).astype(np.float32)
    return net.eval(), {"inputs": {"image": picture}, "dynamic": {"image": {0: "batch"}}}


def bare(model: torch.nn.Module, options: dict[str, Any], path: Path) -> None:
    torch.onnx.export(
        model,
        (torch.from_numpy(options["inputs"]["image"]),),
        path,
        opset_version=18,
        input_names=["image"],
        dynamic_shapes=({0: "batch"},),
        external_data=False,
        verbose=False,
    )
