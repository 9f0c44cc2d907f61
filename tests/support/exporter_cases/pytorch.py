"""The PyTorch models of the exporter conformance suite."""

from __future__ import annotations

from typing import Any

import numpy as np

from support.exporter_cases import ExporterCases, sample


def _torch_scalar() -> tuple[Any, dict[str, Any]]:
    import torch

    class Scaled(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.tensor([0.5, -2.0]))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.tanh(self.weight * x)

    return Scaled(), {"inputs": {"x": np.array(0.25, np.float32)}}


def _torch_vector() -> tuple[Any, dict[str, Any]]:
    import torch

    class Curve(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.tensor([0.5, -2.0, 1.0]))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.sigmoid(x[:, None] * self.weight)

    return Curve(), {"inputs": {"x": sample(5)}}


def _torch_matrix() -> tuple[Any, dict[str, Any]]:
    import torch

    torch.manual_seed(0)
    net = torch.nn.Sequential(
        torch.nn.Linear(6, 8), torch.nn.BatchNorm1d(8), torch.nn.ReLU(), torch.nn.Linear(8, 3)
    )
    return net, {"inputs": {"x": sample(4, 6)}}


def _torch_sequence() -> tuple[Any, dict[str, Any]]:
    import torch

    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    return layer, {"inputs": {"src": sample(2, 5, 8)}, "dynamic": {"src": {0: "batch", 1: "time"}}}


def _torch_picture() -> tuple[Any, dict[str, Any]]:
    import torch

    torch.manual_seed(0)
    net = torch.nn.Sequential(
        torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.ReLU(), torch.nn.AdaptiveAvgPool2d(1),
        torch.nn.Flatten(), torch.nn.Dropout(0.5), torch.nn.Linear(4, 2), torch.nn.Softmax(-1),
    )  # fmt: skip
    return net, {"inputs": {"image": sample(2, 3, 8, 8)}}


def _torch_demoted() -> tuple[Any, dict[str, Any]]:
    import torch

    class Branches(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(4, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.layer(x)
            return y + 1 if x.shape[1] == 3 else y

    return Branches(), {"inputs": {"x": sample(2, 3, 4)}, "dynamic": {"x": {0: "batch", 1: "frozen"}}}


CASES = ExporterCases(
    module="torch",
    environment="pytorch",
    ranks={
        "rank0": _torch_scalar,
        "rank1": _torch_vector,
        "rank2": _torch_matrix,
        "rank3": _torch_sequence,
        "rank4": _torch_picture,
    },
    demoted=_torch_demoted,
    guarded=_torch_matrix,
)
