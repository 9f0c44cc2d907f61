"""Where the largest of int64 numbers stands: asked of them, and not of what int32 makes of them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper

from paritygate.converter.bundle import read_bundle
from paritygate.converter.exporters._paddle.whole import without_own_casts
from paritygate.converter.parity.validate import validate_bundle
from paritygate.converter.runtime.onnxruntime import open_session
from support.environments import real_environment, run_in

_MOMENT = 1_700_000_000_000

_SCRIPT = """
import sys
from pathlib import Path

import numpy as np
import paddle

from paritygate.converter.exporters import export_model


class Latest(paddle.nn.Layer):
    def forward(self, x):
        return x.argmax(1), x.argmin(1), x.cast("int32").argmax(1)


moment = 1_700_000_000_000
example = np.array([[moment, moment + 1000, moment - 5000], [moment + 7, moment, moment - 1]])
export_model(Latest(), Path(sys.argv[1]), name="net", inputs={"x": example})
"""


@pytest.mark.parametrize(
    ("name", "type_from", "type_to", "kept"),
    [
        ("auto.cast.0", TensorProto.INT64, TensorProto.INT32, False),
        ("p2o.pd_op.cast.0.0", TensorProto.INT64, TensorProto.INT32, True),
        ("auto.cast.0", TensorProto.FLOAT, TensorProto.INT32, True),
    ],
)
def test_only_casts_of_the_converters_own_are_passed_by(
    name: str, type_from: int, type_to: int, kept: bool
) -> None:
    graph = helper.make_graph(
        [
            helper.make_node("Cast", ["x"], [name], to=type_to),
            helper.make_node("ArgMax", [name], ["z"], axis=1),
            helper.make_node("Neg", [name], ["w"]),
        ],
        "graph",
        [helper.make_tensor_value_info("x", type_from, ["n", 3])],
        [helper.make_tensor_value_info("z", TensorProto.INT64, None)],
    )
    without_own_casts(graph)
    assert graph.node[1].input[0] == (name if kept else "x")
    assert graph.node[2].input[0] == name


@pytest.mark.real
def test_the_latest_of_timestamps_far_apart_is_found(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(_SCRIPT)
    run_in(real_environment("paddle"), tmp_path / "script.py", tmp_path / "bundle", folder=tmp_path)
    bundle = read_bundle(tmp_path / "bundle")
    assert validate_bundle(bundle).verdict == "pass"
    x = np.array([[_MOMENT, _MOMENT + 3 * 10**9, _MOMENT + 1], [5, _MOMENT, 7]])
    with np.errstate(over="ignore"):
        narrow = x.astype(np.int32)
    answers = list(open_session(bundle.model_bytes()).run({"x": x}).values())
    for answer, wanted in zip(answers, (x.argmax(1), x.argmin(1), narrow.argmax(1)), strict=True):
        np.testing.assert_array_equal(answer, wanted)
    assert isinstance(bundle.signature.inputs[0].shape[0], str)
