"""What the manifest says of NaN, and that it is true of the runtime."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper

from paritygate.converter.graph.nan import PASS_OVER_NAN, nan_notes

_K = helper.make_tensor("k", TensorProto.INT64, [1], [1])
_POOL = {"MaxPool": {"kernel_shape": [3]}, "ReduceMax": {"keepdims": 0}, "ReduceMin": {"keepdims": 0}}


def _model(kind: str, dtype: int = TensorProto.FLOAT) -> onnx.ModelProto:
    arguments = ["x", "k"] if kind == "TopK" else ["x"]
    outputs = ["y", "i"] if kind == "TopK" else ["y"]
    attributes = {"axis": 2} if kind in ("ArgMax", "ArgMin") else _POOL.get(kind, {})
    given = TensorProto.INT64 if kind.startswith("Arg") else dtype
    graph = helper.make_graph(
        [helper.make_node(kind, arguments, outputs, **attributes)],
        "graph",
        [helper.make_tensor_value_info("x", dtype, [1, 1, 3])],
        [helper.make_tensor_value_info("y", given, None)],
        [_K] if kind == "TopK" else [],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)


@pytest.mark.parametrize("kind", PASS_OVER_NAN)
def test_the_note_tells_what_onnxruntime_does(kind: str) -> None:
    model = _model(kind)
    assert kind in nan_notes(model)[0]
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    places = [np.where(np.arange(3) == k, np.nan, [[[3.0, 2.0, 4.0]]]).astype(np.float32) for k in range(3)]
    answers = [session.run(None, {"x": x})[0].ravel()[0] for x in places]
    if kind.startswith("Arg"):
        assert answers != [0, 1, 2]  # numpy, torch, TensorFlow and JAX: the place of the NaN
    else:
        assert not np.isnan(answers).all()


@pytest.mark.parametrize("kind", ["Relu", "Sigmoid"])
def test_there_is_no_note_where_nan_is_passed_on(kind: str) -> None:
    assert nan_notes(_model(kind)) == []


def test_integers_hold_no_nan() -> None:
    assert nan_notes(_model("ReduceMax", TensorProto.INT64)) == []


def test_a_graph_that_replaces_nan_says_that_it_was_not_asked() -> None:
    assert "(IsNaN)" in nan_notes(_model("IsNaN"))[0]
