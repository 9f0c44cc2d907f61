"""scikit-learn estimators: their own answers are sealed, labels exactly, and pickles stay shut without trust."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import joblib
import numpy as np
import onnx
import pytest
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.calibration import CalibratedClassifierCV
from sklearn.cluster import KMeans
from sklearn.datasets import load_iris
from sklearn.decomposition import PCA
from sklearn.ensemble import (
    GradientBoostingClassifier,
    HistGradientBoostingRegressor,
    IsolationForest,
    RandomForestClassifier,
    RandomForestRegressor,
)
from sklearn.linear_model import LinearRegression, LogisticRegression, RidgeClassifier
from sklearn.model_selection import GridSearchCV
from sklearn.multioutput import MultiOutputClassifier
from sklearn.naive_bayes import GaussianNB
from sklearn.neighbors import KNeighborsClassifier, NearestNeighbors
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC, LinearSVC
from sklearn.tree import DecisionTreeClassifier

from paritygate.converter.bundle import Bundle, Probe
from paritygate.converter.config import ExportConfig
from paritygate.converter.environments import export_source
from paritygate.converter.errors import (
    ExportError,
    ModuleMissing,
    SourceError,
    SourceNotFound,
    UnsafeSource,
    UnsupportedOperator,
)
from paritygate.converter.exporters import detect, export_model
from paritygate.converter.parity.validate import validate_bundle
from paritygate.converter.types import DType
from support.environments import real_environment

_X, _Y = load_iris(return_X_y=True)
_WORDS = np.array(["setosa", "versicolor", "virginica"])[_Y]


def _export(estimator: Any, tmp_path: Path, **options: Any) -> Bundle:
    return export_model(estimator, tmp_path / "bundle", name="iris", **options)


def _probes(bundle: Bundle) -> list[Probe]:
    return list(bundle.probes())


_ZOO: dict[str, tuple[Callable[[], Any], Any, list[str]]] = {
    "logistic": (
        lambda: LogisticRegression(max_iter=500),
        _Y,
        ["label: int64[batch]", "probabilities: float32[batch, 3]"],
    ),
    "two-classes": (
        lambda: LogisticRegression(max_iter=500),
        _Y > 0,
        ["label: int64[batch]", "probabilities: float32[batch, 2]"],
    ),
    "bayes": (GaussianNB, _Y, ["label: int64[batch]", "probabilities: float32[batch, 3]"]),
    "string-labels": (
        lambda: RandomForestClassifier(5, random_state=0),
        _WORDS,
        ["label: string[batch]", "probabilities: float32[batch, 3]"],
    ),
    "int32-labels": (
        DecisionTreeClassifier,
        _Y.astype(np.int32),
        ["label: int64[batch]", "probabilities: float32[batch, 3]"],
    ),
    "bool-labels": (
        DecisionTreeClassifier,
        _Y > 0,
        ["label: int64[batch]", "probabilities: float32[batch, 2]"],
    ),
    "whole-float-labels": (
        DecisionTreeClassifier,
        _Y.astype(float),
        ["label: int64[batch]", "probabilities: float32[batch, 3]"],
    ),
    "boosting": (
        lambda: GradientBoostingClassifier(n_estimators=5, random_state=0),
        _Y,
        ["label: int64[batch]", "probabilities: float32[batch, 3]"],
    ),
    "calibrated": (
        lambda: CalibratedClassifierCV(LinearSVC()),
        _Y,
        ["label: int64[batch]", "probabilities: float32[batch, 3]"],
    ),
    "neighbours": (KNeighborsClassifier, _Y, ["label: int64[batch]", "probabilities: float32[batch, 3]"]),
    "grid-search": (
        lambda: GridSearchCV(LogisticRegression(max_iter=500), {"C": [1.0]}),
        _Y,
        ["label: int64[batch]", "probabilities: float32[batch, 3]"],
    ),
    "pipeline": (
        lambda: make_pipeline(StandardScaler(), PCA(3), LogisticRegression()),
        _Y,
        ["label: int64[batch]", "probabilities: float32[batch, 3]"],
    ),
    "several-classes-at-once": (
        lambda: MLPClassifier((4,), solver="lbfgs", max_iter=5000, random_state=0),
        np.eye(3, dtype=int)[_Y],
        ["label: int64[batch, 3]", "probabilities: float32[batch, 3]"],
    ),
    "scores": (SVC, _Y, ["label: int64[batch]", "scores: float32[batch, 3]"]),
    "scores-without-zipmap-option": (LinearSVC, _Y, ["label: int64[batch]", "scores: float32[batch, 3]"]),
    "two-classes-without-probabilities": (RidgeClassifier, (_Y > 0).astype(int), ["label: int64[batch]"]),
    "outliers": (
        lambda: IsolationForest(n_estimators=5, random_state=0),
        None,
        ["label: int64[batch]", "scores: float32[batch]"],
    ),
    "clusters": (lambda: KMeans(3, n_init=1, random_state=0), None, ["label: int64[batch]"]),
    "regression": (LinearRegression, _X[:, 0], ["prediction: float32[batch]"]),
    "two-targets": (LinearRegression, _X[:, :2], ["prediction: float32[batch, 2]"]),
    "forest-regression": (
        lambda: RandomForestRegressor(5, random_state=0),
        _X[:, 0],
        ["prediction: float32[batch]"],
    ),
    "hist-regression": (
        lambda: HistGradientBoostingRegressor(max_iter=5),
        _X[:, 0],
        ["prediction: float32[batch]"],
    ),
    "transformer": (lambda: PCA(2), None, ["transformed: float32[batch, 2]"]),
}


@pytest.mark.parametrize("name", _ZOO)
def test_an_estimator_becomes_a_proven_bundle_with_its_own_answers(name: str, tmp_path: Path) -> None:
    build, target, outputs = _ZOO[name]
    estimator = build().fit(_X, target) if target is not None else build().fit(_X)
    bundle = _export(estimator, tmp_path)
    assert [str(spec) for spec in bundle.signature.inputs] == ["x: float32[batch, 4]"]
    assert [str(spec) for spec in bundle.signature.outputs] == outputs
    certificate = validate_bundle(bundle)
    assert certificate.verdict == "pass", certificate.reason
    for probe in _probes(bundle):
        if "label" in probe.outputs:
            own = estimator.predict(probe.inputs["x"].astype(np.float64))
            assert probe.outputs["label"].tolist() == own.tolist()


def test_probes_hold_scikit_learns_own_numbers_and_their_float64_form(tmp_path: Path) -> None:
    estimator = LogisticRegression(max_iter=500).fit(_X, _Y)
    for probe in _probes(_export(estimator, tmp_path)):
        exact = estimator.predict_proba(probe.inputs["x"].astype(np.float64))
        assert probe.float64 is not None
        assert probe.float64["probabilities"].dtype == np.float64
        np.testing.assert_array_equal(probe.float64["probabilities"], exact)
        np.testing.assert_array_equal(probe.outputs["probabilities"], exact.astype(np.float32))


def test_a_tree_is_asked_with_the_float32_values_that_the_graph_gets(tmp_path: Path) -> None:
    """Thresholds lie between neighbours in float64; a sample rounded to float32 may fall on the other side."""
    rng = np.random.default_rng(3)
    x = rng.random((400, 4))
    tree = DecisionTreeClassifier(random_state=0).fit(x, rng.integers(0, 2, 400))
    thresholds = tree.tree_.threshold[tree.tree_.feature == 0]
    assert thresholds.size > 10
    near = np.full((thresholds.size, 4), 0.5)
    near[:, 0] = thresholds
    samples = [{"x": near.astype(np.float32)}, {"x": np.nextafter(near.astype(np.float32), np.float32(2))}]
    bundle = _export(tree, tmp_path, samples=samples, include_samples=True)
    assert validate_bundle(bundle).verdict == "pass"
    sealed = [probe for probe in _probes(bundle) if probe.case.startswith("sample")]
    assert len(sealed) == 2
    for probe in sealed:
        assert probe.outputs["label"].tolist() == tree.predict(probe.inputs["x"]).tolist()


def test_weights_changed_after_conversion_fail_parity(tmp_path: Path) -> None:
    """The exporter must not take its answers from the ONNX file."""

    def spoil(path: Path) -> None:
        model = onnx.load(path)
        node = next(node for node in model.graph.node if node.op_type == "LinearClassifier")
        intercepts = next(attribute for attribute in node.attribute if attribute.name == "intercepts")
        intercepts.floats[0] += 0.5
        onnx.save(model, path)

    estimator = LogisticRegression(max_iter=500).fit(_X, _Y)
    certificate = validate_bundle(_export(estimator, tmp_path, after_conversion=spoil))
    assert certificate.verdict == "fail"
    assert "probabilities" in (certificate.reason or "")


def test_names_of_the_user_are_used(tmp_path: Path) -> None:
    estimator = DecisionTreeClassifier().fit(_X, _Y)
    bundle = _export(
        estimator,
        tmp_path,
        input_names=["features"],
        output_names=["species", "share"],
        dynamic={"features": {0: "flowers"}},
    )
    assert str(bundle.signature) == (
        "(features: float32[flowers, 4]) -> (species: int64[flowers], share: float32[flowers, 3])"
    )


def test_an_example_gives_its_name_and_float64_is_rounded_with_a_word(tmp_path: Path) -> None:
    bundle = _export(DecisionTreeClassifier().fit(_X, _Y), tmp_path, inputs={"features": _X[:5]})
    assert [str(spec) for spec in bundle.signature.inputs] == ["features: float32[batch, 4]"]
    assert any("the example's float64 was rounded" in note for note in bundle.manifest["notes"])


def test_declared_float64_stays_float64(tmp_path: Path) -> None:
    bundle = _export(LinearRegression().fit(_X, _X[:, 0]), tmp_path, inputs="x:float64[batch,4]")
    assert [spec.dtype for spec in (*bundle.signature.inputs, *bundle.signature.outputs)] == [
        DType.FLOAT64
    ] * 2
    assert validate_bundle(bundle).verdict == "pass"


def test_an_estimator_fitted_in_float32_says_that_it_has_no_float64_form(tmp_path: Path) -> None:
    estimator = KMeans(3, n_init=1, random_state=0).fit(_X.astype(np.float32))
    bundle = _export(estimator, tmp_path)
    assert any("fitted in float32" in note for note in bundle.manifest["notes"])
    assert validate_bundle(bundle).verdict == "pass"


def test_the_opset_list_names_each_domain_once(tmp_path: Path) -> None:
    bundle = _export(LogisticRegression(max_iter=500).fit(_X, _Y), tmp_path, opset=17)
    domains = [entry.domain for entry in onnx.load_from_string(bundle.model_bytes()).opset_import]
    assert sorted(domains) == ["", "ai.onnx.ml"]
    assert bundle.manifest["opsets"]["ai.onnx"] == 17


def test_the_estimator_is_as_it_was(tmp_path: Path) -> None:
    estimator = make_pipeline(StandardScaler(), RandomForestClassifier(3, random_state=0)).fit(_X, _Y)
    before = pickle.dumps(estimator)
    _export(estimator, tmp_path)
    assert pickle.dumps(estimator) == before


class _Unknown(TransformerMixin, BaseEstimator):  # type: ignore[misc]
    def fit(self, x: Any, y: Any = None) -> _Unknown:
        self.n_features_in_ = x.shape[1]
        return self

    def transform(self, x: Any) -> Any:
        return x * 2


def test_a_step_without_a_converter_is_named_with_its_place(tmp_path: Path) -> None:
    pipeline = make_pipeline(StandardScaler(), _Unknown(), LogisticRegression()).fit(_X, _Y)
    with pytest.raises(UnsupportedOperator, match="_Unknown in _unknown has no ONNX form") as failure:
        _export(pipeline, tmp_path)
    assert (failure.value.operator, failure.value.module) == ("_Unknown", "_unknown")


@pytest.mark.parametrize(
    ("estimator", "match"),
    [
        (LogisticRegression(), "LogisticRegression is not fitted; call fit"),
        (NearestNeighbors().fit(_X), "has neither predict nor transform for new samples"),
        (
            MultiOutputClassifier(LogisticRegression(max_iter=500)).fit(_X, np.c_[_Y, _Y > 0]),
            "was fitted on 2 targets at once",
        ),
        (DecisionTreeClassifier().fit(_X, _X[:, 0].round(1).astype(str)), None),
    ],
    ids=["not-fitted", "no-answer", "several-targets", "strings-are-fine"],
)
def test_what_cannot_be_served_is_refused_with_a_reason(
    estimator: Any, match: str | None, tmp_path: Path
) -> None:
    if match is None:
        assert _export(estimator, tmp_path).signature.outputs[0].dtype is DType.STRING
        return
    with pytest.raises(ExportError, match=match):
        _export(estimator, tmp_path)


def test_a_class_instead_of_an_estimator_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SourceError):
        _export(LogisticRegression, tmp_path)


@pytest.mark.parametrize("suffix", [".joblib", ".pkl", ".pickle"])
def test_a_planted_pickle_is_not_opened_without_trust(suffix: str, tmp_path: Path) -> None:
    class Payload:
        def __reduce__(self) -> Any:
            return os.mkdir, (str(tmp_path / "payload-ran"),)

    path = tmp_path / f"model{suffix}"
    path.write_bytes(pickle.dumps(Payload()))
    assert detect(path) == "sklearn"
    with pytest.raises(UnsafeSource, match=rf"model\{suffix} is a pickle.*it was not opened\. Pass --trust"):
        _export(str(path), tmp_path)
    assert not (tmp_path / "payload-ran").exists()


@pytest.mark.parametrize("dump", [joblib.dump, lambda model, path: path.write_bytes(pickle.dumps(model))])
def test_a_trusted_file_is_exported_with_its_digest(dump: Callable[[Any, Path], Any], tmp_path: Path) -> None:
    path = tmp_path / "model.joblib"
    dump(DecisionTreeClassifier(random_state=0).fit(_X, _Y), path)
    bundle = _export(path, tmp_path, trust=True)
    assert len(bundle.manifest["weights"]["source_sha256"]) == 64
    assert validate_bundle(bundle).verdict == "pass"


@pytest.mark.parametrize(
    ("content", "match"),
    [
        (b"", "cannot be opened: EOFError"),
        (b"not a pickle at all", "cannot be opened"),
        (pickle.dumps(DecisionTreeClassifier().fit(_X, _Y))[:-200], "cannot be opened"),
        (pickle.dumps({"model": 1}), "a builtins.dict is not a scikit-learn estimator"),
        (b"cno_such_module\nModel\n.", "needs the module 'no_such_module'"),
    ],
    ids=["empty", "foreign", "half-written", "no-estimator", "unknown-module"],
)
def test_a_bad_file_gives_one_clear_line(content: bytes, match: str, tmp_path: Path) -> None:
    path = tmp_path / "model.joblib"
    path.write_bytes(content)
    with pytest.raises((SourceError, ModuleMissing), match=match) as failure:
        _export(path, tmp_path, trust=True, framework="sklearn")
    assert "\n" not in str(failure.value)
    assert not (tmp_path / "bundle").exists()


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(SourceNotFound, match=r"there is no file .*absent\.joblib"):
        _export(tmp_path / "absent.joblib", tmp_path)


@pytest.mark.real
def test_columns_of_mixed_types_are_inputs_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fitted on a data frame, which the real environment has and this one need not."""
    real_environment("trees")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "houses.py").write_text(
        "import numpy as np, pandas as pd\n"
        "from sklearn.compose import ColumnTransformer\n"
        "from sklearn.linear_model import LogisticRegression\n"
        "from sklearn.pipeline import make_pipeline\n"
        "from sklearn.preprocessing import OneHotEncoder, StandardScaler\n\n"
        "def build():\n"
        "    rng = np.random.default_rng(0)\n"
        "    frame = pd.DataFrame({'area': rng.random(60), 'rooms': rng.integers(1, 6, 60),\n"
        "                          'town': rng.choice(['bonn', 'köln', 'ulm'], 60)})\n"
        "    columns = ColumnTransformer([('numbers', StandardScaler(), ['area', 'rooms']),\n"
        "        ('words', OneHotEncoder(handle_unknown='ignore', sparse_output=False), ['town'])])\n"
        "    dear = np.where(frame['area'] > 0.5, 'dear', 'cheap')\n"
        "    return make_pipeline(columns, LogisticRegression()).fit(frame, dear), frame.head(6)\n"
    )
    bundle = export_source(
        "houses:build", tmp_path / "bundle", ExportConfig(name="houses"), framework="sklearn", isolated=True
    )
    assert str(bundle.signature) == (
        "(area: float32[batch, 1], rooms: int64[batch, 1], town: string[batch, 1]) "
        "-> (label: string[batch], probabilities: float32[batch, 2])"
    )
    certificate = validate_bundle(bundle)
    assert certificate.verdict == "pass", certificate.reason
