"""Estimators that were given no example are asked on the scale on which they were fitted."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.cluster import KMeans
from sklearn.compose import ColumnTransformer
from sklearn.decomposition import PCA
from sklearn.discriminant_analysis import QuadraticDiscriminantAnalysis
from sklearn.ensemble import BaggingClassifier, RandomForestClassifier
from sklearn.feature_selection import SelectKBest
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.mixture import GaussianMixture
from sklearn.naive_bayes import GaussianNB
from sklearn.neighbors import KNeighborsRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import (
    KBinsDiscretizer,
    MinMaxScaler,
    PolynomialFeatures,
    QuantileTransformer,
    RobustScaler,
    StandardScaler,
)
from sklearn.svm import SVC, SVR, OneClassSVM

from paritygate.converter.bundle import Bundle
from paritygate.converter.exporters import export_model
from paritygate.converter.exporters._sklearn import scales
from paritygate.converter.exporters._sklearn.scales import fitted_scale
from paritygate.converter.parity.validate import validate_bundle

_NORMAL = np.random.default_rng(0).standard_normal((200, 3))
_CLASS = (_NORMAL[:, 0] + _NORMAL[:, 1] > 0).astype(int)
_AMOUNT = _NORMAL @ [2.0, -1.0, 0.5]
_DATES = 1.7e9 + 1000 * _NORMAL
"""As seconds since 1970: float32 has steps of 128 there."""


def _export(estimator: Any, folder: Path, **options: Any) -> Bundle:
    return export_model(estimator, folder / "bundle", name="scale", **options)


_ZOO: dict[str, tuple[Callable[[], Any], Any]] = {
    "scaler": (lambda: make_pipeline(StandardScaler(), LogisticRegression()), _CLASS),
    "min-max": (lambda: make_pipeline(MinMaxScaler(clip=True), LogisticRegression(C=1e3)), _CLASS),
    "robust": (lambda: make_pipeline(RobustScaler(), LinearRegression()), _AMOUNT),
    "polynomials": (
        lambda: make_pipeline(StandardScaler(), PolynomialFeatures(3), LinearRegression()),
        _AMOUNT,
    ),
    "components": (lambda: make_pipeline(PCA(2), LogisticRegression()), _CLASS),
    "bayes": (GaussianNB, _CLASS),
    "discriminant": (QuadraticDiscriminantAnalysis, _CLASS),
    "bins": (lambda: make_pipeline(KBinsDiscretizer(8, encode="ordinal"), LinearRegression()), _AMOUNT),
    "quantiles": (lambda: make_pipeline(QuantileTransformer(n_quantiles=20), LinearRegression()), _AMOUNT),
    "neighbours": (lambda: KNeighborsRegressor(3), _AMOUNT),
    "clusters": (lambda: KMeans(4, n_init=1, random_state=0), None),
    "process": (lambda: make_pipeline(StandardScaler(), GaussianProcessRegressor(alpha=0.1)), _AMOUNT),
    "vectors": (SVC, _CLASS),
    "vectors-of-amounts": (SVR, _AMOUNT),
    "vectors-of-outliers": (OneClassSVM, None),
    "bagging": (lambda: BaggingClassifier(GaussianNB(), 2, max_features=2, random_state=0), _CLASS),
    "columns": (
        lambda: make_pipeline(
            ColumnTransformer([("a", StandardScaler(), [2]), ("b", MinMaxScaler(), slice(0, 2))]),
            LogisticRegression(),
        ),
        _CLASS,
    ),
    "after-others": (
        lambda: make_pipeline(SimpleImputer(), SelectKBest(k=2), StandardScaler(), LogisticRegression()),
        _CLASS,
    ),
}


@pytest.mark.parametrize("name", _ZOO)
def test_what_was_fitted_on_dates_is_asked_dates_and_exact(name: str, tmp_path: Path) -> None:
    build, target = _ZOO[name]
    bundle = _export(build().fit(_DATES, target), tmp_path)
    probes = {probe.case: probe for probe in bundle.probes()}
    asked = probes["like_example"].inputs["x"]
    assert asked.dtype == np.float32
    assert (
        np.all(np.abs(asked[:, 2 if name == "after-others" else 0] - 1.7e9) < 1e5) or name == "after-others"
    )
    assert all(spec.dtype.value in ("float32", "int64") for spec in bundle.signature.outputs)
    certificate = validate_bundle(bundle)
    assert certificate.verdict == "pass", certificate.reason
    assert any("the graph computes in float64" in note for note in bundle.manifest["notes"])


@pytest.mark.parametrize("name", ["scaler", "bayes", "components", "quantiles", "process"])
def test_what_float32_loses_of_dates_fails_parity(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scales, "FAR", np.inf)
    build, target = _ZOO[name]
    certificate = validate_bundle(_export(build().fit(_DATES, target), tmp_path))
    assert certificate.verdict == "fail"
    assert "case 'like_example" in str(certificate.reason)


def test_an_example_that_lies_far_from_zero_is_computed_in_float64(tmp_path: Path) -> None:
    model = LinearRegression().fit(_DATES, _AMOUNT)
    bundle = _export(model, tmp_path, inputs=_DATES[:20])
    assert any("the graph computes in float64" in note for note in bundle.manifest["notes"])
    assert validate_bundle(bundle).verdict == "pass"


def test_what_lies_near_zero_stays_float32(tmp_path: Path) -> None:
    bundle = _export(GaussianNB().fit(_NORMAL + 5, _CLASS), tmp_path)
    assert not any("computes in float64" in note for note in bundle.manifest["notes"])


def test_years_in_whole_numbers_are_asked_around_their_mean(tmp_path: Path) -> None:
    years = np.rint(1990 + 10 * _NORMAL).astype(np.int64)
    model = make_pipeline(StandardScaler(), LogisticRegression()).fit(years, _CLASS)
    bundle = _export(model, tmp_path, inputs="x:int64[batch,3]")
    base = next(probe for probe in bundle.probes() if probe.case == "base").inputs["x"]
    assert np.all((base > 1900) & (base < 2100))
    assert validate_bundle(bundle).verdict == "pass"


_MEAN, _DEVIATION = np.array([1e6, -5.0, 0.0]), np.array([3.0, 0.5, 2.0])


@pytest.mark.parametrize(
    ("build", "target"),
    [
        (StandardScaler, None),
        (lambda: PCA(2), None),
        (GaussianNB, _CLASS),
        (QuadraticDiscriminantAnalysis, _CLASS),
        (lambda: GaussianMixture(2, covariance_type="diag", random_state=0), None),
        (lambda: KNeighborsRegressor(3), _AMOUNT),
        (lambda: QuantileTransformer(n_quantiles=50), None),
        (lambda: RandomForestClassifier(5, random_state=0), _CLASS),
        (lambda: make_pipeline(SimpleImputer(), StandardScaler(with_std=False), PCA(3)), None),
    ],
)
def test_the_scale_is_that_of_the_training_data(build: Callable[[], Any], target: Any) -> None:
    x = _MEAN + _DEVIATION * _NORMAL
    scale = fitted_scale(build().fit(x, target), 3)
    assert np.all(np.abs(scale.center - _MEAN) < _DEVIATION)
    assert np.all((scale.spread > _DEVIATION / 4) & (scale.spread < _DEVIATION * 4))
    rows = scale.rows(5)
    np.testing.assert_allclose(rows.mean(axis=0), scale.center)
    np.testing.assert_allclose(rows.std(axis=0), scale.spread, rtol=1e-6)


def test_a_linear_model_tells_nothing_of_its_scale() -> None:
    assert not fitted_scale(LinearRegression().fit(_DATES, _AMOUNT), 3).is_known
