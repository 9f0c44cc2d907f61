"""A booster of 500 trees, against onnxmltools' own call."""

from __future__ import annotations

from pathlib import Path
from typing import Any

ENVIRONMENT: str | None = "trees"
MODEL = "XGBoost regressor, 500 trees, 128,000 leaves"

_TREES, _LEAVES, _FEATURES = 500, 256, 30


def build() -> tuple[Any, dict[str, Any]]:
    """The booster, trained on noise, so that every tree grows to its limit."""
    import numpy as np
    import xgboost

    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(2000, _FEATURES)).astype(np.float32), rng.normal(size=2000)
    model = xgboost.XGBRegressor(
        n_estimators=_TREES, max_leaves=_LEAVES, max_depth=0, grow_policy="lossguide",
        learning_rate=0.01, min_child_weight=0, max_bin=16, n_jobs=1,
    )  # fmt: skip
    return model.fit(x, y), {}


def bare(model: Any, options: dict[str, Any], path: Path) -> None:
    """What onnxmltools' documentation has; it ends at opset 15."""
    from onnxmltools import convert_xgboost
    from onnxmltools.convert.common.data_types import FloatTensorType

    converted = convert_xgboost(
        model, initial_types=[("x", FloatTensorType([None, _FEATURES]))], target_opset=15
    )
    path.write_bytes(converted.SerializeToString())
