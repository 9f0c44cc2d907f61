"""Models that every exporter must convert: one table for each entry of the registry, frameworks imported on use.

A new exporter is tested by `tests/conformance/test_exporters.py` once it has a line here, and fails it until then.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

Build = Callable[[], tuple[Any, dict[str, Any]]]
"""Gives a model and the keyword arguments of `export_model` for it."""


@dataclass(frozen=True)
class ExporterCases:
    """What one exporter is held to.

    Attributes:
        module: What must be importable to export in this process.
        ranks: Models by the rank of their input, each with an open batch where there is an axis.
        demoted: A model with a dimension called `frozen` that cannot vary.
        guarded: A model with weights that the guard changes.
    """

    module: str
    ranks: Mapping[str, Build]
    demoted: Build
    guarded: Build


def _array(*shape: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


# --- PyTorch ------------------------------------------------------------------------------------------------


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

    return Curve(), {"inputs": {"x": _array(5)}}


def _torch_matrix() -> tuple[Any, dict[str, Any]]:
    import torch

    torch.manual_seed(0)
    net = torch.nn.Sequential(
        torch.nn.Linear(6, 8), torch.nn.BatchNorm1d(8), torch.nn.ReLU(), torch.nn.Linear(8, 3)
    )
    return net, {"inputs": {"x": _array(4, 6)}}


def _torch_sequence() -> tuple[Any, dict[str, Any]]:
    import torch

    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    return layer, {"inputs": {"src": _array(2, 5, 8)}, "dynamic": {"src": {0: "batch", 1: "time"}}}


def _torch_picture() -> tuple[Any, dict[str, Any]]:
    import torch

    torch.manual_seed(0)
    net = torch.nn.Sequential(
        torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.ReLU(), torch.nn.AdaptiveAvgPool2d(1),
        torch.nn.Flatten(), torch.nn.Dropout(0.5), torch.nn.Linear(4, 2), torch.nn.Softmax(-1),
    )  # fmt: skip
    return net, {"inputs": {"image": _array(2, 3, 8, 8)}}


def _torch_demoted() -> tuple[Any, dict[str, Any]]:
    import torch

    class Branches(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(4, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.layer(x)
            return y + 1 if x.shape[1] == 3 else y

    return Branches(), {"inputs": {"x": _array(2, 3, 4)}, "dynamic": {"x": {0: "batch", 1: "frozen"}}}


CASES: dict[str, ExporterCases] = {
    "pytorch": ExporterCases(
        module="torch",
        ranks={
            "rank0": _torch_scalar,
            "rank1": _torch_vector,
            "rank2": _torch_matrix,
            "rank3": _torch_sequence,
            "rank4": _torch_picture,
        },
        demoted=_torch_demoted,
        guarded=_torch_matrix,
    ),
}


# --- Keras --------------------------------------------------------------------------------------------------


def _keras(*layers: Callable[[Any], Any], shape: tuple[int | None, ...]) -> Any:
    import keras

    keras.utils.set_random_seed(0)
    given = tensor = keras.Input(shape, name="x")
    for layer in layers:
        tensor = layer(keras)(tensor)
    return keras.Model(given, tensor)


def _keras_matrix() -> tuple[Any, dict[str, Any]]:
    model = _keras(
        lambda k: k.layers.Dense(8, activation="relu"), lambda k: k.layers.BatchNormalization(),
        lambda k: k.layers.Dense(3, activation="softmax"), shape=(6,),
    )  # fmt: skip
    return model, {}


def _keras_sequence() -> tuple[Any, dict[str, Any]]:
    model = _keras(
        lambda k: k.layers.LSTM(5, return_sequences=True), lambda k: k.layers.Dense(2), shape=(7, 3)
    )
    return model, {}


def _keras_picture() -> tuple[Any, dict[str, Any]]:
    model = _keras(
        lambda k: k.layers.Conv2D(4, 3), lambda k: k.layers.MaxPooling2D(), lambda k: k.layers.Flatten(),
        lambda k: k.layers.Dense(2), shape=(8, 8, 1),
    )  # fmt: skip
    return model, {}


def _keras_demoted() -> tuple[Any, dict[str, Any]]:
    model = _keras(lambda k: k.layers.Reshape((6,)), lambda k: k.layers.Dense(2), shape=(None, 2))
    return model, {"inputs": {"x": _array(2, 3, 2)}, "dynamic": {"x": {0: "batch", 1: "frozen"}}}


CASES["keras"] = ExporterCases(
    module="tensorflow",
    ranks={"rank2": _keras_matrix, "rank3": _keras_sequence, "rank4": _keras_picture},
    demoted=_keras_demoted,
    guarded=_keras_matrix,
)


# --- scikit-learn -------------------------------------------------------------------------------------------


def _sklearn_classifier() -> tuple[Any, dict[str, Any]]:
    from sklearn.datasets import load_iris
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    x, y = load_iris(return_X_y=True)
    return make_pipeline(StandardScaler(), LogisticRegression()).fit(x, y), {}


def _sklearn_demoted() -> tuple[Any, dict[str, Any]]:
    model, _ = _sklearn_classifier()
    return model, {"inputs": {"features": _array(3, 4)}, "input_names": ["features"],
                   "dynamic": {"features": {0: "batch", 1: "frozen"}}}  # fmt: skip


CASES["sklearn"] = ExporterCases(
    module="sklearn",
    ranks={"rank2": _sklearn_classifier},
    demoted=_sklearn_demoted,
    guarded=_sklearn_classifier,
)
