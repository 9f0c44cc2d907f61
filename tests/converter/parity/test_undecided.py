"""Extremes that prove nothing are not counted and said; all that they do prove still counts."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

from paritygate.converter.bundle import Bundle
from paritygate.converter.parity import attest, validate_bundle
from paritygate.converter.parity.report import Certificate
from paritygate.converter.runtime.onnxruntime import open_session
from paritygate.converter.types import Array, DType, Feeds, Signature, TensorSpec
from support.sealed import model_of, seal

SCORES = Signature(
    (TensorSpec("x", DType.FLOAT32, ("batch", 6)),),
    (TensorSpec("best", DType.FLOAT32, ("batch", 2)), TensorSpec("place", DType.INT64, ("batch", 2))),
)
VECTOR = Signature(
    (TensorSpec("x", DType.FLOAT32, ("batch", 64)),), (TensorSpec("y", DType.FLOAT32, ("batch", 64)),)
)

FLOOR = np.array([-0.4], np.float32)
"""Two numbers of each row of the base case are above it, and not of each row of all cases."""


def best_two(feeds: Feeds, *, off: int = 0) -> dict[str, Array]:
    """The two largest of each row; of equal ones the last comes first, which the graph does the other way."""
    order = 5 - np.argsort(-feeds["x"][:, ::-1], axis=1, kind="stable")[:, :2]
    best = np.take_along_axis(feeds["x"], order, axis=1)
    return {"best": best, "place": order.astype(np.int64) + off}


def with_top_two() -> onnx.ModelProto:
    node = helper.make_node("TopK", ["x", "two"], ["best", "place"], axis=1)
    return model_of([node], SCORES, {"two": np.array([2], np.int64)})


def counted(certificate: Certificate) -> set[tuple[str, str]]:
    return {(figure.case, figure.output) for figure in certificate.figures if figure.counted}


def attested(bundle: Bundle, certificate: Certificate) -> bool:
    return attest(bundle, certificate, open_session(bundle.model_bytes())).verdict == "pass"


def test_the_order_of_equal_scores_is_free(tmp_path: Path) -> None:
    bundle = seal(tmp_path, with_top_two(), SCORES, best_two)
    certificate = validate_bundle(bundle)
    assert certificate.verdict == "pass", certificate.reason
    cases = ("extreme:zeros", "extreme:ones")
    assert not {(case, "place") for case in cases} & counted(certificate)
    assert {(case, "best") for case in cases} <= counted(certificate)
    assert sum("which of them comes first is free" in note for note in certificate.notes) == 2
    assert attested(bundle, certificate)


def test_a_place_that_is_wrong_for_other_scores_is_seen(tmp_path: Path) -> None:
    bundle = seal(tmp_path, with_top_two(), SCORES, lambda feeds: best_two(feeds, off=1))
    certificate = validate_bundle(bundle)
    assert certificate.verdict == "fail"
    assert "'place'" in certificate.reason


def best_two_above(feeds: Feeds, *, swapped: bool = False) -> dict[str, Array]:
    """As `best_two` of what is above a floor, the rest being equal; `swapped` exchanges both places."""
    best = best_two({"x": np.maximum(feeds["x"], FLOOR)})
    return best | {"place": best["place"][:, ::-1]} if swapped else best


def with_top_two_above(*, cast: bool) -> onnx.ModelProto:
    nodes = [
        helper.make_node("Max", ["x", "floor"], ["above"]),
        helper.make_node("TopK", ["above", "two"], ["best", "found" if cast else "place"], axis=-1),
    ]
    nodes += [helper.make_node("Cast", ["found"], ["place"], to=7)] if cast else []
    return model_of(nodes, SCORES, {"two": np.array([2], np.int64), "floor": FLOOR})


@pytest.mark.parametrize("cast", [False, True])
def test_equal_scores_of_ordinary_cases_have_no_order_either(tmp_path: Path, cast: bool) -> None:
    bundle = seal(tmp_path, with_top_two_above(cast=cast), SCORES, best_two_above)
    certificate = validate_bundle(bundle)
    assert certificate.verdict == "pass", certificate.reason
    free = {figure.case for figure in certificate.figures if figure.output == "place" and not figure.counted}
    assert "sweep:batch=17" in free
    assert ("base", "place") in counted(certificate)
    assert {("sweep:batch=17", "best"), ("base", "best")} <= counted(certificate)
    assert attested(bundle, certificate)


def test_an_order_that_the_scores_do_not_bear_out_is_seen(tmp_path: Path) -> None:
    graph = with_top_two_above(cast=False)
    bundle = seal(tmp_path, graph, SCORES, lambda feeds: best_two_above(feeds, swapped=True))
    certificate = validate_bundle(bundle)
    assert certificate.verdict == "fail"
    assert ("sweep:batch=17", "place") in counted(certificate)


def test_an_output_without_an_ordinary_case_that_counts_is_refused(tmp_path: Path) -> None:
    """All scores are equal in each case: any places would do, and nothing proves those of the graph."""
    nodes = [
        helper.make_node("Mul", ["x", "nothing"], ["same"]),
        helper.make_node("TopK", ["same", "two"], ["best", "place"], axis=1),
    ]
    graph = model_of(nodes, SCORES, {"two": np.array([2], np.int64), "nothing": np.zeros(1, np.float32)})
    bundle = seal(tmp_path, graph, SCORES, lambda feeds: best_two({"x": feeds["x"] * np.float32(0)}))
    assert validate_bundle(bundle).verdict == "fail"


def normalised(x: Array) -> Array:
    """(x - mean) / sqrt(variance + 1e-12), the mean added up one by one in float32."""
    mean = np.add.accumulate(x, axis=1)[:, -1:] / np.float32(64)
    centred = x - mean
    variance = np.mean(centred * centred, axis=1, keepdims=True)
    return np.asarray(centred / np.sqrt(variance + np.float32(1e-12)), np.float32)


def with_normalised(bias: Array) -> onnx.ModelProto:
    nodes = [
        helper.make_node("Mul", ["x", "factor"], ["scaled"]),
        helper.make_node("Add", ["scaled", "bias"], ["raised"]),
        helper.make_node("ReduceMean", ["raised", "axis"], ["mean"]),
        helper.make_node("Sub", ["raised", "mean"], ["centred"]),
        helper.make_node("Mul", ["centred", "centred"], ["square"]),
        helper.make_node("ReduceMean", ["square", "axis"], ["variance"]),
        helper.make_node("Add", ["variance", "epsilon"], ["more"]),
        helper.make_node("Sqrt", ["more"], ["deviation"]),
        helper.make_node("Div", ["centred", "deviation"], ["y"]),
    ]
    return model_of(
        nodes,
        VECTOR,
        {
            "factor": np.ones(64, np.float32),
            "bias": bias,
            "axis": np.array([1], np.int64),
            "epsilon": np.array([1e-12], np.float32),
        },
    )


def test_a_normalisation_of_what_rounding_left_is_not_counted(tmp_path: Path) -> None:
    bias = np.full(64, 0.1, np.float32)

    def source(feeds: Feeds) -> dict[str, Array]:
        return {"y": normalised(feeds["x"] + bias)}

    bundle = seal(tmp_path, with_normalised(bias), VECTOR, source)
    certificate = validate_bundle(bundle)
    assert certificate.verdict == "pass", certificate.reason
    assert ("extreme:zeros", "y") not in counted(certificate)
    assert ("base", "y") in counted(certificate)
    assert any("rounding alone moves the answer" in note for note in certificate.notes)
    assert attested(bundle, certificate)


@pytest.mark.parametrize("comparison", ["Greater", "GreaterOrEqual"])
def test_a_threshold_at_the_repeated_value_still_counts(tmp_path: Path, comparison: str) -> None:
    """It is decided: only rounding and order are anyone's choice."""
    nodes = [
        helper.make_node(comparison, ["x", "zero"], ["above"]),
        helper.make_node("Where", ["above", "one", "w"], ["y"]),
    ]
    weights = {
        "zero": np.zeros(1, np.float32), "one": np.ones(1, np.float32), "w": np.full(64, -1.0, np.float32),
    }  # fmt: skip

    def source(feeds: Feeds) -> dict[str, Array]:
        return {"y": np.where(feeds["x"] > 0, 1, -1).astype(np.float32)}

    certificate = validate_bundle(seal(tmp_path, model_of(nodes, VECTOR, weights), VECTOR, source))
    assert certificate.verdict == ("pass" if comparison == "Greater" else "fail"), certificate.reason
