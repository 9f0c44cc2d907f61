"""What skl2onnx writes wrongly is written by the exporter itself, or refused by name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from sklearn.base import ClassifierMixin
from sklearn.calibration import CalibratedClassifierCV
from sklearn.compose import ColumnTransformer
from sklearn.datasets import load_iris
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis, QuadraticDiscriminantAnalysis
from sklearn.ensemble import (
    AdaBoostClassifier,
    BaggingClassifier,
    GradientBoostingClassifier,
    GradientBoostingRegressor,
    HistGradientBoostingRegressor,
    RandomForestClassifier,
    RandomForestRegressor,
    VotingClassifier,
    VotingRegressor,
)
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.gaussian_process import GaussianProcessClassifier
from sklearn.impute import KNNImputer, SimpleImputer
from sklearn.linear_model import LogisticRegression, Ridge, SGDClassifier
from sklearn.model_selection import RandomizedSearchCV, TunedThresholdClassifierCV
from sklearn.naive_bayes import CategoricalNB
from sklearn.neighbors import RadiusNeighborsClassifier, RadiusNeighborsRegressor
from sklearn.pipeline import make_pipeline, make_union
from sklearn.preprocessing import (
    Binarizer,
    OneHotEncoder,
    OrdinalEncoder,
    StandardScaler,
    TargetEncoder,
)
from sklearn.tree import DecisionTreeClassifier, DecisionTreeRegressor

from paritygate.converter.bundle import Bundle
from paritygate.converter.errors import ExportError, UnsupportedOperator
from paritygate.converter.exporters import export_model
from paritygate.converter.parity.validate import validate_bundle
from support.tree_faults import threshold_one_step_up

_X, _Y = load_iris(return_X_y=True)
_TWO = (_Y > 0).astype(int)
_AMOUNT = _X[:, 0] * 2 + _Y
_GAPS = np.where(np.random.default_rng(0).random(_X.shape) < 0.1, np.nan, _X)
_CODES = np.round(_X * 2).astype(np.int64) * 10 - 5


def _export(estimator: Any, folder: Path, **options: Any) -> Bundle:
    return export_model(estimator, folder / "bundle", name="mended", **options)


def _prove(estimator: Any, folder: Path, **options: Any) -> Bundle:
    bundle = _export(estimator, folder, **options)
    certificate = validate_bundle(bundle)
    assert certificate.verdict == "pass", certificate.reason
    return bundle


_FORESTS: dict[str, Callable[[], Any]] = {
    "forest": lambda: RandomForestClassifier(5, random_state=0),
    "forest-of-amounts": lambda: RandomForestRegressor(5, random_state=0),
    "boosting": lambda: GradientBoostingClassifier(n_estimators=5, random_state=0),
    "boosting-of-amounts": lambda: GradientBoostingRegressor(n_estimators=5, random_state=0),
    "histogram": lambda: HistGradientBoostingRegressor(max_iter=5, random_state=0),
    "adaptive": lambda: AdaBoostClassifier(
        DecisionTreeClassifier(max_depth=2, random_state=0), n_estimators=3, random_state=0
    ),
    "bagging": lambda: BaggingClassifier(
        DecisionTreeClassifier(random_state=3), n_estimators=3, max_features=3, random_state=3
    ),
    "voting": lambda: VotingRegressor(
        [
            ("f", RandomForestRegressor(3, random_state=0)),
            ("b", GradientBoostingRegressor(n_estimators=5, random_state=0)),
        ]
    ),
}


@pytest.mark.parametrize("which", [0, -1])
@pytest.mark.parametrize("name", _FORESTS)
def test_a_threshold_that_is_one_step_off_fails_parity(name: str, which: int, tmp_path: Path) -> None:
    model = _FORESTS[name]()
    model.fit(_X, _Y if isinstance(model, ClassifierMixin) else _AMOUNT)
    _prove(model, tmp_path / "sound")
    certificate = validate_bundle(
        _export(model, tmp_path / "off", after_conversion=threshold_one_step_up(which))
    )
    assert certificate.verdict == "fail"
    assert "case 'edges:" in str(certificate.reason)


@pytest.mark.parametrize(("loss", "seed"), [("log_loss", 0), ("exponential", 0), ("exponential", 4)])
def test_boosting_from_zero_is_exported(loss: str, seed: int, tmp_path: Path) -> None:
    """With seed 4, samples at thresholds get sums of 2.8e-17, whose sign is the order of the additions."""
    model = GradientBoostingClassifier(loss=loss, init="zero", n_estimators=10, random_state=seed)
    _prove(model.fit(_X, _TWO), tmp_path)


def test_a_sum_of_zero_is_the_second_class_as_in_scikit_learn(tmp_path: Path) -> None:
    model = GradientBoostingClassifier(init="zero", n_estimators=1).fit(np.zeros((20, 2)), [0, 1] * 10)
    assert model.predict(np.zeros((1, 2))).tolist() == [1]
    _prove(model, tmp_path)


def test_boosting_that_begins_with_another_model_is_refused(tmp_path: Path) -> None:
    model = GradientBoostingRegressor(n_estimators=2, init=Ridge()).fit(_X, _AMOUNT)
    with pytest.raises(UnsupportedOperator, match=r"begins with the answers of a Ridge.*init=None"):
        _export(model, tmp_path)


@pytest.mark.parametrize("loss", ["log_loss", "modified_huber", "hinge"])
@pytest.mark.parametrize("target", [_TWO, _Y, np.array(["a", "b", "ç"])[_Y]], ids=["two", "three", "texts"])
def test_labels_of_gradient_descent_come_from_its_scores(loss: str, target: Any, tmp_path: Path) -> None:
    """Trained on unscaled features its scores are in the hundreds, where float32 shares are all 1."""
    model = SGDClassifier(loss=loss, random_state=0).fit(_X, target)
    asked = {"x": _X.astype(np.float32)}
    _prove(model, tmp_path, samples=[asked], include_samples=True)


def test_quadratic_discriminants_give_labels_as_one_axis(tmp_path: Path) -> None:
    bundle = _prove(QuadraticDiscriminantAnalysis().fit(_X, _Y), tmp_path)
    assert str(bundle.signature.outputs[0]) == "label: int64[batch]"


def test_a_search_is_exported_as_the_best_that_it_found(tmp_path: Path) -> None:
    search = RandomizedSearchCV(LogisticRegression(max_iter=500), {"C": [1.0]}, n_iter=1, cv=2)
    bundle = _prove(search.fit(_X, _Y), tmp_path)
    assert "The best estimator that RandomizedSearchCV found is exported." in bundle.manifest["notes"]


@pytest.mark.filterwarnings("ignore:Skipping features")
@pytest.mark.parametrize(
    "imputer",
    [
        SimpleImputer(),
        SimpleImputer(add_indicator=True),
        SimpleImputer(strategy="constant", fill_value=-3.0),
        SimpleImputer(strategy="most_frequent"),
        SimpleImputer(keep_empty_features=True, add_indicator=True),
    ],
    ids=["mean", "indicator", "constant", "frequent", "empty"],
)
def test_imputers_fill_and_tell_what_is_missing(imputer: Any, tmp_path: Path) -> None:
    x = np.column_stack([_GAPS, np.full(len(_GAPS), np.nan)])
    pipeline = make_pipeline(imputer, Ridge()).fit(x, _AMOUNT)
    _prove(pipeline, tmp_path, samples=[{"x": x.astype(np.float32)}], include_samples=True)


@pytest.mark.parametrize("mark", [-1, 0.1])
def test_a_number_can_stand_for_what_is_missing(mark: float, tmp_path: Path) -> None:
    """float32 has no 0.1, so no served sample holds it, and scikit-learn finds none either."""
    x = np.nan_to_num(_GAPS, nan=mark)
    pipeline = make_pipeline(SimpleImputer(missing_values=mark, add_indicator=True), Ridge()).fit(x, _AMOUNT)
    _prove(pipeline, tmp_path, samples=[{"x": x.astype(np.float32)}], include_samples=True)


def test_whole_numbers_pass_an_imputer_unrounded(tmp_path: Path) -> None:
    x = _CODES[:, :2] + 2**60
    encoder = OneHotEncoder(handle_unknown="ignore")
    pipeline = make_pipeline(SimpleImputer(strategy="most_frequent"), encoder, Ridge()).fit(x, _AMOUNT)
    _prove(pipeline, tmp_path, inputs={"x": x[:20]})


def test_texts_pass_an_imputer(tmp_path: Path) -> None:
    kinds = np.array([["a"], ["b"], [np.nan], ["a"]] * 10, dtype=object)
    filling = make_pipeline(SimpleImputer(strategy="most_frequent"), OneHotEncoder(handle_unknown="ignore"))
    model = make_pipeline(filling, Ridge()).fit(kinds, np.arange(40) % 4)
    _prove(model, tmp_path, inputs={"kind": np.array([["a"], ["b"]], dtype=object)})


def test_bools_beside_int32_stay_numbers(tmp_path: Path) -> None:
    """skl2onnx joins the two as bools, so that 3 becomes 1."""
    columns = ColumnTransformer([("all", "passthrough", [0, 1])])
    model = make_pipeline(columns, Ridge()).fit(np.c_[_TWO, _Y * 3], _AMOUNT)
    example = {"is_new": _TWO[:9].astype(bool), "rooms": (_Y[:9] * 3).astype(np.int32)}
    bundle = _prove(model, tmp_path, inputs=example, integer_ranges={"rooms": (0, 9)})
    assert [str(spec) for spec in bundle.signature.inputs] == [
        "is_new: bool[batch, 1]",
        "rooms: int32[batch, 1]",
    ]


@pytest.mark.parametrize("shown", [True, False])
@pytest.mark.parametrize(
    "model",
    [make_pipeline(OneHotEncoder(), Ridge()), make_pipeline(OrdinalEncoder(), Ridge())],
    ids=["one-hot", "ordinal"],
)
def test_encoders_that_refuse_the_unknown_are_asked_known_numbers(
    model: Any, shown: bool, tmp_path: Path
) -> None:
    model.fit(_CODES, _AMOUNT)
    bundle = _prove(model, tmp_path, inputs={"x": _CODES[:20]} if shown else "x:int64[batch,4]")
    known = [set(_CODES[:, column]) for column in range(4)]
    for probe in bundle.probes():
        for column, values in enumerate(probe.inputs["x"].T):
            assert set(values) <= known[column], probe.case


_KINDS = np.random.default_rng(0).integers(3, 6, (150, 2)).astype(np.float64)
_MIXED = np.c_[_KINDS, _X[:, :2]]


def _beside_numbers(encoder: Any) -> Any:
    columns = ColumnTransformer([("kinds", encoder, [0, 1]), ("rest", StandardScaler(), [2, 3])])
    return make_pipeline(columns, LogisticRegression())


@pytest.mark.parametrize(
    "encoder",
    [
        OneHotEncoder(handle_unknown="ignore"),
        OneHotEncoder(handle_unknown="infrequent_if_exist", min_frequency=5),
        OrdinalEncoder(handle_unknown="use_encoded_value", unknown_value=-1),
        TargetEncoder(),
    ],
    ids=["one-hot", "infrequent", "ordinal", "target"],
)
@pytest.mark.parametrize("shown", [True, False])
def test_whole_categories_of_floats_are_told_from_what_is_not_whole(
    encoder: Any, shown: bool, tmp_path: Path
) -> None:
    """skl2onnx takes 3.7 for the category 3, so that a sound model was refused."""
    model = _beside_numbers(encoder).fit(_MIXED, _TWO)
    bundle = _prove(model, tmp_path, inputs=_MIXED[:20] if shown else None)
    asked = np.concatenate([probe.inputs["x"][:, :2] for probe in bundle.probes() if probe.case == "base"])
    assert set(asked.ravel()) & {3.0, 4.0, 5.0}
    rows = _MIXED[:6].astype(np.float32)
    rows[:, 0] = [3.7, np.nextafter(np.float32(4), np.float32(0)), -3.0, 9.0, 4.0, 5.0]
    session = onnxruntime.InferenceSession(bundle.model_bytes())
    np.testing.assert_allclose(
        session.run(["probabilities"], {"x": rows})[0],
        model.predict_proba(rows.astype(np.float64)),
        atol=1e-6,
    )


def test_whole_categories_of_floats_stand_beside_texts(tmp_path: Path) -> None:
    rooms, town = _KINDS[:, :1].astype(np.float32), np.array(["a", "b", "c"], object)[_Y][:, None]
    encoder = OneHotEncoder(handle_unknown="ignore")
    model = make_pipeline(encoder, LogisticRegression()).fit(np.hstack([rooms, town]), _TWO)
    bundle = _prove(model, tmp_path, inputs={"rooms": rooms[:20], "town": town[:20]})
    given = {"rooms": np.array([[3.7], [4.0]], np.float32), "town": np.array([["a"], ["c"]], object)}
    (shares,) = onnxruntime.InferenceSession(bundle.model_bytes()).run(["probabilities"], given)
    np.testing.assert_allclose(shares, model.predict_proba(np.hstack(list(given.values()))), atol=1e-6)


def test_ids_that_float32_does_not_have_are_told_apart_in_float64(tmp_path: Path) -> None:
    ids = _KINDS + 2**25
    model = make_pipeline(OrdinalEncoder(), Ridge()).fit(ids, _TWO)
    _prove(model, tmp_path, inputs="x:float64[batch,2]")


@pytest.mark.parametrize(
    "encoder",
    [
        make_pipeline(SimpleImputer(), OneHotEncoder()),
        make_union(OneHotEncoder(), OrdinalEncoder()),
        ColumnTransformer([("inner", ColumnTransformer([("one", OneHotEncoder(), [0])]), [1])]),
    ],
    ids=["behind-an-imputer", "in-a-union", "in-nested-columns"],
)
def test_encoders_wherever_they_stand_are_asked_what_they_know(encoder: Any, tmp_path: Path) -> None:
    _prove(make_pipeline(encoder, Ridge()).fit(_KINDS, _TWO), tmp_path, inputs=_KINDS[:20])


_KNOWN = "holds 9.* in column 0, where the model knows 3.*, 4.*, 5.* only"
_KEPT = r"; keep to that \(--integer-range x=3:5, integer_ranges=\)"
_OUTSIDE: dict[str, tuple[Any, Any, Any, str]] = {
    "floats": (OneHotEncoder(), _KINDS, np.float32, rf"{_KNOWN}\. Remove"),
    "integers": (OneHotEncoder(), _KINDS, np.int64, f"{_KNOWN}{_KEPT}"),
    "ordinals": (OrdinalEncoder(), _KINDS, np.int64, f"{_KNOWN}{_KEPT}"),
    "counts": (CategoricalNB(), _KINDS, np.int64, r"knows 0, 1, 2, 3, 4, 5 only; keep .*x=0:5"),
}


@pytest.mark.parametrize("name", _OUTSIDE)
def test_a_sample_with_a_category_that_is_not_known_is_refused_by_name(name: str, tmp_path: Path) -> None:
    step, data, kind, told = _OUTSIDE[name]
    model = step if name == "counts" else make_pipeline(step, Ridge())
    samples = [{"x": np.array([[9, 4]], kind)}]
    with pytest.raises(ExportError, match=told) as raised:
        _export(model.fit(data, _TWO), tmp_path, inputs={"x": data[:20].astype(kind)}, samples=samples)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(("data", "kind"), [(_KINDS + 2**25 + 1, "int64"), (_KINDS / 10, "float64")])
def test_categories_that_float32_does_not_have_are_refused_with_the_type_that_has(
    data: Any, kind: str, tmp_path: Path
) -> None:
    model = make_pipeline(OrdinalEncoder(), Ridge()).fit(data, _TWO)
    with pytest.raises(ExportError, match=rf"float32 does not have.*--input 'x:{kind}\[batch,2\]'"):
        _export(model, tmp_path, inputs=data[:20])


def test_ids_that_float32_takes_for_others_are_noted(tmp_path: Path) -> None:
    ids = _KINDS + 2**25
    model = make_pipeline(OrdinalEncoder(), Ridge()).fit(ids, _TWO)
    notes = _prove(model, tmp_path, inputs=ids[:20]).manifest["notes"]
    assert any("float32, which does not have all categories" in note and "x:int64" in note for note in notes)


def test_counts_of_categories_are_asked_within_them(tmp_path: Path) -> None:
    codes = np.round(_X).astype(np.int64)
    _prove(CategoricalNB().fit(codes, _Y), tmp_path, inputs={"x": codes[:20]})


_WRONG: dict[str, tuple[Callable[[], Any], Any, str]] = {
    "isotonic": (
        lambda: CalibratedClassifierCV(method="isotonic"),
        _Y,
        "nearest step of an isotonic.*sigmoid",
    ),
    "tuned": (lambda: TunedThresholdClassifierCV(LogisticRegression()), _TWO, "leaves out its threshold"),
    "gaussian-process": (GaussianProcessClassifier, _TWO, "needs the operator Solve"),
    "radius": (
        lambda: RadiusNeighborsRegressor(3.0),
        _AMOUNT,
        "neighbours that are not there.*KNeighborsReg",
    ),
    "radius-of-classes": (
        lambda: RadiusNeighborsClassifier(3.0, outlier_label=0),
        _Y,
        "neighbours that are not there.*KNeighborsClassifier",
    ),
    "neighbours-with-indicator": (lambda: KNNImputer(add_indicator=True), None, "leaves out the columns"),
}


@pytest.mark.parametrize("name", _WRONG)
def test_what_is_known_to_be_converted_wrongly_is_refused(name: str, tmp_path: Path) -> None:
    build, target, told = _WRONG[name]
    model = build().fit(_X, target)
    with pytest.raises(UnsupportedOperator, match=told):
        _export(model, tmp_path)


_MEMBERS = [("a", Ridge()), ("left out", "drop"), ("b", DecisionTreeRegressor(max_depth=2, random_state=0))]
_VOTERS = [
    ("a", LogisticRegression(max_iter=1000)),
    ("left out", "drop"),
    ("b", DecisionTreeClassifier(max_depth=2)),
]


@pytest.mark.parametrize(
    ("model", "target"),
    [
        (VotingClassifier(_VOTERS, voting="soft", weights=[1, 5, 3]), _Y),
        (VotingClassifier(_VOTERS, weights=[1, 5, 3]), _Y),
        (VotingRegressor(_MEMBERS, weights=[1, 5, 3]), _AMOUNT),
    ],
    ids=["soft", "hard", "amounts"],
)
def test_weights_of_votes_may_be_a_list_and_those_of_dropped_members_do_not_count(
    model: Any, target: Any, tmp_path: Path
) -> None:
    _prove(model.fit(_X, target), tmp_path)
    assert model.weights == [1, 5, 3]


def test_letters_are_refused(tmp_path: Path) -> None:
    model = make_pipeline(CountVectorizer(analyzer="char"), LogisticRegression())
    with pytest.raises(UnsupportedOperator, match=r"CountVectorizer in countvectorizer.*analyzer='word'"):
        _export(model.fit(["ab cd", "ef gh"] * 5, [0, 1] * 5), tmp_path)


def test_two_classes_of_a_linear_discriminant_have_the_shares_of_one_score(tmp_path: Path) -> None:
    """skl2onnx doubles the score, which nobody sees where the classes lie far apart."""
    near = np.random.default_rng(0).normal(size=(80, 3)) + np.arange(80)[:, None] % 2
    _prove(LinearDiscriminantAnalysis().fit(near, np.arange(80) % 2), tmp_path)


@pytest.mark.parametrize("form", ["float32", "float64"])
def test_a_binarizer_is_zero_at_its_threshold(form: str, tmp_path: Path) -> None:
    model = make_pipeline(Binarizer(threshold=0.5), Ridge()).fit(_X, _AMOUNT)
    at_threshold = {"x": np.full((3, 4), 0.5, form)}
    _prove(model, tmp_path, inputs=f"x:{form}[batch,4]", samples=[at_threshold], include_samples=True)


def test_a_pipeline_of_float64_promises_no_more_than_trees_give(tmp_path: Path) -> None:
    model = make_pipeline(StandardScaler(), RandomForestClassifier(5, random_state=0)).fit(_X, _Y)
    bundle = _prove(model, tmp_path, inputs="x:float64[batch,4]")
    assert str(bundle.signature.outputs[1]) == "probabilities: float32[batch, 3]"
