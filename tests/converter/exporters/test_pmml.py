"""PMML: the graph gives what the scorer gives, for every construct; the scorer gives what the standard says."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from paritygate.converter.errors import ExportError, SourceError
from paritygate.converter.exporters import detect, export_model
from paritygate.converter.exporters._pmml import elements
from paritygate.converter.exporters._pmml.elements import read_document
from paritygate.converter.exporters._pmml.emission.emitter import emit_document
from paritygate.converter.exporters._pmml.scoring.scorer import Scorer
from paritygate.converter.parity.validate import validate_bundle
from paritygate.converter.types import Array, DType, TensorSpec
from support.pmml import FOLDER
from support.pmml.pypmml import Ask, departures, started
from support.pmml.written import dictionary, document, node, regression, simple, tree
from support.pmml.zoo import ZOO, boosting

ROWS = 300
DTYPES = {
    "double": DType.FLOAT64, "float": DType.FLOAT32, "integer": DType.INT64, "string": DType.STRING,
    "boolean": DType.BOOL,
}  # fmt: skip
NAMED = [0, 0.25, -0.5, 0.1, -1, 1, 0.3, -0.3, 0.2, 1.1, -0.7, 0.5, 0.75, -0.4, 1e-9, 30, -30, 1e3]


def _column(data_type: str, rng: np.random.Generator) -> Array:
    if data_type == "string":
        column = np.empty((ROWS, 1), dtype=object)
        column[:, 0] = rng.choice(["red", "green", "blue", "", "other", 'dark "blue'], ROWS)
        return column
    if data_type == "integer":
        return rng.integers(-1, 5, (ROWS, 1))
    if data_type == "boolean":
        return rng.integers(0, 2, (ROWS, 1)).astype(bool)
    values = np.where(rng.random(ROWS) < 0.6, rng.normal(0, 1.5, ROWS), rng.choice(NAMED, ROWS))
    values[rng.random(ROWS) < 0.15] = np.nan
    return values[:, None].astype(np.float32 if data_type == "float" else np.float64)


def _answers_of_graph(path: Path, scorer: Scorer, feeds: dict[str, Array], opset: int) -> list[Array]:
    runtime = pytest.importorskip("onnxruntime")
    specs = [TensorSpec(field.name, DTYPES[field.data_type], ("batch", 1)) for field in scorer.inputs]
    names = [field.name for field in scorer.inputs]
    model = emit_document(read_document(path), specs, names, scorer.outputs, opset)
    onnx.checker.check_model(model, full_check=True)
    session = runtime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    answers: list[Array] = session.run(None, feeds)
    return answers


@pytest.mark.parametrize("name", ZOO)
def test_graph_answers_as_the_scorer(name: str, tmp_path: Path) -> None:
    path = document(tmp_path, ZOO[name])
    scorer = Scorer(read_document(path))
    rng = np.random.default_rng(5)
    feeds = {field.name: _column(field.data_type, rng) for field in scorer.inputs}
    expected = scorer.run({key: column[:, 0] for key, column in feeds.items()})
    given = _answers_of_graph(path, scorer, feeds, opset=18)
    for output, answer in zip(scorer.outputs, given, strict=True):
        assert answer.dtype == expected[output.name].dtype
        if output.dtype is DType.STRING or output.dtype is DType.INT64:
            np.testing.assert_array_equal(answer, expected[output.name])
        else:
            np.testing.assert_allclose(answer, expected[output.name], rtol=1e-10, atol=1e-13)


@pytest.mark.parametrize("opset", [13, 17, 23])
@pytest.mark.parametrize(
    "name", ["votes_some", "shares_max", "boosting", "classes3_softmax", "derived_table_of_two"]
)
def test_graph_answers_as_the_scorer_at_other_opsets(name: str, opset: int, tmp_path: Path) -> None:
    path = document(tmp_path, ZOO[name])
    scorer = Scorer(read_document(path))
    feeds = {field.name: _column(field.data_type, np.random.default_rng(7)) for field in scorer.inputs}
    expected = scorer.run({key: column[:, 0] for key, column in feeds.items()})
    for output, answer in zip(scorer.outputs, _answers_of_graph(path, scorer, feeds, opset), strict=True):
        if output.dtype is DType.STRING:
            np.testing.assert_array_equal(answer, expected[output.name])
        else:
            np.testing.assert_allclose(answer, expected[output.name], rtol=1e-10, atol=1e-13)


# --- the scorer by hand -------------------------------------------------------------------------------------


def _score(body: str, folder: Path, **columns: Any) -> dict[str, Array]:
    scorer = Scorer(read_document(document(folder, body)))
    arrays = {
        name: np.array(values, dtype=object if isinstance(values[0], str) else None)
        for name, values in columns.items()
    }
    return scorer.run(arrays)


def test_linear_regression_by_hand(tmp_path: Path) -> None:
    given = _score(regression(), tmp_path, x=[2.0, 0.0, math.nan], c=["red", "green", "red"])
    np.testing.assert_array_equal(given["y"], [0.5 + 4.5 + 1.5, 0.5, math.nan])


def test_threshold_of_a_single_precision_field_is_rounded_to_single(tmp_path: Path) -> None:
    leaves = node(simple("x", "lessThan", 0.1), score=1) + node(simple("x", "greaterOrEqual", 0.1), score=2)
    body = tree(node("<True/>", leaves), dictionary(x="float", y="double"), ["x"])
    assert _score(body, tmp_path, x=[np.float32(0.1)])["y"].tolist() == [2.0]


@pytest.mark.parametrize(
    ("strategy", "expected"),
    [("none", math.nan), ("lastPrediction", 9.0), ("nullPrediction", math.nan), ("defaultChild", 3.0)],
)
def test_missing_value_strategies_by_hand(strategy: str, expected: float, tmp_path: Path) -> None:
    given = _score(ZOO[f"tree_two_{strategy}_null"], tmp_path, x=[math.nan], z=[0.0])
    np.testing.assert_array_equal(given["y"], [expected])


def test_boosting_chain_by_hand(tmp_path: Path) -> None:
    given = _score(boosting(), tmp_path, x=[0.0], z=[0.0])
    raw = -1.25 - 0.2 + 0.1
    np.testing.assert_allclose(
        given["probabilities"], [[1 - 1 / (1 + math.exp(-raw)), 1 / (1 + math.exp(-raw))]]
    )
    assert given["y"].tolist() == ["low"]


def test_row_without_result_has_a_label_that_no_class_has(tmp_path: Path) -> None:
    given = _score(ZOO["tree_numbers_as_classes"], tmp_path, x=[0.0, math.nan], z=[0.0, 0.0], c=["", ""])
    assert given["y"].tolist() == [1, -(2**63)]


# --- the exporter -------------------------------------------------------------------------------------------


def test_document_is_told_from_its_content(tmp_path: Path) -> None:
    assert detect(document(tmp_path, regression(), "model.xml")) == "pmml"


def test_inputs_bear_the_fields_names_and_types(tmp_path: Path) -> None:
    body = ZOO["function_boolean"]
    bundle = export_model(document(tmp_path, body), tmp_path / "bundle", name="m")
    assert [str(spec) for spec in bundle.signature.inputs] == [
        "x: float64[batch, 1]", "c: string[batch, 1]", "i: int64[batch, 1]", "b: bool[batch, 1]",
    ]  # fmt: skip
    assert [str(spec) for spec in bundle.signature.outputs] == ["y: float64[batch]"]
    assert validate_bundle(bundle).verdict == "pass"


def test_one_matrix_is_taken_where_it_is_declared(tmp_path: Path) -> None:
    bundle = export_model(
        FOLDER / "iris_forest.pmml", tmp_path / "bundle", name="m", inputs="x:float32[batch,4]"
    )
    assert [str(spec) for spec in bundle.signature.inputs] == ["x: float32[batch, 4]"]
    assert validate_bundle(bundle).verdict == "pass"


def test_probes_reach_every_leaf_of_a_tree(tmp_path: Path) -> None:
    bundle = export_model(FOLDER / "iris_tree.pmml", tmp_path / "bundle", name="m")
    seen = {
        tuple(row)
        for p in bundle.probes()
        for row in zip(*(p.outputs[f"probability_{k}"] for k in range(3)), strict=True)
    }
    leaves = [
        e
        for e in read_document(FOLDER / "iris_tree.pmml").root.walk()
        if e.tag == "Node" and not e.all("Node")
    ]
    counts = [[float(s.need("recordCount")) for s in e.all("ScoreDistribution")] for e in leaves]
    shares = {tuple(count / sum(entry) for count in entry) for entry in counts}
    assert len(shares) > 2
    assert shares <= seen


def _verified(value: float) -> str:
    record = f"<InlineTable><row><x>2</x><c>red</c><y>{value}</y></row></InlineTable>"
    fields = "".join(f'<VerificationField field="{name}" column="{name}"/>' for name in ("x", "c", "y"))
    told = f"<ModelVerification><VerificationFields>{fields}</VerificationFields>{record}</ModelVerification>"
    return regression().replace("</RegressionModel>", f"{told}</RegressionModel>")


def test_records_of_the_document_are_held_to(tmp_path: Path) -> None:
    bundle = export_model(document(tmp_path, _verified(6.5)), tmp_path / "bundle", name="m")
    assert any("ModelVerification" in note for note in bundle.manifest["notes"])
    with pytest.raises(ExportError, match=r"holds y = 6.25 in record 1, but the document computes 6.5"):
        export_model(document(tmp_path, _verified(6.25)), tmp_path / "other", name="m")


def test_powers_are_those_of_c(tmp_path: Path) -> None:
    """Python alone would give a complex root, and refuse to divide by zero."""
    for exponent, expected in (("0.5", [math.nan, 0.5, 2.5]), ("-1", [-2.0, math.inf, 1.0])):
        body = regression().replace('coefficient="2.25"', f'coefficient="1" exponent="{exponent}"')
        given = _score(
            body, tmp_path, x=[-0.4, 0.0, 4.0] if exponent == "0.5" else [-0.4, 0.0, 2.0], c=["green"] * 3
        )
        np.testing.assert_array_equal(given["y"], expected)
        path = document(tmp_path, body)
        bundle = export_model(path, tmp_path / f"bundle{exponent}", name="m")
        assert validate_bundle(bundle).verdict == "pass"


def test_what_names_other_files_is_inert(tmp_path: Path) -> None:
    """Stylesheets and inclusions are text to us: the file scores as without them."""
    secret = tmp_path / "secret"
    secret.write_text("1e6", encoding="utf-8")
    path = document(tmp_path, regression())
    plain = Scorer(read_document(path)).run({"x": np.array([2.0]), "c": np.array(["red"], dtype=object)})
    told = (
        f'<?xml-stylesheet href="{secret.as_uri()}"?><Header><Extension><xi:include '
        f'xmlns:xi="http://www.w3.org/2001/XInclude" href="{secret.as_uri()}" parse="text"/></Extension></Header>'
    )
    path.write_text(path.read_text(encoding="utf-8").replace("<Header/>", told), encoding="utf-8")
    given = Scorer(read_document(path)).run({"x": np.array([2.0]), "c": np.array(["red"], dtype=object)})
    np.testing.assert_array_equal(given["y"], plain["y"])


@pytest.mark.parametrize(
    ("limit", "match"),
    [("MAX_FILE_BYTES", "PMML files up to 50 bytes"), ("MAX_ELEMENTS", "more than 5 elements;"),
     ("MAX_TEXT_CHARS", "more than 5 characters of text")],
)  # fmt: skip
def test_sizes_beyond_all_bounds_are_refused(
    limit: str, match: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = document(tmp_path, regression() + "a long text")
    monkeypatch.setattr(elements, limit, 50 if limit == "MAX_FILE_BYTES" else 5)
    with pytest.raises(SourceError, match=match):
        read_document(path)


# --- a scorer that others wrote -----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def pypmml(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ask]:
    """Asks pypmml, in a throwaway environment."""
    with started(tmp_path_factory.mktemp("pypmml") / "environment") as ask:
        yield ask


_GRID = 1 / 64
"""Inputs stand on a grid: pypmml hands them to the JVM with ten decimals, which moves others across thresholds."""


def _asked(scorer: Scorer, scale: dict[str, list[float]], *, missing: bool) -> dict[str, list[Any]]:
    """Columns in the form that pypmml takes: None is missing."""
    rng, count = np.random.default_rng(3), 80
    columns: dict[str, list[Any]] = {}
    for field in scorer.inputs:
        if field.data_type == "string":
            columns[field.name] = [
                t or None for t in rng.choice(["red", "green", "blue", "", "other"], count).tolist()
            ]
        elif field.data_type == "integer":
            columns[field.name] = rng.integers(-1, 5, count).tolist()
        elif field.data_type == "boolean":
            columns[field.name] = rng.integers(0, 2, count).astype(bool).tolist()
        else:
            middle = rng.choice(scale.get(field.name) or [0.0], count)
            values = np.round((middle + rng.normal(0, 1.5, count)) / _GRID) * _GRID
            lost = rng.random(count) < (0.15 if missing else 0.0)
            columns[field.name] = [None if gone else float(v) for v, gone in zip(values, lost, strict=True)]
    return columns


def _for_scorer(scorer: Scorer, columns: dict[str, list[Any]]) -> dict[str, Array]:
    found: dict[str, Array] = {}
    for field in scorer.inputs:
        values = columns[field.name]
        if field.data_type == "string":
            found[field.name] = np.array([value or "" for value in values], dtype=object)
        else:
            found[field.name] = np.array([math.nan if value is None else value for value in values])
    return found


@pytest.mark.real
@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.pmml")), ids=lambda path: path.stem)
def test_scorer_answers_as_pypmml_on_what_others_wrote(path: Path, pypmml: Ask) -> None:
    scorer = Scorer(read_document(path))
    scale: dict[str, list[float]] = {}
    for element in read_document(path).root.walk():
        if element.tag == "SimplePredicate":
            scale.setdefault(element.get("field"), []).append(float(element.get("value")))
    columns = _asked(scorer, scale, missing=False)
    assert departures(scorer.run(_for_scorer(scorer, columns)), pypmml(path, columns)) == []


PYPMML_DEPARTS = {
    "tree_.*_nullPrediction_last": "a missing value that ends the way is answered by noTrueChildStrategy",
    "tree_(many|and|surrogate)_.*": "other children are asked after one that a missing value leaves open",
    "tree_xor": "the third part of an xor is not counted",
    "tree_root_test": "the predicate of the root is not asked",
    "tree_classes_by_count": "a node without score has no class, whatever its distribution says",
    "function_(text|texts|logic|threshold|round)": "a missing argument counts as a value",
    "function_not_in": "a constant without a type is a text",
    "function_if_without_else": "mapMissingTo of an Apply is not followed",
    "function_negated": "the one argument of a sign is refused",
    "derived_(line_missing|bins)": "mapMissingTo is not followed for outliers and bins",
    "regression_loglog": "the link is not known in a regression",
    "classes2_(logit|probit|cloglog|loglog|cauchit)": "the link is taken of the last table unless that is zero",
    "ordinal_.*": "the last class gets what the last step leaves, not what all of them leave",
    "(votes|shares)_.*": "segments without a result do not count",
    "outputs": "a probability of dataType float is not rounded",
}
"""Documents -> how pypmml 1.5.8 reads them otherwise than the standard; docs/pmml.md tells why we do not."""


def _departs(name: str) -> bool:
    return any(re.fullmatch(pattern, name) for pattern in PYPMML_DEPARTS)


@pytest.mark.real
@pytest.mark.parametrize("name", [name for name in ZOO if not _departs(name)])
def test_scorer_answers_as_pypmml_on_every_construct(name: str, pypmml: Ask, tmp_path: Path) -> None:
    path = document(tmp_path, ZOO[name])
    scorer = Scorer(read_document(path))
    columns = _asked(scorer, {}, missing=True)
    assert departures(scorer.run(_for_scorer(scorer, columns)), pypmml(path, columns)) == []


@pytest.mark.real
@pytest.mark.parametrize("pattern", PYPMML_DEPARTS)
def test_pypmml_still_departs_where_it_is_said_to(pattern: str, pypmml: Ask, tmp_path: Path) -> None:
    """The list of known departures must not hide an error of ours that is long gone."""
    found = []
    for name in [name for name in ZOO if re.fullmatch(pattern, name)]:
        path = document(tmp_path, ZOO[name])
        scorer = Scorer(read_document(path))
        columns = _asked(scorer, {}, missing=True)
        answer = pypmml(path, columns)
        found += (
            ["refused"] if "error" in answer else departures(scorer.run(_for_scorer(scorer, columns)), answer)
        )
    assert found


@pytest.mark.real
def test_scorer_and_pypmml_agree_that_nyoka_writes_softmax_one_versus_rest(pypmml: Ask) -> None:
    """Two scorers give the same for the file, so what departs from scikit-learn is the file."""
    datasets = pytest.importorskip("sklearn.datasets")
    linear = pytest.importorskip("sklearn.linear_model")
    x, y = datasets.load_iris(return_X_y=True)
    shares = linear.LogisticRegression(max_iter=1000).fit(x, y).predict_proba(x)
    path = FOLDER / "iris_logistic.pmml"
    scorer = Scorer(read_document(path))
    columns = {field.name: x[:, k].tolist() for k, field in enumerate(scorer.inputs)}
    ours = scorer.run(_for_scorer(scorer, columns))
    assert departures(ours, pypmml(path, columns)) == []
    written = np.stack([ours[f"probability_{k}"] for k in range(3)], axis=1)
    assert np.abs(written - shares).max() > 0.4


def test_forest_of_nyoka_answers_as_scikit_learn_in_single_precision() -> None:
    """scikit-learn rounds its input to float32 before it compares, which PMML does not."""
    datasets = pytest.importorskip("sklearn.datasets")
    ensemble = pytest.importorskip("sklearn.ensemble")
    x, y = datasets.load_iris(return_X_y=True)
    shares = ensemble.RandomForestClassifier(n_estimators=10, random_state=0).fit(x, y).predict_proba(x)
    scorer = Scorer(read_document(FOLDER / "iris_forest.pmml"))

    def departure(rows: Array) -> float:
        given = scorer.run({field.name: rows[:, k] for k, field in enumerate(scorer.inputs)})
        return float(np.abs(np.stack([given[f"probability_{k}"] for k in range(3)], axis=1) - shares).max())

    assert departure(x) > 0.09
    assert departure(x.astype(np.float32).astype(np.float64)) < 1e-12
