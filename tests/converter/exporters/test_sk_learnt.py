"""What scikit-learn estimators have learnt is asked: both sides of thresholds, gaps, categories, words."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from sklearn.compose import ColumnTransformer
from sklearn.datasets import load_iris
from sklearn.ensemble import (
    ExtraTreesClassifier,
    HistGradientBoostingClassifier,
    HistGradientBoostingRegressor,
    VotingClassifier,
)
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder
from sklearn.tree import DecisionTreeClassifier

from paritygate.converter.bundle import Bundle, Probe, read_bundle
from paritygate.converter.errors import UnsupportedOperator
from paritygate.converter.exporters import export_model
from paritygate.converter.parity.validate import validate_bundle
from support.environments import real_environment, run_in
from support.tree_faults import missing_sent_the_other_way, splits, threshold_one_step_up

_X, _Y = load_iris(return_X_y=True)


def _export(estimator: Any, tmp_path: Path, **options: Any) -> Bundle:
    return export_model(estimator, tmp_path / "bundle", name="learnt", **options)


def _probes(bundle: Bundle) -> list[Probe]:
    return list(bundle.probes())


_GAPS = np.where(np.random.default_rng(0).random(_X.shape) < 0.1, np.nan, _X).astype(np.float32)


def test_every_threshold_that_is_one_step_off_fails_parity(tmp_path: Path) -> None:
    tree = DecisionTreeClassifier(random_state=0, max_depth=4).fit(_X, _Y)
    sound = _export(tree, tmp_path)
    assert validate_bundle(sound).verdict == "pass"
    path = tmp_path / "model.onnx"
    path.write_bytes(sound.model_bytes())
    decisions = len(splits(path))
    assert decisions == np.count_nonzero(tree.tree_.feature >= 0)
    for which in range(decisions):
        directory = tmp_path / str(which)
        bundle = export_model(tree, directory, name="off", after_conversion=threshold_one_step_up(which))
        certificate = validate_bundle(bundle)
        assert certificate.verdict == "fail", f"decision {which} of {decisions}"
        assert "case 'edges:thresholds" in str(certificate.reason)


@pytest.mark.parametrize("which", [0, -1])
@pytest.mark.parametrize("kind", [DecisionTreeClassifier, HistGradientBoostingClassifier])
def test_a_missing_value_that_goes_the_other_way_fails_parity(
    kind: Callable[..., Any], which: int, tmp_path: Path
) -> None:
    model = kind(random_state=0).fit(_GAPS, _Y)
    bundle = _export(model, tmp_path, after_conversion=missing_sent_the_other_way(which))
    certificate = validate_bundle(bundle)
    assert certificate.verdict == "fail"
    assert "case 'edges:missing" in str(certificate.reason)


def test_equal_votes_give_the_first_class_as_in_scikit_learn(tmp_path: Path) -> None:
    """In float32 shares of a forest, ten votes of twenty came out as 0.49999994 against 0.50000006."""
    rng = np.random.default_rng(1)
    x, y = rng.random((60, 3)).astype(np.float32), rng.integers(0, 2, 60)
    forest = ExtraTreesClassifier(20, random_state=0).fit(x, y)
    asked = rng.random((3000, 3)).astype(np.float32)
    tied = asked[forest.predict_proba(asked)[:, 0] == 0.5]
    assert len(tied) > 20
    bundle = _export(forest, tmp_path, samples=[{"x": tied}], include_samples=True)
    certificate = validate_bundle(bundle)
    assert certificate.verdict == "pass", certificate.reason


@pytest.mark.parametrize(
    "model",
    [
        HistGradientBoostingRegressor(max_iter=10, categorical_features=[3]),
        HistGradientBoostingRegressor(max_iter=10, loss="poisson"),
        HistGradientBoostingRegressor(max_iter=10, loss="gamma"),
    ],
    ids=["categories", "poisson", "gamma"],
)
def test_histogram_boosting_keeps_its_categories_and_its_link(model: Any, tmp_path: Path) -> None:
    x = _GAPS.copy()
    x[:, 3] = np.round(_X[:, 3] * 4)
    bundle = _export(model.fit(x, _X[:, 0] + (x[:, 3] % 2)), tmp_path)
    certificate = validate_bundle(bundle)
    assert certificate.verdict == "pass", certificate.reason
    assert any(probe.case.startswith("edges:missing") for probe in _probes(bundle))


def test_histogram_boosting_on_category_texts_is_refused(tmp_path: Path) -> None:
    x = np.array([["a"], ["b"], ["c"]] * 20, dtype=object)
    model = HistGradientBoostingRegressor(max_iter=3, categorical_features=[0], min_samples_leaf=1)
    with pytest.raises(UnsupportedOperator, match=r"categories that are texts.*OrdinalEncoder"):
        _export(model.fit(x, np.arange(60) % 3), tmp_path, inputs={"kind": x[:4]})


_SENTENCES = [
    "Guten Morgen Köln",
    "ΩΡΑ ΚΑΛΗ",
    "plain words here",
    "Ещё один день",
    "x1 y_2 und",
    "日本語 テスト",
] * 8


def _text_model(vectorizer: Any = None) -> Any:
    model = make_pipeline(vectorizer or TfidfVectorizer(), LogisticRegression())
    return model.fit(_SENTENCES, [0, 1, 2, 1, 0, 0] * 8)


def test_texts_are_an_input_and_every_word_is_asked(tmp_path: Path) -> None:
    model = _text_model()
    bundle = _export(model, tmp_path)
    assert str(bundle.signature) == (
        "(text: string[batch, 1]) -> (label: int64[batch], probabilities: float32[batch, 3])"
    )
    certificate = validate_bundle(bundle)
    assert certificate.verdict == "pass", certificate.reason
    known = [probe for probe in _probes(bundle) if probe.case.startswith("edges:known")]
    asked = model[0].transform([text for probe in known for text in probe.inputs["text"][:, 0]])
    assert (asked.sum(axis=0) > 0).all(), "a word of the vocabulary is in no probe"


def test_a_word_that_the_graph_forgot_fails_parity(tmp_path: Path) -> None:
    def forget(path: Path) -> None:
        model = onnx.load(path)
        node = next(node for node in model.graph.node if node.op_type == "TfIdfVectorizer")
        words = next(attribute for attribute in node.attribute if attribute.name == "pool_strings")
        words.strings[3] = b"forgotten"
        onnx.save(model, path)

    certificate = validate_bundle(_export(_text_model(), tmp_path, after_conversion=forget))
    assert certificate.verdict == "fail"
    assert "case 'edges:known" in str(certificate.reason)


@pytest.mark.parametrize("columns", [[1, 2], slice(1, 3), [False, True, True, False]], ids=str)
def test_categories_of_a_matrix_are_asked_by_their_places(columns: Any, tmp_path: Path) -> None:
    x = _X.astype(np.float32)
    x[:, 1:3] = np.round(x[:, 1:3]) * 10
    encoder = OneHotEncoder(handle_unknown="ignore")
    model = make_pipeline(ColumnTransformer([("codes", encoder, columns)], remainder="passthrough"), Ridge())
    bundle = _export(model.fit(x, _Y), tmp_path)
    certificate = validate_bundle(bundle)
    assert certificate.verdict == "pass", certificate.reason
    probes = {probe.case: probe.inputs["x"] for probe in _probes(bundle)}
    for column in (1, 2):
        assert set(probes["edges:known:0"][:, column]) == set(x[:, column])
        assert not set(probes["edges:unknown:0"][:, column]) & set(x[:, column])


def test_an_encoder_that_refuses_the_unknown_is_still_asked_what_it_knows(tmp_path: Path) -> None:
    x = np.array([["a"], ["b"], ["c"]] * 8, dtype=object)
    model = make_pipeline(OneHotEncoder(), Ridge()).fit(x, np.arange(24) % 3)
    bundle = _export(model, tmp_path, inputs={"kind": x[:4]})
    assert validate_bundle(bundle).verdict == "pass"
    cases = [probe.case for probe in _probes(bundle)]
    assert "edges:known:0" in cases
    assert "edges:unknown:0" not in cases


def test_letters_that_are_counted_instead_of_words_are_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(
        UnsupportedOperator, match="TfidfVectorizer in tfidfvectorizer has no ONNX form"
    ) as told:
        _export(_text_model(TfidfVectorizer(analyzer="char_wb", ngram_range=(2, 3))), tmp_path)
    assert (told.value.operator, told.value.module) == ("TfidfVectorizer", "tfidfvectorizer")


def test_soft_voting_is_exported_and_left_as_it_was(tmp_path: Path) -> None:
    model = VotingClassifier(
        [("t", DecisionTreeClassifier()), ("l", LogisticRegression(max_iter=500))], voting="soft"
    )
    model.fit(_X, _Y)
    assert validate_bundle(_export(model, tmp_path)).verdict == "pass"
    assert model.flatten_transform is True


def test_the_tables_of_skl2onnx_are_as_they_were(tmp_path: Path) -> None:
    from skl2onnx import _supported_operators, supported_converters

    before = (set(supported_converters()), dict(_supported_operators.sklearn_operator_name_map))
    _export(DecisionTreeClassifier().fit(_X, _Y), tmp_path)
    assert (set(supported_converters()), dict(_supported_operators.sklearn_operator_name_map)) == before


_REAL_SIGNATURES = {
    **dict.fromkeys(
        ("columns", "columns-forest", "columns-histogram", "columns-lightgbm", "ordinal"),
        "(area: float32[batch, 1], rooms: int64[batch, 1], town: string[batch, 1], kind: string[batch, 1], "
        "new: bool[batch, 1]) -> (label: string[batch], probabilities: float32[batch, 2])",
    ),
    **dict.fromkeys(
        ("columns-sparse", "columns-xgboost"),
        "(area: float32[batch, 1], rooms: int64[batch, 1], town: string[batch, 1], kind: string[batch, 1], "
        "new: bool[batch, 1]) -> (prediction: float32[batch])",
    ),
    "texts": "(text: string[batch, 1], size: float32[batch, 1]) "
    "-> (label: int64[batch], probabilities: float32[batch, 2])",
    "frame-of-floats": "(x: float32[batch, 5]) -> (prediction: float32[batch])",
    "xgboost": "(x: float32[batch, 5]) -> (label: int64[batch], probabilities: float32[batch, 3])",
    "lightgbm": "(x: float32[batch, 5]) -> (prediction: float32[batch])",
    "sparse-xgboost": "(x: int64[batch, 3]) -> (label: int64[batch], probabilities: float32[batch, 2])",
    "forest-with-gaps": "(x: float32[batch, 5]) -> (label: int64[batch], probabilities: float32[batch, 3])",
    **dict.fromkeys(
        ("calibrated-xgboost", "voting", "stacking"),
        "(x: float32[batch, 5]) -> (label: int64[batch], probabilities: float32[batch, 2])",
    ),
}


@pytest.fixture(scope="module")
def zoo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Bundles of what needs data frames and boosters, written by one run in the environment."""
    folder = tmp_path_factory.mktemp("sklearn")
    out = folder / "out"
    out.mkdir()
    script = Path(__file__).parents[2] / "support" / "tree_bundles.py"
    run_in(real_environment("trees"), script, "sklearn", out, folder=folder)
    return out


@pytest.mark.real
@pytest.mark.parametrize("name", _REAL_SIGNATURES)
def test_pipelines_with_columns_and_boosters_prove_themselves(zoo: Path, name: str) -> None:
    bundle = read_bundle(zoo / name)
    assert str(bundle.signature) == _REAL_SIGNATURES[name]
    certificate = validate_bundle(bundle)
    assert certificate.verdict == "pass", certificate.reason


@pytest.mark.real
def test_known_categories_and_one_that_is_not_are_asked(zoo: Path) -> None:
    probes = {probe.case: probe for probe in _probes(read_bundle(zoo / "columns"))}
    assert set(probes["edges:known:0"].inputs["town"][:, 0]) == {"bonn", "köln", "ulm"}
    assert set(probes["edges:unknown:0"].inputs["town"][:, 0]) == {"never seen"}


@pytest.mark.real
@pytest.mark.parametrize("fault", ["first-threshold", "last-threshold", "first-missing", "last-missing"])
def test_one_decision_of_a_forest_that_is_off_fails_parity(zoo: Path, fault: str) -> None:
    certificate = validate_bundle(read_bundle(zoo / f"spoilt-{fault}"))
    assert certificate.verdict == "fail"
    assert "case 'edges:" in str(certificate.reason)


@pytest.mark.real
def test_a_frame_with_other_columns_is_refused_with_their_names(zoo: Path) -> None:
    refused = json.loads((zoo / "refused.json").read_text())
    assert list(refused) == ["other-frame"]
    assert "missing ['e'], unknown ['f']" in refused["other-frame"][1]
