"""The XGBoost models of the exporter conformance suite."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from support.exporter_cases import BuildIn, ExporterCases, Refusal
from support.exporter_cases.payloads import Payload

_SMALL = {"n_estimators": 20, "max_depth": 4, "n_jobs": 1}


def _data() -> tuple[Any, Any]:
    """Four numbers, one of them whole, with gaps; two classes."""
    rng = np.random.default_rng(26)
    x = rng.normal(size=(300, 4)).astype(np.float32)
    x[:, 3] = rng.integers(0, 7, 300)
    y = ((x[:, 0] > 0.2) ^ np.isin(x[:, 3], [2, 5])).astype(int)
    x[rng.random(x.shape) < 0.1] = np.nan
    return x, y


def _classifier() -> tuple[Any, dict[str, Any]]:
    import xgboost

    x, y = _data()
    return xgboost.XGBClassifier(**_SMALL).fit(x, y), {}


def _early() -> Any:
    import xgboost

    x, y = _data()
    model = xgboost.XGBClassifier(
        n_estimators=200, base_score=0.2, early_stopping_rounds=5, eval_metric="logloss", n_jobs=1
    )
    return model.fit(x[:200], y[:200], eval_set=[(x[200:], y[200:])], verbose=False)


def _booster(**parameters: Any) -> Any:
    import xgboost

    x, y = _data()
    given = {"objective": "binary:logistic", "nthread": 1, "max_depth": 4, **parameters}
    return xgboost.train(given, xgboost.DMatrix(x, label=y), 15)


def _demoted() -> tuple[Any, dict[str, Any]]:
    model, _ = _classifier()
    return model, {"inputs": "features:float32[batch,4]", "dynamic": {"features": {0: "batch", 1: "frozen"}}}


def _saved(model: Any, path: Path) -> tuple[Any, dict[str, Any]]:
    model.save_model(path)
    return str(path), {"framework": None}


def _trusted(folder: Path) -> tuple[Any, dict[str, Any]]:
    path = folder / "model.pkl"
    path.write_bytes(pickle.dumps(_classifier()[0]))
    return str(path), {"trust": True}


def _digits() -> tuple[Any, dict[str, Any]]:
    import xgboost
    from sklearn.datasets import load_digits

    x, y = load_digits(return_X_y=True)
    return xgboost.XGBClassifier(n_estimators=30, max_depth=4, n_jobs=2).fit(x, y), {"inputs": x[:50]}


def _diabetes() -> tuple[Any, dict[str, Any]]:
    import xgboost
    from sklearn.datasets import load_diabetes

    x, y = load_diabetes(return_X_y=True)
    model = xgboost.XGBRegressor(n_estimators=60, max_depth=4, booster="dart", rate_drop=0.2, n_jobs=2)
    return model.fit(x, y), {"inputs": x[:50]}


def _cancer() -> tuple[Any, dict[str, Any]]:
    import xgboost
    from sklearn.datasets import load_breast_cancer

    x, y = load_breast_cancer(return_X_y=True)
    return xgboost.XGBRFClassifier(n_estimators=40, n_jobs=2).fit(x, y), {"inputs": x[:50]}


def _planted(folder: Path, canary: Path) -> tuple[Any, dict[str, Any]]:
    path = folder / "model.pkl"
    path.write_bytes(pickle.dumps(Payload(canary)))
    return str(path), {}


def _cut(suffix: str, keep: float) -> BuildIn:
    def build(folder: Path) -> tuple[Any, dict[str, Any]]:
        path = folder / f"model{suffix}"
        _booster().save_model(path)
        data = path.read_bytes()
        path.write_bytes(data[: int(len(data) * keep)])
        return str(path), {}

    return build


def _text(name: str, content: bytes) -> BuildIn:
    def build(folder: Path) -> tuple[Any, dict[str, Any]]:
        (folder / name).write_bytes(content)
        return str(folder / name), {}

    return build


def _damaged(change: Callable[[Any], None]) -> BuildIn:
    """A whole document with one thing in a tree changed: XGBoost itself would crash or answer anything."""

    def build(folder: Path) -> tuple[Any, dict[str, Any]]:
        path = folder / "model.json"
        _booster().save_model(path)
        document = json.loads(path.read_bytes())
        change(document["learner"])
        path.write_text(json.dumps(document))
        return str(path), {}

    return build


def _trees(learner: Any) -> Any:
    return learner["gradient_booster"]["model"]["trees"]


def _wide_example(folder: Path) -> tuple[Any, dict[str, Any]]:
    return _classifier()[0], {"inputs": np.zeros((3, 5), np.float32)}


def _other_columns(folder: Path) -> tuple[Any, dict[str, Any]]:
    import pandas
    import xgboost

    x, y = _data()
    frame = pandas.DataFrame(x, columns=["age", "size", "weight", "town"])
    model = xgboost.XGBClassifier(**_SMALL).fit(frame, y)
    return model, {"inputs": frame.rename(columns={"town": "city"})}


def _unfitted(folder: Path) -> tuple[Any, dict[str, Any]]:
    import xgboost

    return xgboost.XGBClassifier(), {}


CASES = ExporterCases(
    module="xgboost",
    environment="trees",
    ranks={"rank2": _classifier},
    demoted=_demoted,
    guarded=_classifier,
    files={
        "booster-json": lambda folder: _saved(_booster(), folder / "model.json"),
        "booster-ubj": lambda folder: _saved(_booster(), folder / "model.ubj"),
        "estimator-json": lambda folder: _saved(_early(), folder / "model.json"),
        "estimator-ubj": lambda folder: _saved(_early(), folder / "model.ubj"),
        "linear-json": lambda folder: _saved(_booster(booster="gblinear"), folder / "model.json"),
        "pickle": _trusted,
    },
    trained={"digits": _digits, "diabetes": _diabetes, "cancer": _cancer},
    planted={"pickle": _planted},
    refused={
        "half-json": Refusal(_cut(".json", 0.5), "SourceError", "cannot be read: .*Expected a whole file"),
        "half-ubj": Refusal(_cut(".ubj", 0.5), "SourceError", "cannot be read: .*Expected a whole file"),
        "empty": Refusal(_text("model.json", b""), "SourceError", "cannot be read"),
        "foreign-json": Refusal(
            _text("model.json", b'{"layers": []}'), "SourceError", "has no learner with a gradient_booster"
        ),
        "deep-json": Refusal(
            _text("model.json", b'{"learner": ' + b"[" * 100_000), "SourceError", "nested too deeply"
        ),
        "huge-promise": Refusal(
            _text("model.ubj", b"{L\x00\x00\x00\x00\x00\x00\x00\x07learner[$d#L\x0f" + b"\xff" * 7),
            "SourceError", "asks for .* more, and 0 are left",
        ),
        "foreign-form": Refusal(
            _text("model.json", b"tree\nversion=v4\n"), "SourceError", "is a LightGBM model, and the xgboost"
        ),
        "child-outside": Refusal(
            _damaged(lambda learner: _trees(learner)[0]["left_children"].__setitem__(0, 10**6)),
            "SourceError", "a child lies outside the tree",
        ),
        "circle": Refusal(
            _damaged(lambda learner: _trees(learner)[0]["left_children"].__setitem__(0, 0)),
            "SourceError", "a node has two parents",
        ),
        "feature-outside": Refusal(
            _damaged(lambda learner: _trees(learner)[0]["split_indices"].__setitem__(0, 99)),
            "SourceError", "asks for a feature that is not there",
        ),
        "other-width": Refusal(_wide_example, "ExportError", "has 5 features, .*trained on 4"),
        "other-columns": Refusal(
            _other_columns, "ExportError", r"missing \['town'\], unknown \['city'\]"
        ),
        "not-fitted": Refusal(_unfitted, "ExportError", "is not fitted; call fit"),
    },
)  # fmt: skip
