"""LightGBM: every kind of model proves itself, and faults that only its own thresholds can show are shown."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from paritygate.converter.bundle import read_bundle
from paritygate.converter.config import ExportConfig
from paritygate.converter.errors import ExportError, UnsupportedOperator
from paritygate.converter.exporters import get_exporter
from paritygate.converter.exporters._trees.lightgbm_document import ModelText, without_the_rest
from paritygate.converter.parity.validate import validate_bundle
from support.environments import real_environment, run_in

_SCRIPT = Path(__file__).parents[2] / "support" / "tree_bundles.py"
_CLASSES = "(x: float32[batch, 5]) -> (label: {}[batch], probabilities: float32[batch, {}])"
_VALUE = "(x: float32[batch, 5]) -> ({}: float32[batch])"
_WIDE = "(x: float64[batch, 5]) -> ({}: float32[batch])"

_SIGNATURES = {
    "two-classes": _CLASSES.format("int64", 2),
    "three-classes": _CLASSES.format("int64", 3),
    "labels-are-texts": _CLASSES.format("string", 3),
    "labels-are-numbers": _CLASSES.format("int64", 3),
    "one-against-all": _CLASSES.format("int64", 3),
    "stopped-early": _CLASSES.format("int64", 2),
    "booster-of-stopped-early": _VALUE.format("probabilities"),
    "categories": _CLASSES.format("int64", 2),
    "categories-one-by-one": _CLASSES.format("int64", 2),
    "forest": _CLASSES.format("int64", 2),
    "dart": _CLASSES.format("int64", 2),
    "float64": _WIDE.format("prediction"),
    "float64-zeros-are-missing": _WIDE.format("probabilities"),
    "ranking": _VALUE.format("scores"),
    **dict.fromkeys(
        ("zeros-are-missing", "nothing-is-missing", "missing-not-used", "slope", "entropy"),
        _VALUE.format("probabilities"),
    ),
    **dict.fromkeys(
        (
            "amount", "thresholds-between-float32", "square-root", "absolute", "huber", "quantile", "counts",
            "gamma", "tweedie", "forest-of-amounts", "monotone", "entropy-lambda", "own-objective", "constant",
        ),
        _VALUE.format("prediction"),
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def zoo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All bundles, written by one run in the environment."""
    folder = tmp_path_factory.mktemp("lightgbm")
    out = folder / "out"
    out.mkdir()
    run_in(real_environment("trees"), _SCRIPT, "lightgbm", out, folder=folder)
    return out


@pytest.mark.real
@pytest.mark.parametrize("name", _SIGNATURES)
def test_a_model_becomes_a_proven_bundle_with_its_own_answers(zoo: Path, name: str) -> None:
    bundle = read_bundle(zoo / name)
    assert str(bundle.signature) == _SIGNATURES[name]
    certificate = validate_bundle(bundle)
    assert certificate.verdict == "pass", certificate.reason
    assert bundle.manifest["opsets"]["ai.onnx"] == 18
    kinds = {probe.case.split(":")[1] for probe in bundle.probes() if probe.case.startswith("edges")}
    assert kinds == (set() if name == "constant" else {"thresholds", "missing"})


@pytest.mark.real
@pytest.mark.parametrize("fault", ["first-threshold", "last-threshold", "first-missing", "last-missing"])
def test_one_decision_that_is_off_by_one_step_fails_parity(zoo: Path, fault: str) -> None:
    bundle = read_bundle(zoo / f"spoilt-{fault}")
    bundle.verify()
    certificate = validate_bundle(bundle)
    assert certificate.verdict == "fail"
    assert "case 'edges:" in str(certificate.reason)


@pytest.mark.real
@pytest.mark.parametrize("name", ["stopped-early", "booster-of-stopped-early"])
def test_both_forms_stop_at_the_best_round(zoo: Path, name: str) -> None:
    assert "predict ends at round" in " ".join(read_bundle(zoo / name).manifest["notes"])


@pytest.mark.real
def test_linear_trees_are_refused_by_name(zoo: Path) -> None:
    refused = json.loads((zoo / "refused.json").read_text())
    assert list(refused) == ["linear-trees"]
    assert refused["linear-trees"][0] == "UnsupportedOperator"
    assert "linear models in its leaves" in refused["linear-trees"][1]


# --- the text -----------------------------------------------------------------------------------------------

_TREE = """Tree=0
num_leaves=3
num_cat=0
split_feature=0 1
threshold=0.10000000000000001 -0
decision_type=2 0
left_child=1 -1
right_child=-2 -3
leaf_value=1 2 3
is_linear=0

"""
_TEXT = (
    "tree\nversion=v4\nnum_class=1\nnum_tree_per_iteration=1\nmax_feature_idx=1\nobjective=regression\n"
    f"feature_names=Column_0 Column_1\ntree_sizes=100\n\n{_TREE}end of trees\n"
)


def test_thresholds_are_read_to_the_last_bit_and_small_ones_decide_about_zero() -> None:
    (tree,) = ModelText.parse(_TEXT).forest().trees
    assert tree.threshold[0] == 0.1
    assert tree.threshold[1] == np.float64(np.float32(1e-35))
    # Nothing counts as missing there: a NaN goes where zero goes, and 0 <= -0.
    assert tree.missing_is_yes.tolist()[:2] == [True, True]


def test_the_float32_cut_of_a_threshold_is_the_largest_that_takes_the_branch() -> None:
    forest = ModelText.parse(_TEXT).forest()
    cut = forest.cuts(forest.trees[0])[0]
    assert np.float64(cut) <= 0.1 < np.float64(np.nextafter(cut, np.float32(1)))


@pytest.mark.parametrize(
    ("change", "error", "match"),
    [
        (("end of trees", "end"), ExportError, "is cut off"),
        (("tree_sizes=100", "tree_sizes=100 100"), ExportError, "promises 2 trees and holds 1"),
        (("leaf_value=1 2 3", "leaf_value=1 2"), ExportError, "lines are of different lengths"),
        (("leaf_value=1 2 3", "leaf_value=1 2 x"), ExportError, "something else than numbers"),
        (("leaf_value=1 2 3", "leaf_value=1 2 nan"), ExportError, "holds no finite number"),
        (("left_child=1 -1", "left_child=1 -9"), ExportError, "a child lies outside the tree"),
        (("left_child=1 -1", "left_child=1 -2"), ExportError, "a node has two parents"),
        (("split_feature=0 1", "split_feature=0 7"), ExportError, "asks for a feature outside 0 to 1"),
        (("decision_type=2 0", "decision_type=1 0"), ExportError, "a set of categories is not there"),
        (
            ("threshold=0.10000000000000001 -0\ndecision_type=2", "threshold=nan -0\ndecision_type=1"),
            ExportError,
            "a set of categories is not there",
        ),
        (("num_leaves=3", "num_leaves=x"), ExportError, "has no number 'num_leaves'"),
        (("is_linear=0", "is_linear=1"), UnsupportedOperator, "linear models in its leaves"),
        (("split_feature=0 1", "split_feature=0 0"), None, ""),
    ],
)
def test_a_text_that_is_damaged_is_refused_with_its_fault(
    change: tuple[str, str], error: type[Exception] | None, match: str
) -> None:
    text = _TEXT.replace(*change)
    assert text != _TEXT
    if error is None:
        assert ModelText.parse(text).forest().num_splits == 2
        return
    with pytest.raises(error, match=match):
        ModelText.parse(text).forest()


def test_trees_that_disagree_on_what_is_missing_are_refused() -> None:
    text = _TEXT.replace("split_feature=0 1", "split_feature=0 0").replace(
        "decision_type=2 0", "decision_type=6 0"
    )
    with pytest.raises(UnsupportedOperator, match="do not agree on what is missing in feature 0"):
        ModelText.parse(text).preparation()


def test_an_objective_that_is_not_known_is_named() -> None:
    with pytest.raises(UnsupportedOperator, match="the objective 'novel' has no ONNX form"):
        _ = ModelText.parse(_TEXT.replace("objective=regression", "objective=novel")).link


def test_a_slope_that_is_no_number_is_refused() -> None:
    with pytest.raises(ExportError, match="has 'sigmoid:steep' where a number is expected"):
        _ = ModelText.parse(_TEXT.replace("objective=regression", "objective=binary sigmoid:steep")).link


def test_lightgbm_gets_neither_places_to_jump_to_nor_parameters_to_take_apart() -> None:
    rest = "\nfeature_importances:\nColumn_0=1\n\nparameters:\n[use_missing\nend of parameters\n"
    assert without_the_rest(_TEXT + rest) == _TEXT.replace("tree_sizes=100\n", "")


def test_a_file_with_an_operator_that_has_no_form_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "model.txt"
    path.write_text(_TEXT.replace("is_linear=0", "is_linear=1"))
    with pytest.raises(UnsupportedOperator, match=r"model\.txt: tree 0 has linear models") as refused:
        get_exporter("lightgbm").refuse_early(path, ExportConfig(name="model"))
    assert refused.value.operator == "linear_tree"


@pytest.mark.real
@pytest.mark.xdist_group("trees")
def test_texts_that_would_end_the_process_inside_lightgbm_are_refused_or_read(zoo: Path) -> None:
    """Sizes of trees that lead astray, a parameter without a value: LightGBM aborts or reads beyond its memory."""
    ended = json.loads((zoo / "damaged.json").read_text())
    assert ended == {"sizes": "exported", "parameter": "exported", "cut-number": "SourceError"}
