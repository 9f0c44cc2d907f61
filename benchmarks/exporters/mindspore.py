"""A network of the ResNet-50 layout in MindSpore, 25.6 M parameters, from memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

ENVIRONMENT: str | None = "mindspore"
MODEL = "MindSpore cell of the ResNet-50 layout, 25.6 M parameters"
_STAGES = ((3, 64), (4, 128), (6, 256), (3, 512))
_SIZE = 32


def build() -> tuple[Any, dict[str, Any]]:
    """The cell, with random weights."""
    import mindspore as ms
    from mindspore import nn, ops

    def unit(given: int, taken: int, size: int, stride: int = 1) -> Any:
        layers = [
            nn.Conv2d(given, taken, size, stride, pad_mode="pad", padding=size // 2),
            nn.BatchNorm2d(taken),
        ]
        return nn.SequentialCell(layers)

    class Bottleneck(nn.Cell):  # type: ignore[misc]
        def __init__(self, given: int, width: int, stride: int) -> None:
            super().__init__()
            self.down, self.mid = unit(given, width, 1), unit(width, width, 3, stride)
            self.up = unit(width, 4 * width, 1)
            passes = given == 4 * width and stride == 1
            self.short = nn.Identity() if passes else unit(given, 4 * width, 1, stride)

        def construct(self, x: Any) -> Any:
            inner = self.up(ops.relu(self.mid(ops.relu(self.down(x)))))
            return ops.relu(inner + self.short(x))

    class Net(nn.Cell):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.stem, self.pool = unit(3, 64, 7, 2), nn.MaxPool2d(3, 2, pad_mode="same")
            blocks, given = [], 64
            for index, (count, width) in enumerate(_STAGES):
                for number in range(count):
                    blocks.append(Bottleneck(given, width, 2 if index and not number else 1))
                    given = 4 * width
            self.blocks, self.head = nn.SequentialCell(blocks), nn.Dense(given, 1000)

        def construct(self, x: Any) -> Any:
            return self.head(self.blocks(self.pool(ops.relu(self.stem(x)))).mean((2, 3)))

    ms.set_seed(0)
    return Net(), {"inputs": {"x": np.ones((2, 3, _SIZE, _SIZE), np.float32)}}


def bare(model: Any, options: dict[str, Any], path: Path) -> None:
    """MindSpore's own call, which ends at opset 11, with an open batch."""
    import mindspore as ms

    model.set_train(False)
    opened = ms.Tensor(shape=[None, 3, _SIZE, _SIZE], dtype=ms.float32)
    ms.onnx.export(model, opened, file_name=str(path))
