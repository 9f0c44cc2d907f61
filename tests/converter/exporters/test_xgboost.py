"""XGBoost: every kind of model proves itself, and faults that only its own thresholds can show are shown."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paritygate.converter.bundle import Bundle, read_bundle
from paritygate.converter.errors import ExportError
from paritygate.converter.exporters._trees.ubjson import UbjsonFault, decode
from paritygate.converter.exporters._trees.xgboost_document import BoosterDocument
from paritygate.converter.parity.validate import validate_bundle
from support.environments import real_environment, run_in
from support.exporter_cases.xgboost import CASES

_SCRIPT = Path(__file__).parents[2] / "support" / "tree_bundles.py"
_CLASSES = "(x: float32[batch, 5]) -> (label: int64[batch], probabilities: float32[batch, {}])"
_VALUE = "(x: float32[batch, 5]) -> ({}: float32[batch{}])"

_SIGNATURES = {
    "two-classes": _CLASSES.format(2),
    "three-classes": _CLASSES.format(3),
    "softmax": _CLASSES.format(3),
    "softmax-of-two": _CLASSES.format(2),
    "several-labels": "(x: float32[batch, 5]) -> (label: int64[batch, 3], probabilities: float32[batch, 3])",
    "vector-leaves-of-classes": _CLASSES.format(3),
    "stopped-early": _CLASSES.format(2),
    "booster-of-stopped-early": _VALUE.format("probabilities", ""),
    "categories": _CLASSES.format(2),
    "categories-one-by-one": _CLASSES.format(2),
    "hinge": _CLASSES.format(2),
    "dart": _CLASSES.format(3),
    "linear": _CLASSES.format(3),
    "forest": _CLASSES.format(2),
    "amount": _VALUE.format("prediction", ""),
    "number-that-means-missing": _VALUE.format("prediction", ""),
    "float64": "(x: float64[batch, 5]) -> (prediction: float32[batch])",
    "counts": _VALUE.format("prediction", ""),
    "gamma": _VALUE.format("prediction", ""),
    "tweedie": _VALUE.format("prediction", ""),
    "logitraw": _VALUE.format("prediction", ""),
    "quantiles": _VALUE.format("prediction", ", 3"),
    "absolute": _VALUE.format("prediction", ""),
    "cox": _VALUE.format("prediction", ""),
    "two-amounts": _VALUE.format("prediction", ", 2"),
    "vector-leaves": _VALUE.format("prediction", ", 2"),
    "monotone": _VALUE.format("prediction", ""),
    "pruned": _VALUE.format("prediction", ""),
    "ranking": _VALUE.format("scores", ""),
    "booster-of-shares": _VALUE.format("probabilities", ", 3"),
    "booster-of-softmax": _VALUE.format("prediction", ""),
    "booster-of-parallel-trees": _VALUE.format("probabilities", ""),
    "booster-with-names": _VALUE.format("prediction", ""),
    "survival": _VALUE.format("prediction", ""),
}


@pytest.fixture(scope="module")
def zoo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All bundles, written by one run in the environment."""
    folder = tmp_path_factory.mktemp("xgboost")
    out = folder / "out"
    out.mkdir()
    run_in(real_environment("trees"), _SCRIPT, "xgboost", out, folder=folder)
    return out


def _notes(bundle: Bundle) -> str:
    return " ".join(bundle.manifest["notes"])


@pytest.mark.real
@pytest.mark.parametrize("name", _SIGNATURES)
def test_a_model_becomes_a_proven_bundle_with_its_own_answers(zoo: Path, name: str) -> None:
    bundle = read_bundle(zoo / name)
    assert str(bundle.signature) == _SIGNATURES[name]
    certificate = validate_bundle(bundle)
    assert certificate.verdict == "pass", certificate.reason
    assert bundle.manifest["opsets"]["ai.onnx"] == 18
    kinds = {probe.case.split(":")[1] for probe in bundle.probes() if probe.case.startswith("edges")}
    assert kinds == (set() if name == "linear" else {"thresholds", "missing"})
    assert "gave the outputs" not in _notes(bundle)  # the double-precision form has no labels, and need not


@pytest.mark.real
@pytest.mark.parametrize("fault", ["first-threshold", "last-threshold", "first-missing", "last-missing"])
def test_one_decision_that_is_off_by_one_step_fails_parity(zoo: Path, fault: str) -> None:
    bundle = read_bundle(zoo / f"spoilt-{fault}")
    bundle.verify()
    certificate = validate_bundle(bundle)
    assert certificate.verdict == "fail"
    assert "case 'edges:" in str(certificate.reason)


@pytest.mark.real
def test_an_estimator_stops_at_its_best_round_and_a_booster_says_that_it_does_not(zoo: Path) -> None:
    estimator, booster = read_bundle(zoo / "stopped-early"), read_bundle(zoo / "booster-of-stopped-early")
    assert "best_iteration" in _notes(estimator)
    assert "is where predict stops" in _notes(estimator)
    assert "its predict takes all" in _notes(booster)
    assert len(estimator.model_bytes()) < len(booster.model_bytes())


@pytest.mark.real
def test_columns_and_categories_are_told(zoo: Path) -> None:
    assert "The columns of the input are, in order: a, b, c, d, e." in _notes(
        read_bundle(zoo / "booster-with-names")
    )
    assert "Features 3 are categories" in _notes(read_bundle(zoo / "categories"))


@pytest.mark.real
def test_what_has_no_form_is_refused_with_a_reason(zoo: Path) -> None:
    refused = json.loads((zoo / "refused.json").read_text())
    assert set(refused) == {"no-round", "labels-without-shares"}
    assert "the booster has no trees" in refused["no-round"][1]
    assert "gives labels and no probabilities" in refused["labels-without-shares"][1]


# --- UBJSON -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "value"),
    [
        (b"{L\0\0\0\0\0\0\0\x01aSL\0\0\0\0\0\0\0\x02hi}", {"a": "hi"}),
        (b"[i\x05U\xffI\xff\xfel\0\0\0\x07TFZ]", [5, 255, -2, 7, True, False, None]),
        (b"d" + struct.pack(">f", 0.5), 0.5),
        (b"[#i\x02i\x01i\x02", [1, 2]),
        (b"{#i\x01i\x01ai\x03", {"a": 3}),
    ],
    ids=["object", "array", "number", "counted-array", "counted-object"],
)
def test_ubjson_is_decoded(data: bytes, value: Any) -> None:
    assert decode(data) == value


def test_a_typed_array_of_ubjson_is_an_array() -> None:
    decoded = decode(b"[$d#i\x02" + struct.pack(">ff", 1.5, -2.0))
    np.testing.assert_array_equal(decoded, np.array([1.5, -2.0], np.float32))


@pytest.mark.parametrize(
    ("data", "match"),
    [
        (b"", "asks for 1 more"),
        (b"[$d#L\x0f" + b"\xff" * 7, "asks for"),
        (b"[#L\x7f" + b"\xff" * 7, "promises"),
        (b"[" * 100, "nested deeper"),
        (b"{i\x01a", "asks for 1 more"),
        (b"i\x05x", "1 bytes follow the end"),
        (b"?", "begins no value"),
        (b"SL\xff\xff\xff\xff\xff\xff\xff\xff", "asks for -1 more"),
        (b"[$S#i\x01", "begins no array of one type"),
        (b"Sd\0\0\0\0", "begins no length"),
        (b"Si\x01\xff", "no UTF-8"),
    ],
)
def test_ubjson_that_lies_is_refused_at_its_place(data: bytes, match: str) -> None:
    with pytest.raises(UbjsonFault, match=match):
        decode(data)


_LEARNER = {
    "attributes": {}, "feature_names": [], "feature_types": [], "objective": {"name": "binary:logistic"},
    "learner_model_param": {"num_feature": "2", "num_class": "0", "num_target": "1", "base_score": "5E-1"},
    "gradient_booster": {"name": "gbtree", "model": {"iteration_indptr": [0, 1], "tree_info": [0], "trees": [{
        "left_children": [1, -1, -1], "right_children": [2, -1, -1], "parents": [2147483647, 0, 0],
        "split_indices": [1, 0, 0], "split_conditions": [0.5, 1.0, 2.0], "default_left": [0, 0, 0],
        "split_type": [1, 0, 0], "categories_nodes": [0], "categories_segments": [0], "categories_sizes": [2],
        "categories": [1, 3], "tree_param": {"size_leaf_vector": "1"},
    }]}},
}  # fmt: skip
_HOSTILE: dict[str, tuple[str, Any, str]] = {
    "outputs": ("num_class", "1000000000", "1000000000 outputs for 1 trees"),
    "base-score": ("base_score", "3", "base_score 3 cannot be"),
    "wide-leaf": ("size_leaf_vector", "-1", "not as wide as the answers"),
    "no-parent": ("parents", [2147483647, -5, 0], "does not know its parent"),
    "set-elsewhere": ("categories_nodes", [99999], "are of other nodes"),
    "set-without-members": ("categories_sizes", [1000], "outside of what can be"),
    "set-begins-outside": ("categories_segments", [5000], "outside of what can be"),
    "category-below-zero": ("categories", [-1, 3], "outside of what can be"),
    "huge-category": ("categories", [1, 2**31 - 1], "outside of what can be"),
}


@pytest.mark.parametrize("case", _HOSTILE)
def test_what_would_crash_xgboost_is_refused_before(case: str) -> None:
    key, value, match = _HOSTILE[case]
    BoosterDocument(_LEARNER).check()
    learner = json.loads(json.dumps(_LEARNER))
    tree = learner["gradient_booster"]["model"]["trees"][0]
    holders = (learner["learner_model_param"], tree, tree["tree_param"])
    next(part for part in holders if key in part)[key] = value
    with pytest.raises(ExportError, match=match):
        BoosterDocument(learner).check()


def test_every_kind_of_file_is_a_conformance_case() -> None:
    assert {"booster-json", "booster-ubj", "estimator-json", "estimator-ubj", "pickle"} <= set(CASES.files)
