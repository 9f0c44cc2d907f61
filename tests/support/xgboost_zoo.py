"""Every kind of XGBoost model: boosters, objectives, what is missing, categories, several outputs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import xgboost

from support.tree_data import AMOUNT, GAPS, THREE, TWO

_SMALL = {"n_estimators": 15, "max_depth": 4, "n_jobs": 1}
_CATEGORIES = ["q", "q", "q", "c", "q"]
_BOTH = np.c_[AMOUNT, TWO]


def _classifier(y: Any = TWO, x: Any = GAPS, **options: Any) -> Callable[[], tuple[Any, dict[str, Any]]]:
    return lambda: (xgboost.XGBClassifier(**{**_SMALL, **options}).fit(x, y), {})


def _regressor(y: Any = AMOUNT, x: Any = GAPS, **options: Any) -> Callable[[], tuple[Any, dict[str, Any]]]:
    return lambda: (xgboost.XGBRegressor(**{**_SMALL, **options}).fit(x, y), {})


def _booster(y: Any = TWO, rounds: int = 12, **options: Any) -> Callable[[], tuple[Any, dict[str, Any]]]:
    names = options.pop("feature_names", None)
    given = {"max_depth": 4, "nthread": 1, **options}
    return lambda: (xgboost.train(given, xgboost.DMatrix(GAPS, y, feature_names=names), rounds), {})


def _survival() -> tuple[Any, dict[str, Any]]:
    data = xgboost.DMatrix(GAPS)
    data.set_float_info("label_lower_bound", AMOUNT)
    data.set_float_info("label_upper_bound", AMOUNT + 1)
    return xgboost.train({"objective": "survival:aft", "nthread": 1}, data, 12), {}


def _early(kind: Any = xgboost.XGBClassifier) -> Any:
    model = kind(
        n_estimators=300, max_depth=4, learning_rate=0.3, base_score=0.2, early_stopping_rounds=5, n_jobs=1
    )
    return model.fit(GAPS[:250], TWO[:250], eval_set=[(GAPS[250:], TWO[250:])], verbose=False)


MODELS: dict[str, Callable[[], tuple[Any, dict[str, Any]]]] = {
    "two-classes": _classifier(),
    "three-classes": _classifier(THREE),
    "softmax": _classifier(THREE, objective="multi:softmax"),
    "softmax-of-two": _classifier(objective="multi:softmax", num_class=2),
    "several-labels": _classifier(np.c_[TWO, THREE > 0, THREE > 1]),
    "vector-leaves-of-classes": _classifier(THREE, multi_strategy="multi_output_tree"),
    "stopped-early": lambda: (_early(), {}),
    "booster-of-stopped-early": lambda: (_early().get_booster(), {}),
    "categories": _classifier(feature_types=_CATEGORIES, enable_categorical=True, max_cat_to_onehot=1),
    "categories-one-by-one": _classifier(
        feature_types=_CATEGORIES, enable_categorical=True, max_cat_to_onehot=99
    ),
    "hinge": _classifier(objective="binary:hinge"),
    "dart": _classifier(THREE, booster="dart", rate_drop=0.5),
    "linear": _classifier(THREE, np.nan_to_num(GAPS), booster="gblinear", max_depth=None),
    "forest": lambda: (xgboost.XGBRFClassifier(30, max_depth=4, n_jobs=1).fit(GAPS, TWO), {}),
    "amount": _regressor(),
    "number-that-means-missing": _regressor(x=np.nan_to_num(GAPS, nan=-1.0), missing=-1.0),
    "float64": lambda: (_regressor()()[0], {"inputs": "x:float64[batch,5]"}),
    "counts": _regressor(THREE, objective="count:poisson"),
    "gamma": _regressor(objective="reg:gamma"),
    "tweedie": _regressor(objective="reg:tweedie"),
    "logitraw": _regressor(TWO, objective="binary:logitraw"),
    "quantiles": _regressor(objective="reg:quantileerror", quantile_alpha=[0.1, 0.5, 0.9]),
    "absolute": _regressor(objective="reg:absoluteerror"),
    "cox": _regressor(objective="survival:cox"),
    "two-amounts": _regressor(_BOTH),
    "vector-leaves": _regressor(_BOTH, multi_strategy="multi_output_tree"),
    "monotone": _regressor(monotone_constraints=(1, 0, 0, 0, -1)),
    "pruned": _regressor(tree_method="exact", gamma=60),
    "ranking": lambda: (xgboost.XGBRanker(**_SMALL).fit(GAPS, TWO, group=[200, 200]), {}),
    "booster-of-shares": _booster(THREE, objective="multi:softprob", num_class=3),
    "booster-of-softmax": _booster(THREE, objective="multi:softmax", num_class=3),
    "booster-of-parallel-trees": _booster(objective="binary:logistic", num_parallel_tree=3, subsample=0.5),
    "booster-with-names": _booster(feature_names=list("abcde")),
    "survival": _survival,
    "no-round": _booster(rounds=0),
    "labels-without-shares": _classifier(objective="binary:logitraw"),
}

DAMAGED: dict[str, Callable[[Path], Path]] = {}

SPOILT = "two-classes"
"""The model that is broken on purpose."""
