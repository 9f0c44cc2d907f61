"""Transformers are asked at their thresholds, and without values where they allow that."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from sklearn.compose import make_column_transformer
from sklearn.datasets import load_iris
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline, make_union
from sklearn.preprocessing import (
    Binarizer,
    KBinsDiscretizer,
    MaxAbsScaler,
    MinMaxScaler,
    PowerTransformer,
    RobustScaler,
    StandardScaler,
)

from paritygate.converter.errors import ExportError
from paritygate.converter.exporters import export_model
from paritygate.converter.parity.validate import validate_bundle

_X, _Y = load_iris(return_X_y=True)
_BINS = KBinsDiscretizer(4, encode="ordinal", strategy="quantile", quantile_method="averaged_inverted_cdf")

_PARTED: dict[str, Callable[[], Any]] = {
    "binarizer": lambda: Binarizer(threshold=2.4),
    "bins": lambda: _BINS,
    "union": lambda: make_union(Binarizer(threshold=1.3), StandardScaler()),
    "columns": lambda: make_column_transformer(
        (Binarizer(threshold=2.4), [2]), (StandardScaler(), slice(0, 2))
    ),
    "mask": lambda: make_column_transformer((Binarizer(threshold=0.3), [False, False, False, True])),
    "pipeline": lambda: make_pipeline(Binarizer(threshold=0.1), LogisticRegression()),
}


@pytest.mark.parametrize("name", _PARTED)
def test_both_sides_of_every_threshold_are_asked_and_agree(name: str, tmp_path: Path) -> None:
    bundle = export_model(_PARTED[name]().fit(_X, _Y), tmp_path / "b", name="parted")
    assert "edges:features:0" in {probe.case for probe in bundle.probes()}
    certificate = validate_bundle(bundle)
    assert certificate.verdict == "pass", certificate.reason


def test_a_threshold_that_is_one_step_off_fails(tmp_path: Path) -> None:
    def one_step_up(path: Path) -> None:
        model = onnx.load(path)
        (threshold,) = model.graph.initializer
        moved = np.nextafter(np.float32(numpy_helper.to_array(threshold)), np.float32(9)).astype(np.float64)
        threshold.CopyFrom(numpy_helper.from_array(moved, threshold.name))
        onnx.save(model, path)

    model = Binarizer(threshold=2.4).fit(_X)
    bundle = export_model(model, tmp_path / "b", name="parted", after_conversion=one_step_up)
    certificate = validate_bundle(bundle)
    assert certificate.verdict == "fail"
    assert "edges:features:0" in certificate.reason


@pytest.mark.parametrize(
    "kind", [StandardScaler, MinMaxScaler, MaxAbsScaler, RobustScaler, PowerTransformer, SimpleImputer]
)
def test_missing_values_are_asked_where_they_are_allowed(kind: Any, tmp_path: Path) -> None:
    bundle = export_model(kind().fit(_X), tmp_path / "b", name="gaps")
    assert "edges:missing:0" in {probe.case for probe in bundle.probes()}
    certificate = validate_bundle(bundle)
    assert certificate.verdict == "pass", certificate.reason


def _marked(number: float) -> Any:
    return make_pipeline(SimpleImputer(missing_values=number), LogisticRegression(max_iter=1000))


@pytest.mark.parametrize(
    ("make", "number"),
    [
        (lambda: make_pipeline(Binarizer(threshold=0.3), LogisticRegression()), "threshold=0.3"),
        (lambda: make_column_transformer((Binarizer(threshold=2.4), [0])), "threshold=2.4"),
        (lambda: _marked(-999.9), "missing_values=-999.9"),
    ],
)
def test_float32_data_compared_with_what_float32_does_not_have_are_refused(
    make: Callable[[], Any], number: str, tmp_path: Path
) -> None:
    """NumPy compares float32 data in float32: the graph would be wrong on the user's own rows."""
    narrow = _X.astype(np.float32)
    with pytest.raises(ExportError, match=number):
        export_model(make().fit(narrow, _Y), tmp_path / "b", name="m", inputs=narrow)
    bundle = export_model(make().fit(_X, _Y), tmp_path / "b", name="m", inputs=_X)
    assert any(number in note for note in bundle.manifest["notes"])


@pytest.mark.parametrize("number", [-999.0, np.float32(-999.9), 2.5])
def test_numbers_that_float32_has_are_compared_as_scikit_learn_does(number: float, tmp_path: Path) -> None:
    narrow = _X.astype(np.float32)
    narrow[::5, 1] = number
    bundle = export_model(_marked(number).fit(narrow, _Y), tmp_path / "b", name="m", inputs=narrow)
    certificate = validate_bundle(bundle)
    assert certificate.verdict == "pass", certificate.reason
    assert not any("float32 does not have" in note for note in bundle.manifest["notes"])
