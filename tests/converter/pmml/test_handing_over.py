"""PMML written from bundles: it gives what the source gave, or it is not written."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from paritygate.converter.bundle import Bundle, read_bundle
from paritygate.converter.errors import ExportError, UnsupportedOperator
from paritygate.converter.exporters import export_model
from paritygate.converter.exporters._pmml.elements import read_document
from paritygate.converter.exporters._pmml.scoring.scorer import Scorer
from paritygate.converter.parity.validate import validate_bundle
from paritygate.converter.pmml import write_pmml
from paritygate.converter.pmml.reading import understand
from paritygate.converter.types import DType, Signature, TensorSpec
from support.pmml.pypmml import Ask, departures, started


def _iris() -> Any:
    return pytest.importorskip("sklearn.datasets").load_iris(return_X_y=True)


def _cancer() -> Any:
    return pytest.importorskip("sklearn.datasets").load_breast_cancer(return_X_y=True)


def _diabetes() -> Any:
    return pytest.importorskip("sklearn.datasets").load_diabetes(return_X_y=True)


def _made(kind: str) -> Any:
    pytest.importorskip("skl2onnx")
    ensemble, linear, tree = (
        pytest.importorskip(f"sklearn.{part}") for part in ("ensemble", "linear_model", "tree")
    )
    pipeline, scaling = (pytest.importorskip(f"sklearn.{part}") for part in ("pipeline", "preprocessing"))
    scaled: Callable[[Any, Any], Any] = pipeline.make_pipeline
    x, y = _iris()
    boosted = ensemble.GradientBoostingClassifier, ensemble.GradientBoostingRegressor
    names = np.array(["a <b>", 'c "d"', "7"])
    makers: dict[str, Callable[[], Any]] = {
        "ridge": lambda: linear.Ridge().fit(*_diabetes()),
        "scaled_lasso": lambda: scaled(scaling.MinMaxScaler(), linear.Lasso(0.01)).fit(*_diabetes()),
        "logistic": lambda: linear.LogisticRegression(max_iter=9999).fit(*_cancer()),
        "scaled_logistic": lambda: scaled(scaling.StandardScaler(), linear.LogisticRegression()).fit(x, y),
        "text_classes": lambda: linear.LogisticRegression(max_iter=999).fit(x, names[y]),
        "tree": lambda: tree.DecisionTreeClassifier(random_state=0).fit(x, y),
        "tree_regressor": lambda: tree.DecisionTreeRegressor(max_depth=5, random_state=0).fit(*_diabetes()),
        "forest": lambda: ensemble.RandomForestClassifier(5, random_state=0).fit(x, y + 3),
        "forest_of_two": lambda: ensemble.RandomForestClassifier(5, max_depth=4, random_state=0).fit(*_cancer()),
        "forest_regressor": lambda: ensemble.RandomForestRegressor(5, max_depth=4).fit(*_diabetes()),
        "scaled_forest": lambda: scaled(
            scaling.StandardScaler(), ensemble.RandomForestClassifier(5, random_state=0)
        ).fit(x, y),
        "boosting": lambda: boosted[0](n_estimators=4, random_state=0).fit(*_cancer()),
        "boosting_of_three": lambda: boosted[0](n_estimators=4, random_state=0).fit(x, y),
        "boosting_regressor": lambda: boosted[1](n_estimators=4, random_state=0).fit(*_diabetes()),
        "histogram_boosting": lambda: ensemble.HistGradientBoostingClassifier(max_iter=4).fit(*_cancer()),
    }  # fmt: skip
    return makers[kind]()


ESTIMATORS = (
    "ridge", "scaled_lasso", "logistic", "scaled_logistic", "text_classes", "tree", "tree_regressor", "forest",
    "forest_of_two", "forest_regressor", "scaled_forest", "boosting", "boosting_of_three", "boosting_regressor",
    "histogram_boosting",
)  # fmt: skip


def _rows(bundle: Bundle) -> Any:
    width = bundle.signature.inputs[0].shape[1]
    return {10: _diabetes, 30: _cancer, 4: _iris}[int(width)]()[0].astype(np.float32)


def _scored(path: Path, rows: Any) -> tuple[Scorer, dict[str, Any]]:
    scorer = Scorer(read_document(path))
    return scorer, scorer.run(
        {field.name: rows[:, k].astype(np.float64) for k, field in enumerate(scorer.inputs)}
    )


def _shares(scorer: Scorer, given: dict[str, Any]) -> Any:
    return np.stack([given[f"probability({name})"] for name in scorer.classes], axis=1)


@pytest.mark.parametrize("kind", ESTIMATORS)
def test_written_file_answers_as_the_graph_and_as_scikit_learn(kind: str, tmp_path: Path) -> None:
    runtime = pytest.importorskip("onnxruntime")
    estimator = _made(kind)
    bundle = export_model(estimator, tmp_path / "bundle", name=kind)
    rows = _rows(bundle)
    scorer, given = _scored(write_pmml(bundle, tmp_path / "model.pmml"), rows)
    session = runtime.InferenceSession(bundle.model_bytes(), providers=["CPUExecutionProvider"])
    graph = dict(zip((o.name for o in session.get_outputs()), session.run(None, {"x": rows}), strict=True))
    if not scorer.classes:
        np.testing.assert_allclose(given["prediction"], graph["prediction"], rtol=1e-5)
        np.testing.assert_allclose(given["prediction"], estimator.predict(rows.astype(np.float64)), rtol=1e-5)
        return
    shares = _shares(scorer, given)
    clear = np.ptp(np.sort(shares, axis=1)[:, -2:], axis=1) > 1e-4
    np.testing.assert_array_equal(given["predicted_label"][clear], graph["label"][clear])
    np.testing.assert_allclose(shares, graph["probabilities"], atol=3e-6)
    if kind != "scaled_forest":  # a Scaler rounds to single precision where scikit-learn does not
        np.testing.assert_allclose(shares, estimator.predict_proba(rows.astype(np.float64)), atol=3e-6)


@pytest.fixture(scope="module")
def pypmml(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ask]:
    """Asks pypmml, in a throwaway environment."""
    with started(tmp_path_factory.mktemp("pypmml") / "environment") as ask:
        yield ask


@pytest.mark.real
@pytest.mark.parametrize("kind", ESTIMATORS)
def test_pypmml_answers_as_the_source_from_the_written_file(kind: str, pypmml: Ask, tmp_path: Path) -> None:
    """A scorer that others wrote gives what scikit-learn gives, and what ours proves the file with."""
    estimator = _made(kind)
    bundle = export_model(estimator, tmp_path / "bundle", name=kind)
    rows = (np.round(_rows(bundle) * 2**10) / 2**10).astype(np.float32)  # pypmml takes ten decimals
    path = write_pmml(bundle, tmp_path / "model.pmml")
    scorer, ours = _scored(path, rows)
    theirs = pypmml(path, {f.name: rows[:, k].astype(float).tolist() for k, f in enumerate(scorer.inputs)})
    assert departures(ours, theirs, rel_tol=1e-6) == []
    if kind == "scaled_forest":  # a Scaler rounds to single precision where scikit-learn does not
        return
    wide = rows.astype(np.float64)
    if not scorer.classes:
        given = theirs.get("prediction") or theirs["predicted_prediction"]
        np.testing.assert_allclose(np.array(given, float), estimator.predict(wide), rtol=1e-5)
        return
    shares = np.array([theirs[f"probability({name})"] for name in scorer.classes], float).T
    np.testing.assert_allclose(shares, estimator.predict_proba(wide), atol=3e-6)


@pytest.mark.parametrize("kind", ["scaled_logistic", "forest", "boosting_regressor"])
def test_written_file_comes_back_as_a_bundle(kind: str, tmp_path: Path) -> None:
    bundle = export_model(_made(kind), tmp_path / "bundle", name=kind)
    again = export_model(write_pmml(bundle, tmp_path / "model.pmml"), tmp_path / "again", name="again")
    assert validate_bundle(again).verdict == "pass"


def test_linear_network_of_torch_leaves_as_pmml(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Softmax(dim=-1))
    bundle = export_model(
        model, tmp_path / "bundle", name="net", inputs={"input": np.ones((2, 4), np.float32)}
    )
    scorer = Scorer(read_document(write_pmml(bundle, tmp_path / "model.pmml")))
    given = scorer.run({f"input_{k}": np.array([0.5 * k]) for k in range(4)})
    with torch.no_grad():
        told = model(torch.tensor([[0.0, 0.5, 1.0, 1.5]])).numpy()
    np.testing.assert_allclose([[given[f"probability({k})"][0] for k in range(3)]], told, atol=1e-6)


def test_other_networks_are_refused_by_the_operator(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.ReLU(), torch.nn.Linear(3, 1))
    bundle = export_model(model, tmp_path / "bundle", name="net", inputs=np.ones((2, 4), np.float32))
    with pytest.raises(
        UnsupportedOperator, match=r"operator Relu \(.*\) has no PMML form.* Serve the bundle as it is"
    ):
        write_pmml(bundle, tmp_path / "model.pmml")
    assert not (tmp_path / "model.pmml").exists()


def _tampered(path: Path) -> None:
    """A linear model's first coefficient moved, after which the digests are right and the numbers are not."""
    model = onnx.load(path)
    (node,) = [n for n in model.graph.node if n.op_type == "LinearRegressor"]
    (weights,) = [a for a in node.attribute if a.name == "coefficients"]
    weights.floats[0] += 10.0
    onnx.save(model, path)


def test_file_that_would_not_answer_as_the_source_is_not_written(tmp_path: Path) -> None:
    bundle = export_model(_made("ridge"), tmp_path / "bundle", name="m", after_conversion=_tampered)
    with pytest.raises(
        ExportError, match=r"the PMML would give prediction = .* where the source gave .* not written"
    ):
        write_pmml(bundle, tmp_path / "model.pmml")
    assert [entry.name for entry in tmp_path.iterdir()] == ["bundle"]


def test_bundle_without_probes_proves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bundle = export_model(_made("ridge"), tmp_path / "bundle", name="m")
    monkeypatch.setattr(Bundle, "probes", lambda self: iter(()))
    with pytest.raises(ExportError, match="holds no probes"):
        write_pmml(bundle, tmp_path / "model.pmml")


def test_existing_file_is_not_overwritten(tmp_path: Path) -> None:
    bundle = export_model(_made("ridge"), tmp_path / "bundle", name="m")
    write_pmml(bundle, tmp_path / "model.pmml")
    with pytest.raises(ExportError, match="exists already"):
        write_pmml(bundle, tmp_path / "model.pmml")


def test_missing_directory_gets_one_line(tmp_path: Path) -> None:
    bundle = export_model(_made("ridge"), tmp_path / "bundle", name="m")
    with pytest.raises(ExportError, match="does not exist; make it"):
        write_pmml(bundle, tmp_path / "none" / "model.pmml")


# --- single decisions ---------------------------------------------------------------------------------------


def _stump(mode: str, bound: float, *, scaler: bool) -> onnx.ModelProto:
    nodes = [
        helper.make_node(
            "TreeEnsembleRegressor", ["scaled" if scaler else "x"], ["y"], domain="ai.onnx.ml", n_targets=1,
            nodes_treeids=[0, 0, 0], nodes_nodeids=[0, 1, 2], nodes_featureids=[0, 0, 0],
            nodes_modes=[mode, "LEAF", "LEAF"], nodes_values=[bound, 0.0, 0.0], nodes_truenodeids=[1, 0, 0],
            nodes_falsenodeids=[2, 0, 0], target_treeids=[0, 0], target_nodeids=[1, 2], target_ids=[0, 0],
            target_weights=[1.0, 2.0],
        )
    ]  # fmt: skip
    if scaler:
        told = helper.make_node("Scaler", ["x"], ["scaled"], domain="ai.onnx.ml", offset=[0.3], scale=[1.7])
        nodes.insert(0, told)
    value = [helper.make_tensor_value_info(n, TensorProto.FLOAT, ["n", 1]) for n in ("x", "y")]
    graph = helper.make_graph(nodes, "g", value[:1], value[1:])
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("ai.onnx.ml", 3)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


@pytest.mark.parametrize("scaler", [False, True], ids=["plain", "behind a scaler"])
@pytest.mark.parametrize("mode", ["BRANCH_LEQ", "BRANCH_LT", "BRANCH_GT", "BRANCH_GTE"])
@pytest.mark.parametrize("bound", [0.1, -2.5, 3e-8, 0.0])
def test_every_number_around_a_threshold_falls_as_in_the_ensemble(
    mode: str, bound: float, scaler: bool, tmp_path: Path
) -> None:
    from paritygate.converter.pmml.document import document_text

    runtime = pytest.importorskip("onnxruntime")
    model = _stump(mode, bound, scaler=scaler)
    spec = [TensorSpec(name, DType.FLOAT32, ("n", 1)) for name in ("x", "y")]
    text = document_text(understand(model, Signature((spec[0],), (spec[1],))), "stump")
    path = tmp_path / "model.pmml"
    path.write_text(text, encoding="utf-8")
    middle = np.float32(bound / 1.7 + 0.3 if scaler else bound)
    around = [middle]
    for side in (-math.inf, math.inf):
        number = middle
        for _ in range(12):
            number = np.nextafter(number, np.float32(side))
            around.append(number)
    x = np.array([*around, np.nan, -1e30, 1e30], dtype=np.float32)
    session = runtime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    (told,) = session.run(None, {"x": x[:, None]})
    assert len(set(told.ravel().tolist())) == 2
    given = Scorer(read_document(path)).run({"x": x.astype(np.float64)})
    np.testing.assert_array_equal(given["y"], told.ravel())


def test_read_back_bundle_can_be_written_too(tmp_path: Path) -> None:
    export_model(_made("forest"), tmp_path / "bundle", name="m")
    assert write_pmml(read_bundle(tmp_path / "bundle"), tmp_path / "model.pmml").stat().st_size > 1000
