"""PMML: the graph gives what the scorer gives, for every construct; the scorer gives what the standard says."""

from __future__ import annotations

import json
import math
import subprocess
import sys
import venv
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from paritygate.converter.errors import ExportError
from paritygate.converter.exporters import detect, export_model
from paritygate.converter.exporters._pmml.elements import read_document
from paritygate.converter.exporters._pmml.emission.emitter import emit_document
from paritygate.converter.exporters._pmml.scoring.scorer import Scorer
from paritygate.converter.parity.validate import validate_bundle
from paritygate.converter.types import Array, DType, TensorSpec
from support.pmml import FOLDER
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


# --- a scorer that others wrote -----------------------------------------------------------------------------

PYPMML = ("pypmml==1.5.8", "py4j==0.10.9.9", "pandas==2.3.3")
_ASK = """
import json, sys, pandas
from pypmml import Model
for line in sys.stdin:
    job = json.loads(line)
    frame = Model.load(job["path"]).predict(pandas.DataFrame(job["columns"]))
    print("ANSWER" + json.dumps({name: list(frame[name]) for name in frame.columns}), flush=True)
"""


@pytest.fixture(scope="module")
def pypmml(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Asks pypmml, a scorer on the JVM, in a throwaway environment."""
    if subprocess.run(["java", "-version"], capture_output=True, check=False).returncode:
        pytest.skip("there is no Java, which pypmml runs on")
    folder = tmp_path_factory.mktemp("pypmml") / "environment"
    venv.create(folder, with_pip=False)
    python = folder / "bin" / "python"
    command = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", *PYPMML]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    if done.returncode:
        pytest.skip(f"pypmml cannot be installed: {done.stderr.strip()[-200:]}")
    with subprocess.Popen(
        [python, "-c", _ASK], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdin
        assert child.stdout

        def ask(path: Path, columns: dict[str, list[Any]]) -> dict[str, list[Any]]:
            child.stdin.write(json.dumps({"path": str(path), "columns": columns}) + "\n")  # type: ignore[union-attr]
            child.stdin.flush()  # type: ignore[union-attr]
            line = next(line for line in child.stdout if line.startswith("ANSWER"))  # type: ignore[union-attr]
            answer: dict[str, list[Any]] = json.loads(line.removeprefix("ANSWER"))
            return answer

        yield ask
        child.stdin.close()


@pytest.mark.real
@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.pmml")), ids=lambda path: path.stem)
def test_scorer_answers_as_pypmml(path: Path, pypmml: Any) -> None:
    bundle_free = Scorer(read_document(path))
    rng = np.random.default_rng(11)
    thresholds = [
        float(e.get("value")) for e in read_document(path).root.walk() if e.tag == "SimplePredicate"
    ]
    scale = thresholds or [0.0, 1.0, 5.0]
    columns = {field.name: rng.choice(scale, 200) + rng.normal(0, 0.5, 200) for field in bundle_free.inputs}
    ours = bundle_free.run(columns)
    theirs = pypmml(path, {name: column.tolist() for name, column in columns.items()})
    assert set(ours) == set(theirs)
    for name, answer in ours.items():
        np.testing.assert_allclose(
            answer.astype(float), np.array(theirs[name], dtype=float), rtol=1e-7, atol=1e-12
        )
