"""The scikit-learn models of the exporter conformance suite."""

from __future__ import annotations

from typing import Any

from support.exporter_cases import ExporterCases, sample


def _sklearn_classifier() -> tuple[Any, dict[str, Any]]:
    from sklearn.datasets import load_iris
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    x, y = load_iris(return_X_y=True)
    return make_pipeline(StandardScaler(), LogisticRegression()).fit(x, y), {}


def _sklearn_demoted() -> tuple[Any, dict[str, Any]]:
    model, _ = _sklearn_classifier()
    return model, {"inputs": {"features": sample(3, 4)}, "input_names": ["features"],
                   "dynamic": {"features": {0: "batch", 1: "frozen"}}}  # fmt: skip


CASES = ExporterCases(
    module="sklearn",
    environment="trees",
    ranks={"rank2": _sklearn_classifier},
    demoted=_sklearn_demoted,
    guarded=_sklearn_classifier,
)
