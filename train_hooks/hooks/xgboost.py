"""XGBoost: boosters and estimators."""

from __future__ import annotations

import os
import sys
from typing import Any, ClassVar

from paritygate.train_hooks.hooks.base import Hook
from paritygate.train_hooks.hooks.ranks import ALONE, rank_from_tf_config, rank_from_torch
from paritygate.train_hooks.types import Rank


class XGBoostHook(Hook):
    """`Booster`s and the estimators of its scikit-learn interface."""

    framework: ClassVar[str] = "xgboost"

    def owns(self, model: Any) -> bool:
        """Whether it is a booster or an estimator around one."""
        package = sys.modules.get("xgboost")
        kinds = [getattr(package, name, None) for name in ("Booster", "XGBModel")]
        return any(isinstance(model, kind) for kind in kinds if kind is not None)

    def rank(self) -> Rank:
        """The rank in XGBoost's own collective if one is at work, else what the environment says."""
        collective = sys.modules.get("xgboost.collective")
        if collective is not None and collective.is_distributed():
            return Rank(collective.get_rank(), collective.get_world_size())
        return rank_from_torch(os.environ) or rank_from_tf_config(os.environ) or ALONE

    def unwrap(self, model: Any) -> Any:
        """The model itself: every worker holds the whole booster."""
        return model
