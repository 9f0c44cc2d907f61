"""The whole numbers beside a graph's comparisons, wherever they stand."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from paritygate.converter.graph.constants import deciding_constants


def test_constants_of_comparisons_are_found_and_tables_are_not() -> None:
    branch = helper.make_graph(
        [helper.make_node("Less", ["x", "inner"], ["b"])],
        "branch", [], [helper.make_tensor_value_info("b", TensorProto.BOOL, None)],
        [numpy_helper.from_array(np.array([7, 8]), "inner")],
    )  # fmt: skip
    nodes = [
        helper.make_node("Constant", [], ["late"], value=numpy_helper.from_array(np.int64(1_700_000_000))),
        helper.make_node("Greater", ["x", "late"], ["a"]),
        helper.make_node("Add", ["x", "added"], ["c"]),
        helper.make_node("Equal", ["x", "table"], ["d"]),
        helper.make_node("Mod", ["x", "float"], ["e"]),
        helper.make_node("Clip", ["x", "half", "one"], ["f"]),
        helper.make_node("If", ["a"], ["z"], then_branch=branch, else_branch=branch),
    ]
    weights = {
        "added": np.int64(5), "table": np.arange(100), "float": np.float32(60.0), "half": np.float32(0.5),
        "one": np.int64(1),
    }  # fmt: skip
    graph = helper.make_graph(
        nodes, "graph",
        [helper.make_tensor_value_info("x", TensorProto.INT64, ["n"])],
        [helper.make_tensor_value_info("z", TensorProto.BOOL, None)],
        [numpy_helper.from_array(value, name) for name, value in weights.items()],
    )  # fmt: skip
    assert deciding_constants(helper.make_model(graph)) == [1_700_000_000, 60, 7, 8]


@pytest.mark.parametrize(("size", "expected"), [("x", [60]), ("length", [60, 300_000_000])])
def test_no_constant_that_may_be_a_size_is_large(size: str, expected: list[int]) -> None:
    """An int64 Range of 3e8 steps takes 2.4 GB. How long an input is is another matter than what it holds."""
    nodes = [
        helper.make_node("Shape", ["x"], ["shape"]),
        helper.make_node("Squeeze", ["shape"], ["length"]),
        helper.make_node("Min", [size, "limit"], ["steps"]),
        helper.make_node("Equal", ["x", "minute"], ["is_minute"]),
        helper.make_node("Range", ["zero", "steps", "one"], ["y"]),
    ]
    weights = {"limit": 300_000_000, "zero": 0, "one": 1, "minute": 60}
    graph = helper.make_graph(
        nodes, "graph",
        [helper.make_tensor_value_info("x", TensorProto.INT64, [1])],
        [helper.make_tensor_value_info("y", TensorProto.INT64, ["steps"])],
        [numpy_helper.from_array(np.int64(value), name) for name, value in weights.items()],
    )  # fmt: skip
    assert sorted(deciding_constants(helper.make_model(graph))) == expected
