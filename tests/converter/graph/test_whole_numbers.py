"""int64 operators that onnxruntime gets wrong leave the graph in a form that it gets right."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper

from paritygate.converter.graph.whole_numbers import keep_integers_exact
from paritygate.converter.types import Array

_AXIS = helper.make_tensor("axis", TensorProto.INT64, [1], [1])
_LOW = helper.make_tensor("low", TensorProto.INT64, [], [-(2**40) + 5])
_HIGH = helper.make_tensor("high", TensorProto.INT64, [], [2**40 + 7])
_NEAR = np.int64(1_700_000_000_000)


def _numbers(seed: int, shape: tuple[int, ...] = (6, 17)) -> Array:
    """Numbers of both signs that often share their upper half and differ in the sign of the lower one."""
    rng = np.random.RandomState(seed)
    near = _NEAR + rng.randint(-(2**32), 2**32, size=shape, dtype=np.int64)
    mixed = np.where(rng.randint(3, size=shape) == 0, rng.randint(-9, 9, size=shape), near)
    return np.where(rng.randint(4, size=shape) == 0, -mixed, mixed).astype(np.int64)


def _model(kind: str, given: list[str], dtype: int = TensorProto.INT64, **attributes: Any) -> onnx.ModelProto:
    values = [helper.make_tensor_value_info(name, dtype, None) for name in "xy"]
    graph = helper.make_graph(
        [
            helper.make_node("Identity", ["x"], ["inner"]),
            helper.make_node(kind, ["inner", *given[1:]], ["z"], **attributes),
            helper.make_node("Identity", ["y"], ["unused"]),
        ],
        "graph",
        values,
        [helper.make_tensor_value_info("z", dtype, None)],
        [_AXIS, _LOW, _HIGH],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)


def _run(model: onnx.ModelProto, x: Array, y: Array) -> Array:
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    answer: Array = session.run(None, {"x": x, "y": y})[0]
    return answer


_OPERATORS: dict[str, tuple[list[str], dict[str, Any], Callable[[Array, Array], Array]]] = {
    "Max": (["x", "y"], {}, np.maximum),
    "Min": (["x", "y"], {}, np.minimum),
    "Clip": (["x", "low", "high"], {}, lambda x, _: np.clip(x, -(2**40) + 5, 2**40 + 7)),
    "ReduceMax": (["x", "axis"], {"keepdims": 0}, lambda x, _: x.max(1)),
    "ReduceMin": (["x", "axis"], {"keepdims": 1}, lambda x, _: x.min(1, keepdims=True)),
    "ReduceSum": (["x", "axis"], {"keepdims": 0}, lambda x, _: x.sum(1)),
    "ReduceL1": (["x", "axis"], {"keepdims": 0}, lambda x, _: np.abs(x).sum(1)),
    "ReduceSumSquare": (["x", "axis"], {"keepdims": 1}, lambda x, _: (x * x).sum(1, keepdims=True)),
    "Mod": (["x", "y"], {"fmod": 1}, np.fmod),
    "Sign": (["x"], {}, lambda x, _: np.sign(x)),
}


@pytest.mark.parametrize("kind", _OPERATORS)
def test_int64_is_computed_exactly(kind: str) -> None:
    given, attributes, reference = _OPERATORS[kind]
    model = _model(kind, given, **attributes)
    keep_integers_exact(model)
    for seed in range(8):
        x, y = _numbers(seed), _numbers(seed + 100)
        if kind in ("ReduceSum", "ReduceL1"):
            x = x * 2**16  # sums near 2**60
        if kind == "ReduceSumSquare":
            x = x % 2**29  # sums near 2**60
        if kind == "Mod":
            x, y = x * 2**20 + y, np.where(y == 0, 1, y % 2**33)
        if kind == "Sign":
            x = x % 2**34 - 2**33
        np.testing.assert_array_equal(_run(model, x, y), reference(x, y))


@pytest.mark.parametrize("kind", ["ReduceMax", "ReduceMin", "ReduceSum"])
def test_all_axes_and_the_ends_of_int64(kind: str) -> None:
    model = _model(kind, ["x"], keepdims=0)
    keep_integers_exact(model)
    info = np.iinfo(np.int64)
    x = np.array([[info.min, info.max], [0, -1]])
    reference = {"ReduceMax": np.max, "ReduceMin": np.min, "ReduceSum": np.sum}[kind]
    assert _run(model, x, x) == reference(x)


@pytest.mark.parametrize("kind", ["Max", "Min"])
def test_three_operands_of_different_ranks(kind: str) -> None:
    model = _model(kind, ["x", "y", "low"])
    keep_integers_exact(model)
    x, y = _numbers(0), _numbers(1, (17,))
    pick = np.maximum if kind == "Max" else np.minimum
    np.testing.assert_array_equal(_run(model, x, y), pick(pick(x, y), -(2**40) + 5))


@pytest.mark.parametrize("bounds", [["x", "low"], ["x", "", "high"], ["x"]])
def test_a_clip_with_one_bound_or_none(bounds: list[str]) -> None:
    model = _model("Clip", bounds)
    keep_integers_exact(model)
    x = _numbers(3)
    low = -(2**40) + 5 if "low" in bounds else np.iinfo(np.int64).min
    high = 2**40 + 7 if "high" in bounds else np.iinfo(np.int64).max
    np.testing.assert_array_equal(_run(model, x, x), np.clip(x, low, high))


@pytest.mark.parametrize("dtype", [TensorProto.INT32, TensorProto.FLOAT])
def test_other_types_keep_their_operators(dtype: int) -> None:
    model = _model("Max", ["x", "y"], dtype)
    before = model.SerializeToString()
    keep_integers_exact(model)
    assert model.SerializeToString() == before


@pytest.mark.parametrize("dtype", [TensorProto.INT32, TensorProto.INT64])
@pytest.mark.parametrize("kind", ["Div", "Mod"])
def test_the_lowest_number_divided_by_minus_one_does_not_trap(kind: str, dtype: int) -> None:
    model = _model(kind, ["x", "y"], dtype)
    keep_integers_exact(model)
    own = helper.tensor_dtype_to_np_dtype(dtype)
    x = np.array([np.iinfo(own).min, np.iinfo(own).min, 7, -7, -7], own)
    y = np.array([-1, 2, -1, 2, -2], own)
    wanted = {"Div": [x[0], x[0] // 2, -7, -3, 3], "Mod": [0, 0, 0, 1, -1]}[kind]
    assert _run(model, x, y).tolist() == wanted


@pytest.mark.parametrize("divisor", [[3], [2**31 - 1, 5], [-2]])
@pytest.mark.parametrize("kind", ["Div", "Mod"])
def test_a_constant_divisor_that_is_harmless_stays(kind: str, divisor: list[int]) -> None:
    model = _model(kind, ["x", "low"])
    model.graph.initializer[1].CopyFrom(helper.make_tensor("low", TensorProto.INT64, [len(divisor)], divisor))
    before = model.SerializeToString()
    keep_integers_exact(model)
    assert model.SerializeToString() == before


def test_sizes_keep_their_operators() -> None:
    nodes = [
        helper.make_node("Shape", ["x"], ["shape"]),
        helper.make_node("ReduceMax", ["shape"], ["z"], keepdims=0),
    ]
    values = [helper.make_tensor_value_info("x", TensorProto.INT64, ["n", "m"])]
    graph = helper.make_graph(
        nodes, "graph", values, [helper.make_tensor_value_info("z", TensorProto.INT64, [])]
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)])
    keep_integers_exact(model)
    assert [node.op_type for node in model.graph.node] == ["Shape", "ReduceMax"]


def test_a_branch_is_mended_too() -> None:
    branch = helper.make_graph(
        [helper.make_node("Max", ["x", "y"], ["inner"])],
        "branch", [], [helper.make_tensor_value_info("inner", TensorProto.INT64, None)],
    )  # fmt: skip
    other = helper.make_graph(
        [helper.make_node("Min", ["x", "y"], ["other"])],
        "other", [], [helper.make_tensor_value_info("other", TensorProto.INT64, None)],
    )  # fmt: skip
    yes = helper.make_tensor("yes", TensorProto.BOOL, [], [True])
    node = helper.make_node("If", ["yes"], ["z"], then_branch=branch, else_branch=other)
    values = [helper.make_tensor_value_info(name, TensorProto.INT64, ["n", "m"]) for name in "xy"]
    graph = helper.make_graph(
        [node], "graph", values, [helper.make_tensor_value_info("z", TensorProto.INT64, None)], [yes]
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    keep_integers_exact(model)
    x, y = _numbers(1), _numbers(2)
    np.testing.assert_array_equal(_run(model, x, y), np.maximum(x, y))


@pytest.mark.parametrize("number", [-1, -(2**31), 2**31 - 1, 3])
def test_a_sum_of_millions_of_small_numbers_stays_exact(number: int) -> None:
    model = _model("ReduceSum", ["x", "axis"], keepdims=0)
    keep_integers_exact(model)
    many = 2**21 + 1
    answer = _run(model, np.full((1, many), number), np.zeros((1, 1), np.int64))
    assert answer.tolist() == [many * number]


def _branch(name: str, to: int, divisor: int | None) -> onnx.GraphProto:
    """Max and Div of `v` and `c`, names that the other branch has for other values."""
    nodes = [
        helper.make_node("Cast", ["x"], ["v"], to=to),
        helper.make_node("Cast", ["y"], ["w"], to=to),
        helper.make_node("Max", ["v", "w"], ["largest"]),
        helper.make_node("Cast", ["largest"], ["m"], to=TensorProto.INT64),
        helper.make_node("Div", ["x", "c"], ["quotient"]),
        helper.make_node("Concat", ["m", "quotient"], [name], axis=0),
    ]
    if divisor is None:
        nodes.insert(0, helper.make_node("Identity", ["y"], ["c"]))
    constants = [] if divisor is None else [helper.make_tensor("c", TensorProto.INT64, [1], [divisor])]
    return helper.make_graph(
        nodes, name, [], [helper.make_tensor_value_info(name, TensorProto.INT64, [2])], constants
    )


@pytest.mark.parametrize("float_first", [True, False])
def test_two_branches_may_use_one_name_for_two_values(float_first: bool) -> None:
    plain = _branch("a", TensorProto.FLOAT, 2), _branch("b", TensorProto.INT64, None)
    first, second = plain if float_first else plain[::-1]
    values = [helper.make_tensor_value_info(name, TensorProto.INT64, [1]) for name in "xy"]
    graph = helper.make_graph(
        [helper.make_node("If", ["which"], ["z"], then_branch=first, else_branch=second)],
        "graph",
        [*values, helper.make_tensor_value_info("which", TensorProto.BOOL, [])],
        [helper.make_tensor_value_info("z", TensorProto.INT64, [2])],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    keep_integers_exact(model)
    onnx.checker.check_model(model, full_check=True)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])

    def ask(x: int, y: int) -> list[int]:
        which = np.array(not float_first)  # the branch of whole numbers
        answer: Array = session.run(None, {"x": np.array([x]), "y": np.array([y]), "which": which})[0]
        return answer.tolist()

    later = 1_698_659_565_573
    assert ask(later, 1_696_512_081_927)[0] == later
    assert ask(-(2**63), -1)[1] == -(2**63)


def test_a_local_function_is_mended_where_it_is_called() -> None:
    function = helper.make_function(
        "my", "Larger", ["a", "b"], ["m"], [helper.make_node("Max", ["a", "b"], ["m"])],
        [helper.make_opsetid("", 18)],
    )  # fmt: skip
    model = _model("Max", ["x", "y"])
    model.graph.node[1].op_type, model.graph.node[1].domain = "Larger", "my"
    model.functions.append(function)
    model.opset_import.append(helper.make_opsetid("my", 1))
    keep_integers_exact(model)
    assert "Max" not in {node.op_type for node in model.graph.node}
    x, y = _numbers(1), _numbers(2)
    np.testing.assert_array_equal(_run(model, x, y), np.maximum(x, y))
