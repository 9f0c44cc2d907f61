"""The LightGBM models of the exporter conformance suite."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from support.exporter_cases import BuildIn, ExporterCases, Refusal
from support.exporter_cases.payloads import Payload

_SMALL = {"n_estimators": 20, "num_leaves": 15, "min_child_samples": 5, "n_jobs": 1, "verbose": -1}


def _data() -> tuple[Any, Any]:
    """Four numbers, one of them whole, with gaps; two classes."""
    rng = np.random.default_rng(26)
    x = rng.normal(size=(300, 4)).astype(np.float32)
    x[:, 3] = rng.integers(0, 7, 300)
    y = ((x[:, 0] > 0.2) ^ np.isin(x[:, 3], [2, 5])).astype(int)
    x[rng.random(x.shape) < 0.1] = np.nan
    return x, y


def _classifier() -> tuple[Any, dict[str, Any]]:
    import lightgbm

    x, y = _data()
    return lightgbm.LGBMClassifier(**_SMALL).fit(x, y), {}


def _booster(**parameters: Any) -> Any:
    import lightgbm

    x, y = _data()
    given = {"objective": "binary", "num_threads": 1, "min_data_in_leaf": 5, "verbose": -1, **parameters}
    return lightgbm.train(given, lightgbm.Dataset(x, label=y), 15)


def _categories() -> Any:
    return _booster(min_data_per_group=2, cat_smooth=1, max_cat_to_onehot=1, categorical_feature=[3])


def _demoted() -> tuple[Any, dict[str, Any]]:
    model, _ = _classifier()
    return model, {"inputs": "features:float32[batch,4]", "dynamic": {"features": {0: "batch", 1: "frozen"}}}


def _saved(booster: Any, folder: Path) -> tuple[Any, dict[str, Any]]:
    booster.save_model(folder / "model.txt")
    return str(folder / "model.txt"), {"framework": None}


def _trusted(folder: Path) -> tuple[Any, dict[str, Any]]:
    path = folder / "model.pkl"
    path.write_bytes(pickle.dumps(_classifier()[0]))
    return str(path), {"trust": True}


def _digits() -> tuple[Any, dict[str, Any]]:
    import lightgbm
    from sklearn.datasets import load_digits

    x, y = load_digits(return_X_y=True)
    words = np.array([f"digit {k}" for k in range(10)])[y]
    return lightgbm.LGBMClassifier(n_estimators=20, n_jobs=2, verbose=-1).fit(x, words), {"inputs": x[:50]}


def _diabetes() -> tuple[Any, dict[str, Any]]:
    import lightgbm
    from sklearn.datasets import load_diabetes

    x, y = load_diabetes(return_X_y=True)
    return lightgbm.LGBMRegressor(n_estimators=60, n_jobs=2, verbose=-1).fit(x, y), {"inputs": x[:50]}


def _cancer() -> tuple[Any, dict[str, Any]]:
    import lightgbm
    from sklearn.datasets import load_breast_cancer

    x, y = load_breast_cancer(return_X_y=True)
    model = lightgbm.LGBMClassifier(
        n_estimators=300, boosting_type="rf", bagging_freq=1, bagging_fraction=0.6, n_jobs=2, verbose=-1
    )
    return model.fit(x, y), {"inputs": x[:50]}


def _planted(folder: Path, canary: Path) -> tuple[Any, dict[str, Any]]:
    path = folder / "model.pkl"
    path.write_bytes(pickle.dumps(Payload(canary)))
    return str(path), {}


def _text(content: str) -> BuildIn:
    def build(folder: Path) -> tuple[Any, dict[str, Any]]:
        (folder / "model.txt").write_text(content)
        return str(folder / "model.txt"), {}

    return build


def _changed(change: Callable[[str], str]) -> BuildIn:
    """A whole file with one thing changed: LightGBM itself would crash or answer anything."""
    return lambda folder: _text(change(_booster().model_to_string()))(folder)


def _dumped(folder: Path) -> tuple[Any, dict[str, Any]]:
    import json

    path = folder / "model.json"
    path.write_text(json.dumps(_booster().dump_model()))
    return str(path), {}


def _linear(folder: Path) -> tuple[Any, dict[str, Any]]:
    return _booster(linear_tree=True), {}


def _no_rows(folder: Path) -> tuple[Any, dict[str, Any]]:
    return _classifier()[0], {"inputs": np.zeros((3, 5), np.float32)}


def _unfitted(folder: Path) -> tuple[Any, dict[str, Any]]:
    import lightgbm

    return lightgbm.LGBMClassifier(), {}


def _own_objective(folder: Path) -> tuple[Any, dict[str, Any]]:
    import lightgbm

    x, y = _data()
    model = lightgbm.LGBMClassifier(**_SMALL, objective=lambda t, p: (p - t, np.ones_like(p)))
    return model.fit(x, y), {}


CASES = ExporterCases(
    module="lightgbm",
    environment="trees",
    ranks={"rank2": _classifier},
    demoted=_demoted,
    guarded=_classifier,
    files={
        "text": lambda folder: _saved(_booster(), folder),
        "text-with-categories": lambda folder: _saved(_categories(), folder),
        "pickle": _trusted,
    },
    trained={"digits": _digits, "diabetes": _diabetes, "cancer": _cancer},
    planted={"pickle": _planted},
    refused={
        "half": Refusal(
            _changed(lambda text: text[: len(text) // 2]), "SourceError", "is damaged: .*is cut off"
        ),
        "empty": Refusal(_text(""), "SourceError", "is no LightGBM model; expected what save_model wrote"),
        "dump-model": Refusal(_dumped, "SourceError", "what dump_model gives.*save_model"),
        "foreign-form": Refusal(
            _text('{"learner": {}}'), "SourceError", "is an XGBoost model .*and the lightgbm"
        ),
        "trees-missing": Refusal(
            _changed(lambda text: text.replace("Tree=14\n", "Free=14\n")), "SourceError", "promises 15 trees"
        ),
        "child-outside": Refusal(
            _changed(lambda text: text.replace("left_child=1 ", "left_child=999999 ", 1)),
            "SourceError", "a child lies outside the tree",
        ),
        "circle": Refusal(
            _changed(lambda text: text.replace("left_child=1 ", "left_child=0 ", 1)),
            "SourceError", "a child lies outside the tree|two parents",
        ),
        "lines-of-different-length": Refusal(
            _changed(lambda text: text.replace("\nleaf_value=", "\nleaf_value=0.5 ", 1)),
            "SourceError", "its lines are of different lengths",
        ),
        "huge-count": Refusal(
            _changed(lambda text: text.replace("num_leaves=", "num_leaves=9999999999", 1)),
            "SourceError", "its lines are of different lengths",
        ),
        "linear-trees": Refusal(_linear, "UnsupportedOperator", "linear models in its leaves"),
        "own-objective": Refusal(_own_objective, "ExportError", "an objective of the user's own"),
        "other-width": Refusal(_no_rows, "ExportError", "has 5 features, .*trained on 4"),
        "not-fitted": Refusal(_unfitted, "ExportError", "is not fitted; call fit"),
    },
)  # fmt: skip
