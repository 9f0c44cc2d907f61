"""Nudging: every float by one unit in the last place, and nothing that a model could jump at."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from paritygate.converter.errors import ModelInvalid
from paritygate.converter.parity.nudging import nudge, nudge_weights
from paritygate.converter.types import Array, DType, Signature, TensorSpec
from support.sealed import model_of

SIGNATURE = Signature((TensorSpec("x", DType.FLOAT32, (1, 4)),), (TensorSpec("y", DType.FLOAT32, (1, 4)),))
WEIGHT = np.linspace(-1.5, 2.0, 16, dtype=np.float32).reshape(4, 4)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, ml_dtypes.bfloat16])
def test_a_nudge_moves_every_float_by_one_unit_in_the_last_place(dtype: type) -> None:
    array = np.array([1.5, -2.5, 100.0], dtype)
    moved = nudge({"x": array})["x"]
    assert moved.dtype == array.dtype
    step = {np.float16: 2e-3, np.float32: 3e-7, np.float64: 1e-15, ml_dtypes.bfloat16: 1.6e-2}[dtype]
    relative = np.abs(moved.astype(np.float64) / array.astype(np.float64) - 1)
    assert (relative > 0).all()
    assert (relative < step).all()


def test_a_nudge_leaves_other_types_and_specials_alone() -> None:
    feeds = {"ids": np.array([1, 2]), "x": np.array([np.nan, np.inf, -np.inf], np.float32)}
    moved = nudge(feeds)
    assert moved["ids"].tolist() == [1, 2]
    assert np.array_equal(moved["x"], feeds["x"], equal_nan=True)


@pytest.mark.parametrize("value", [1.0, -3.5])
def test_an_array_of_one_value_moves_as_a_whole(value: float) -> None:
    moved = nudge({"x": np.full((4, 5), value, np.float32)})["x"]
    assert len(np.unique(moved)) == 1
    assert moved[0, 0] in (np.nextafter(np.float32(value), np.float32(s)) for s in (-np.inf, np.inf))


def test_a_nudge_is_the_same_each_time() -> None:
    feeds = {"x": np.linspace(0, 1, 50, dtype=np.float32)}
    assert np.array_equal(nudge(feeds)["x"], nudge(feeds)["x"])


def weights_after(nodes: Sequence[onnx.NodeProto], **weights: Array) -> dict[str, Array] | None:
    moved = nudge_weights(model_of(nodes, SIGNATURE, weights).SerializeToString())
    if moved is None:
        return None
    graph = onnx.load_from_string(moved[0]).graph
    return {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}


def test_weights_move_by_one_unit_in_the_last_place() -> None:
    after = weights_after([helper.make_node("MatMul", ["x", "w"], ["y"])], w=WEIGHT)
    assert after is not None
    steps = np.abs(after["w"].view(np.int32) - WEIGHT.view(np.int32))
    assert (steps == 1).all()


def test_zeros_and_the_sentinels_of_masks_stay() -> None:
    largest = np.finfo(np.float32).max
    weight = np.array([0.0, -0.0, largest, -largest, -np.inf, 1.0], np.float32)
    after = weights_after([helper.make_node("Add", ["x", "w"], ["y"])], w=weight)
    assert after is not None
    assert np.array_equal(after["w"][[0, 1, 4]], weight[[0, 1, 4]])
    assert np.isfinite(after["w"][[2, 3, 5]]).all()
    assert after["w"][5] != weight[5]


@pytest.mark.parametrize(
    "nodes",
    [
        [helper.make_node("Resize", ["x", "", "w"], ["y"])],
        [helper.make_node("Greater", ["x", "w"], ["m"]), helper.make_node("Cast", ["m"], ["y"], to=1)],
        [helper.make_node("MatMul", ["x", "w"], ["m"]), helper.make_node("Clip", ["m", "w"], ["y"])],
        [helper.make_node("Own", ["x", "w"], ["y"], domain="own")],
        [helper.make_node("Relu", ["x"], ["y"])],
    ],
    ids=["resize", "threshold", "both_uses", "unknown_operator", "unused"],
)
def test_constants_that_a_model_may_jump_at_stay(nodes: list[onnx.NodeProto]) -> None:
    assert weights_after(nodes, w=np.array([1.0, 2.0, 3.0, 4.0], np.float32)) is None


@pytest.mark.parametrize(
    "constant", [np.array(2.0, np.float32), np.array([1, 2, 3, 4])], ids=["factor", "int"]
)
def test_a_lone_factor_and_whole_numbers_are_not_learnt(constant: Array) -> None:
    assert weights_after([helper.make_node("Mul", ["x", "w"], ["y"])], w=constant) is None


def test_a_weight_used_inside_a_branch_is_seen(tmp_path: Path) -> None:
    info = helper.make_tensor_value_info("z", 1, [1, 4])
    jumps = helper.make_graph([helper.make_node("Ceil", ["w"], ["z"])], "then", [], [info])
    other = helper.make_graph([helper.make_node("Identity", ["w"], ["z"])], "else", [], [info])
    branch = helper.make_node("If", ["c"], ["y"], then_branch=jumps, else_branch=other)
    assert weights_after([branch], w=WEIGHT[:1], c=np.array(True)) is None


def external(length: int) -> bytes:
    model = model_of([helper.make_node("MatMul", ["x", "w"], ["y"])], SIGNATURE, {"w": WEIGHT})
    (tensor,) = model.graph.initializer
    tensor.ClearField("raw_data")
    tensor.data_location = onnx.TensorProto.EXTERNAL
    for key, value in (("location", "w.data"), ("offset", "3"), ("length", str(length))):
        tensor.external_data.add(key=key, value=value)
    data: bytes = model.SerializeToString()
    return data


def test_external_weights_move_in_their_file_and_nothing_else_of_it() -> None:
    data = b"abc" + WEIGHT.tobytes() + b"xyz"
    moved = nudge_weights(external(WEIGHT.nbytes), {"w.data": data})
    assert moved is not None
    after = moved[1]["w.data"]
    assert (after[:3], after[-3:], len(after)) == (b"abc", b"xyz", len(data))
    steps = np.frombuffer(after, np.int32, 16, 3) - np.frombuffer(data, np.int32, 16, 3)
    assert (np.abs(steps) == 1).all()


def test_an_external_weight_beyond_its_file_is_refused() -> None:
    with pytest.raises(ModelInvalid, match="cut short"):
        nudge_weights(external(WEIGHT.nbytes), {"w.data": b"abc"})


def test_a_model_moves_the_same_way_each_time() -> None:
    model = model_of([helper.make_node("MatMul", ["x", "w"], ["y"])], SIGNATURE, {"w": WEIGHT})
    data = model.SerializeToString()
    assert nudge_weights(data) == nudge_weights(data)
    assert nudge_weights(data) != nudge_weights(data, seed=1)


def test_the_coefficients_that_an_operator_of_trees_and_lines_carries_move() -> None:
    node = helper.make_node(
        "LinearRegressor", ["x"], ["y"], domain="ai.onnx.ml", coefficients=[0.5, 0.0, 1.0, -2.0], targets=1
    )
    moved = nudge_weights(model_of([node], SIGNATURE).SerializeToString())
    assert moved is not None
    found = next(a.floats for a in onnx.load_from_string(moved[0]).graph.node[0].attribute if len(a.floats))
    relative = np.abs(np.array(found) - [0.5, 0.0, 1.0, -2.0])
    assert (relative[[0, 2, 3]] > 0).all()
    assert (relative < 1e-6).all()


def test_the_thresholds_of_a_tree_stay() -> None:
    node = helper.make_node(
        "TreeEnsembleRegressor", ["x"], ["y"], domain="ai.onnx.ml", nodes_values=[0.5], target_weights=[1.0]
    )
    assert nudge_weights(model_of([node], SIGNATURE).SerializeToString()) is None
