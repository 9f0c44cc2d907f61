"""A random forest of 500 trees, against skl2onnx's own call."""

from __future__ import annotations

from pathlib import Path
from typing import Any

ENVIRONMENT: str | None = "trees"
MODEL = "scikit-learn random forest, 500 trees, 256,000 leaves"

_TREES, _LEAVES, _FEATURES = 500, 512, 30


def build() -> tuple[Any, dict[str, Any]]:
    """The forest, trained on noise, so that every tree grows to its limit."""
    import numpy as np
    from sklearn.ensemble import ExtraTreesRegressor

    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(2000, _FEATURES)).astype(np.float32), rng.normal(size=2000)
    forest = ExtraTreesRegressor(_TREES, max_leaf_nodes=_LEAVES, random_state=0)
    return forest.fit(x, y), {}


def bare(model: Any, options: dict[str, Any], path: Path) -> None:
    """What skl2onnx's documentation has."""
    from skl2onnx import to_onnx
    from skl2onnx.common.data_types import FloatTensorType

    given = [("x", FloatTensorType([None, _FEATURES]))]
    converted = to_onnx(model, initial_types=given, target_opset={"": 18, "ai.onnx.ml": 3})
    path.write_bytes(converted.SerializeToString())
