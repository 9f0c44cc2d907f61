"""Which methods of an estimator are served, and their results as plain arrays."""

from __future__ import annotations

from typing import Any

import numpy as np

from paritygate.converter.errors import ExportError
from paritygate.converter.types import Array

LABEL, PROBABILITIES, SCORES = "label", "probabilities", "scores"
PREDICTION, TRANSFORMED = "prediction", "transformed"


def methods(estimator: Any) -> dict[str, str]:
    """Output name -> the estimator's method that gives it, in the order of skl2onnx's graph outputs."""
    from sklearn.base import is_classifier, is_outlier_detector, is_regressor

    if is_classifier(estimator):
        _refuse_several_targets(estimator)
        if hasattr(estimator, "predict_proba"):
            return {LABEL: "predict", PROBABILITIES: "predict_proba"}
        scores = {SCORES: "decision_function"} if hasattr(estimator, "decision_function") else {}
        return {LABEL: "predict"} | scores
    if is_outlier_detector(estimator) and hasattr(estimator, "decision_function"):
        return {LABEL: "predict", SCORES: "decision_function"}
    if is_regressor(estimator):
        return {PREDICTION: "predict"}
    if hasattr(estimator, "predict"):
        return {LABEL: "predict"}
    if hasattr(estimator, "transform"):
        return {TRANSFORMED: "transform"}
    raise ExportError(
        f"{type(estimator).__name__} has neither predict nor transform for new samples, so it cannot be served."
    )


def _refuse_several_targets(estimator: Any) -> None:
    classes = getattr(estimator, "classes_", None)
    if isinstance(classes, list):
        raise ExportError(
            f"{type(estimator).__name__} was fitted on {len(classes)} targets at once and gives a list of "
            "probability arrays, which no served tensor is. Export one classifier for each target."
        )


def as_output(name: str, value: Any) -> Array:
    if hasattr(value, "toarray"):
        value = value.toarray()
    if hasattr(value, "to_numpy"):
        value = value.to_numpy()
    if not isinstance(value, np.ndarray):
        raise ExportError(
            f"output {name!r} is a {type(value).__name__}, not an array, so it cannot be served."
        )
    if value.dtype.kind in "OUS":
        return value.astype(str).astype(object)
    if name == LABEL:
        return as_labels(value)
    return value


def as_labels(value: Array) -> Array:
    """Labels as int64, which is what converted graphs give; the numbers stay what they are."""
    labels = value.astype(np.int64)
    if not np.array_equal(labels, value):
        odd = value[labels != value][0]
        raise ExportError(
            f"the class label {odd} is not a whole number of 64 bits; ONNX classifiers give those or strings. "
            "Fit on strings or whole numbers."
        )
    return labels


def widened(array: Array) -> Array:
    return array.astype(np.float64) if array.dtype in (np.float32, np.float16) else array
