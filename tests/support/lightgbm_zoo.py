"""Every kind of LightGBM model: objectives, boosting modes, what is missing, categories, labels."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightgbm
import numpy as np

from support.tree_data import AMOUNT, FULL, GAPS, THREE, TWO, WORDS, ZEROS

_SMALL = {"n_estimators": 15, "num_leaves": 15, "min_child_samples": 5, "n_jobs": 1, "verbose": -1}
_SETS = {"min_data_per_group": 2, "cat_smooth": 1}
_BAGGED = {"boosting_type": "rf", "bagging_freq": 1, "bagging_fraction": 0.6}


def _classifier(y: Any = TWO, **options: Any) -> Callable[[], tuple[Any, dict[str, Any]]]:
    fit = options.pop("fit", {})
    return lambda: (lightgbm.LGBMClassifier(**{**_SMALL, **options}).fit(GAPS, y, **fit), {})


def _regressor(y: Any = AMOUNT, x: Any = GAPS, **options: Any) -> Callable[[], tuple[Any, dict[str, Any]]]:
    return lambda: (lightgbm.LGBMRegressor(**{**_SMALL, **options}).fit(x, y), {})


def _booster(y: Any = TWO, x: Any = GAPS, **options: Any) -> Callable[[], tuple[Any, dict[str, Any]]]:
    given = {"verbose": -1, "num_threads": 1, "min_data_in_leaf": 5, **options}
    return lambda: (lightgbm.train(given, lightgbm.Dataset(x, y), 12), {})


def _early() -> Any:
    model = lightgbm.LGBMClassifier(**{**_SMALL, "n_estimators": 300})
    return model.fit(
        GAPS[:250],
        TWO[:250],
        eval_set=[(GAPS[250:], TWO[250:])],
        callbacks=[lightgbm.early_stopping(5, verbose=False)],
    )


MODELS: dict[str, Callable[[], tuple[Any, dict[str, Any]]]] = {
    "two-classes": _classifier(),
    "three-classes": _classifier(THREE),
    "labels-are-texts": _classifier(WORDS),
    "labels-are-numbers": _classifier(THREE * 10 - 5),
    "one-against-all": _classifier(THREE, objective="multiclassova"),
    "stopped-early": lambda: (_early(), {}),
    "booster-of-stopped-early": lambda: (_early().booster_, {}),
    "categories": _classifier(**_SETS, max_cat_to_onehot=1, fit={"categorical_feature": [3]}),
    "categories-one-by-one": _classifier(**_SETS, max_cat_to_onehot=32, fit={"categorical_feature": [3]}),
    "forest": _classifier(**_BAGGED),
    "dart": _classifier(boosting_type="dart"),
    "amount": _regressor(),
    "thresholds-between-float32": _regressor(x=GAPS.astype(np.float64) / 3),
    "float64": lambda: (_regressor()()[0], {"inputs": "x:float64[batch,5]"}),
    "float64-zeros-are-missing": lambda: (
        _booster(x=ZEROS, objective="binary", zero_as_missing=True)()[0],
        {"inputs": "x:float64[batch,5]"},
    ),
    "square-root": _regressor(reg_sqrt=True),
    "absolute": _regressor(objective="regression_l1"),
    "huber": _regressor(objective="huber"),
    "quantile": _regressor(objective="quantile", alpha=0.8),
    "counts": _regressor(THREE, objective="poisson"),
    "gamma": _regressor(objective="gamma"),
    "tweedie": _regressor(objective="tweedie"),
    "forest-of-amounts": _regressor(**_BAGGED),
    "monotone": _regressor(monotone_constraints=[1, 0, 0, 0, 0]),
    "ranking": lambda: (lightgbm.LGBMRanker(**_SMALL).fit(GAPS, TWO, group=[200, 200]), {}),
    "zeros-are-missing": _booster(x=ZEROS, objective="binary", zero_as_missing=True),
    "nothing-is-missing": _booster(x=FULL, objective="binary"),
    "missing-not-used": _booster(objective="binary", use_missing=False),
    "slope": _booster(objective="binary", sigmoid=2.0),
    "entropy": _booster(TWO * 0.9, objective="cross_entropy"),
    "entropy-lambda": _booster(TWO * 0.9, objective="cross_entropy_lambda"),
    "own-objective": _booster(objective=lambda p, d: (p - d.get_label(), np.ones_like(p))),
    "constant": _booster(TWO * 0 + 3.5, objective="regression"),
    "linear-trees": _booster(x=np.nan_to_num(GAPS), objective="regression", linear_tree=True),
}


def _text(old: str, new: str) -> Callable[[Path], Path]:
    def write(folder: Path) -> Path:
        text = _classifier()()[0].booster_.model_to_string()
        changed = re.sub(old, new, text, count=1, flags=re.MULTILINE)
        assert changed != text
        path = folder / "model.txt"
        path.write_text(changed)
        return path

    return write


DAMAGED: dict[str, Callable[[Path], Path]] = {
    "sizes": _text(r"^tree_sizes=\d+ ", "tree_sizes=7 "),
    "parameter": _text(r"^\[learning_rate: .*\]$", "[learning_rate"),
    "cut-number": _text(r"^leaf_weight=\S+ ", "leaf_weight="),
}
"""Files that end the process inside LightGBM when it is given them as they are."""

SPOILT = "two-classes"
"""The model that is broken on purpose."""
