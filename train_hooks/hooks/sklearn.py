"""scikit-learn: fitted estimators, pipelines and searches."""

from __future__ import annotations

import os
import sys
from typing import Any, ClassVar

from paritygate.train_hooks.hooks.base import Hook
from paritygate.train_hooks.hooks.ranks import ALONE, rank_from_tf_config, rank_from_torch
from paritygate.train_hooks.types import Rank

BOOSTERS = ("xgboost", "lightgbm")


class SklearnHook(Hook):
    """Estimators that are scikit-learn's own kind; boosters with its interface have hooks of their own."""

    framework: ClassVar[str] = "sklearn"

    def owns(self, model: Any) -> bool:
        """Whether it is an estimator, and not one of a boosting library."""
        base = getattr(sys.modules.get("sklearn.base"), "BaseEstimator", None)
        return base is not None and isinstance(model, base) and not made_by(model, *BOOSTERS)

    def rank(self) -> Rank:
        """What the environment says; scikit-learn itself trains in one process."""
        return rank_from_torch(os.environ) or rank_from_tf_config(os.environ) or ALONE

    def unwrap(self, model: Any) -> Any:
        """The model itself."""
        return model


def made_by(model: Any, *packages: str) -> bool:
    """Whether the class of a model, or one that it derives from, is of one of these packages."""
    return any(kind.__module__.partition(".")[0] in packages for kind in type(model).__mro__)
