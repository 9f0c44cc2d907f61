"""LightGBM: boosters and estimators; those of its Dask interface as the local ones that they hold."""

from __future__ import annotations

import os
import sys
from typing import Any, ClassVar

from paritygate.train_hooks.hooks.base import Hook
from paritygate.train_hooks.hooks.ranks import ALONE, rank_from_tf_config, rank_from_torch
from paritygate.train_hooks.types import Rank


class LightGBMHook(Hook):
    """`Booster`s and the estimators of its scikit-learn interface."""

    framework: ClassVar[str] = "lightgbm"

    def owns(self, model: Any) -> bool:
        """Whether it is a booster or an estimator around one."""
        package = sys.modules.get("lightgbm")
        kinds = [getattr(package, name, None) for name in ("Booster", "LGBMModel")]
        return any(isinstance(model, kind) for kind in kinds if kind is not None)

    def rank(self) -> Rank:
        """What the environment says; workers are told apart by their starter, LightGBM has no rank to ask for."""
        return rank_from_torch(os.environ) or rank_from_tf_config(os.environ) or ALONE

    def unwrap(self, model: Any) -> Any:
        """The model itself, or the local one of a model that Dask trained."""
        return model.to_local() if hasattr(model, "to_local") else model
