"""The scikit-learn models of the exporter conformance suite."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from support.exporter_cases import BuildIn, ExporterCases, Refusal, sample
from support.exporter_cases.payloads import Payload
from support.model_packages import unpacked


def _classifier() -> tuple[Any, dict[str, Any]]:
    from sklearn.datasets import load_iris
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    x, y = load_iris(return_X_y=True)
    return make_pipeline(StandardScaler(), LogisticRegression()).fit(x, y), {}


def _demoted() -> tuple[Any, dict[str, Any]]:
    model, _ = _classifier()
    return model, {"inputs": {"features": sample(3, 4)}, "input_names": ["features"],
                   "dynamic": {"features": {0: "batch", 1: "frozen"}}}  # fmt: skip


def _dumped(folder: Path) -> tuple[Any, dict[str, Any]]:
    import joblib

    joblib.dump(_classifier()[0], folder / "model.joblib")
    return str(folder / "model.joblib"), {"trust": True, "framework": None}


def _squeezed(folder: Path) -> tuple[Any, dict[str, Any]]:
    import joblib

    joblib.dump(_classifier()[0], folder / "model.joblib", compress=3)
    return str(folder / "model.joblib"), {"trust": True, "framework": None}


def _pickled(folder: Path) -> tuple[Any, dict[str, Any]]:
    (folder / "model.pkl").write_bytes(pickle.dumps(_classifier()[0]))
    return str(folder / "model.pkl"), {"trust": True, "framework": None}


def _profanity() -> Path:
    return unpacked("alt-profanity-check") / "profanity_check" / "data"


def _offensive_words() -> tuple[Any, dict[str, Any]]:
    """The calibrated classifier that the package ships, on counts of words."""
    return str(_profanity() / "model.joblib"), {"trust": True}


def _offensive_texts() -> tuple[Any, dict[str, Any]]:
    """The same behind the vectorizer that it was trained with: texts in, probabilities out."""
    import joblib
    from sklearn.pipeline import make_pipeline

    steps = [joblib.load(_profanity() / name) for name in ("vectorizer.joblib", "model.joblib")]
    return make_pipeline(*steps), {}


def _digits() -> tuple[Any, dict[str, Any]]:
    from sklearn.datasets import load_digits
    from sklearn.ensemble import ExtraTreesClassifier

    x, y = load_digits(return_X_y=True)
    return ExtraTreesClassifier(20, random_state=0).fit(x, y), {"inputs": x[:50]}


def _cancer() -> tuple[Any, dict[str, Any]]:
    from sklearn.calibration import CalibratedClassifierCV
    from sklearn.datasets import load_breast_cancer
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler
    from sklearn.svm import LinearSVC

    x, y = load_breast_cancer(return_X_y=True)
    return make_pipeline(StandardScaler(), CalibratedClassifierCV(LinearSVC(), cv=3)).fit(x, y), {
        "inputs": x[:50]
    }


def _diabetes() -> tuple[Any, dict[str, Any]]:
    from sklearn.datasets import load_diabetes
    from sklearn.ensemble import HistGradientBoostingRegressor

    x, y = load_diabetes(return_X_y=True)
    x[::7, 3] = np.nan
    model = HistGradientBoostingRegressor(max_iter=40, categorical_features=[1], random_state=0)
    return model.fit(x, y), {"inputs": x[:50]}


def _planted(name: str) -> Callable[[Path, Path], tuple[Any, dict[str, Any]]]:
    def plant(folder: Path, canary: Path) -> tuple[Any, dict[str, Any]]:
        (folder / name).write_bytes(pickle.dumps(Payload(canary)))
        return str(folder / name), {}

    return plant


def _planted_compressed(folder: Path, canary: Path) -> tuple[Any, dict[str, Any]]:
    import joblib

    joblib.dump(Payload(canary), folder / "model.joblib", compress=3)
    return str(folder / "model.joblib"), {}


def _file(content: bytes) -> BuildIn:
    def build(folder: Path) -> tuple[Any, dict[str, Any]]:
        (folder / "model.joblib").write_bytes(content)
        return str(folder / "model.joblib"), {"trust": True}

    return build


def _half(folder: Path) -> tuple[Any, dict[str, Any]]:
    return _file(pickle.dumps(_classifier()[0])[:-200])(folder)


def _columns_without_example(folder: Path) -> tuple[Any, dict[str, Any]]:
    from sklearn.compose import ColumnTransformer
    from sklearn.preprocessing import StandardScaler

    model = ColumnTransformer([("scaled", StandardScaler(), ["age"])])
    model.feature_names_in_ = np.array(["age", "town"], dtype=object)
    model.transformers_, model.n_features_in_ = list(model.transformers), 2
    return model, {}


def _unfitted(folder: Path) -> tuple[Any, dict[str, Any]]:
    from sklearn.linear_model import LogisticRegression

    return LogisticRegression(), {}


def _hashed_words(folder: Path) -> tuple[Any, dict[str, Any]]:
    from sklearn.feature_extraction.text import HashingVectorizer
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline

    model = make_pipeline(HashingVectorizer(n_features=16), LogisticRegression())
    return model.fit(["one two", "three four"], [0, 1]), {"inputs": np.array(["one", "two"])}


def _several_targets(folder: Path) -> tuple[Any, dict[str, Any]]:
    from sklearn.ensemble import RandomForestClassifier

    y = np.array([[0, 1], [1, 0], [1, 1], [0, 0]])
    return RandomForestClassifier(2).fit(sample(4, 3), y), {}


CASES = ExporterCases(
    module="sklearn",
    environment="trees",
    ranks={"rank2": _classifier},
    demoted=_demoted,
    guarded=_classifier,
    files={"joblib": _dumped, "compressed-joblib": _squeezed, "pickle": _pickled},
    trained={
        "offensive-words": _offensive_words,
        "offensive-texts": _offensive_texts,
        "digits": _digits,
        "cancer": _cancer,
        "diabetes": _diabetes,
    },
    packages=("alt-profanity-check",),
    planted={
        "joblib": _planted("model.joblib"),
        "pickle": _planted("model.pkl"),
        "compressed-joblib": _planted_compressed,
    },
    refused={
        "half-written": Refusal(_half, "SourceError", "cannot be opened: .*Expected a whole file"),
        "empty": Refusal(_file(b""), "SourceError", "cannot be opened: EOFError"),
        "no-estimator": Refusal(
            _file(pickle.dumps({"model": 1})), "SourceError", "is not a scikit-learn estimator"
        ),
        "columns-without-example": Refusal(
            _columns_without_example, "ExportError", r"fitted on the columns \['age', 'town'\].*frame.head"
        ),
        "not-fitted": Refusal(_unfitted, "ExportError", "is not fitted; call fit"),
        "no-onnx-form": Refusal(
            _hashed_words, "UnsupportedOperator", "HashingVectorizer in hashingvectorizer"
        ),
        "several-targets": Refusal(_several_targets, "ExportError", "was fitted on 2 targets at once"),
    },
)
