"""scikit-learn models that need what the environment of trees has: data frames, and boosters inside pipelines."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightgbm
import numpy as np
import pandas
import xgboost
from sklearn.calibration import CalibratedClassifierCV
from sklearn.compose import ColumnTransformer
from sklearn.ensemble import (
    HistGradientBoostingClassifier,
    RandomForestClassifier,
    StackingClassifier,
    VotingClassifier,
)
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, OrdinalEncoder, StandardScaler
from sklearn.tree import DecisionTreeClassifier

from support.tree_data import AMOUNT, FULL, GAPS, THREE, TWO

_RNG = np.random.default_rng(0)
_HOUSES = pandas.DataFrame(
    {
        "area": np.where(_RNG.random(80) < 0.1, np.nan, 100 * _RNG.random(80)),
        "rooms": _RNG.integers(1, 6, 80),
        "town": _RNG.choice(["bonn", "köln", "ulm"], 80),
        "kind": pandas.Categorical(_RNG.choice(["flat", "house"], 80)),
        "new": _RNG.random(80) > 0.5,
    }
)
_PRICE = np.nan_to_num(_HOUSES["area"]) * 10 + _HOUSES["rooms"] * 100 + 300 * (_HOUSES["town"] == "ulm")
_IS_DEAR = _PRICE > _PRICE.median()  # noqa: SIM300 - neither side is a constant
_DEAR = np.where(_IS_DEAR, "dear", "cheap")
_NOTES = pandas.DataFrame({"text": ["Große Wohnung", "kleines Haus", "ΩΡΑ zu zweit", "Haus am See"] * 10})
_NOTES["size"] = np.arange(40.0)


def _houses(estimator: Any, y: Any = _DEAR, **encoder: Any) -> tuple[Any, dict[str, Any]]:
    columns = ColumnTransformer(
        [
            ("numbers", make_pipeline(SimpleImputer(), StandardScaler()), ["area", "rooms"]),
            ("words", OneHotEncoder(handle_unknown="ignore", **encoder), ["town", "kind"]),
        ]
    )
    return make_pipeline(columns, estimator).fit(_HOUSES, y), {"inputs": _HOUSES.head(8)}


def _ordinal() -> tuple[Any, dict[str, Any]]:
    encoder = OrdinalEncoder(handle_unknown="use_encoded_value", unknown_value=-1)
    columns = ColumnTransformer([("codes", encoder, ["town", "kind"]), ("rest", "passthrough", ["rooms"])])
    return make_pipeline(columns, DecisionTreeClassifier()).fit(_HOUSES, _DEAR), {"inputs": _HOUSES.head(8)}


def _sparse() -> tuple[Any, dict[str, Any]]:
    """Behind an encoder that gives a sparse matrix, whose zeros are missing to XGBoost."""
    codes = np.random.default_rng(1).integers(0, 9, (200, 3))
    model = make_pipeline(OneHotEncoder(), _xgb()).fit(codes, codes.sum(axis=1) > 12)
    return model, {"inputs": codes[:20]}


def _texts() -> tuple[Any, dict[str, Any]]:
    columns = ColumnTransformer([("text", TfidfVectorizer(), "text"), ("size", StandardScaler(), ["size"])])
    model = make_pipeline(columns, LogisticRegression()).fit(_NOTES, np.arange(40) % 2)
    return model, {"inputs": _NOTES.head(8)}


def _frame_of_floats() -> tuple[Any, dict[str, Any]]:
    frame = pandas.DataFrame(FULL, columns=list("abcde"))
    return make_pipeline(StandardScaler(), Ridge()).fit(frame, AMOUNT), {"inputs": frame.head(8)}


def _other_frame() -> tuple[Any, dict[str, Any]]:
    model, options = _frame_of_floats()
    return model, {"inputs": options["inputs"].rename(columns={"e": "f"})}


def _xgb(kind: Any = xgboost.XGBClassifier) -> Any:
    return kind(n_estimators=10, max_depth=3, n_jobs=1)


def _lgbm(kind: Any = lightgbm.LGBMClassifier) -> Any:
    return kind(n_estimators=10, num_leaves=7, n_jobs=1, verbose=-1)


def _fitted(estimator: Any, y: Any = TWO, x: Any = GAPS) -> Callable[[], tuple[Any, dict[str, Any]]]:
    return lambda: (estimator.fit(x, y), {})


MODELS: dict[str, Callable[[], tuple[Any, dict[str, Any]]]] = {
    "columns": lambda: _houses(LogisticRegression(), sparse_output=False),
    "columns-sparse": lambda: _houses(Ridge(), _PRICE),
    "columns-forest": lambda: _houses(RandomForestClassifier(10, random_state=0)),
    "columns-histogram": lambda: _houses(
        HistGradientBoostingClassifier(max_iter=10, random_state=0), sparse_output=False
    ),
    "columns-xgboost": lambda: _houses(_xgb(xgboost.XGBRegressor), _PRICE),
    "sparse-xgboost": _sparse,
    "columns-lightgbm": lambda: _houses(_lgbm()),
    "ordinal": _ordinal,
    "texts": _texts,
    "frame-of-floats": _frame_of_floats,
    "other-frame": _other_frame,
    "xgboost": _fitted(make_pipeline(StandardScaler(), _xgb()), THREE),
    "lightgbm": _fitted(make_pipeline(StandardScaler(), _lgbm(lightgbm.LGBMRegressor)), AMOUNT),
    "calibrated-xgboost": _fitted(CalibratedClassifierCV(_xgb(), cv=2)),
    "voting": _fitted(VotingClassifier([("x", _xgb()), ("l", _lgbm())], voting="soft")),
    "stacking": _fitted(StackingClassifier([("x", _xgb()), ("l", _lgbm())], cv=2)),
    "forest-with-gaps": _fitted(RandomForestClassifier(10, random_state=0), THREE),
}

DAMAGED: dict[str, Callable[[Path], Path]] = {}

SPOILT = "forest-with-gaps"
"""The model that is broken on purpose."""
