from __future__ import annotations

from pathlib import Path

import pytest
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2

from paritygate.converter.types import Dim, DType, Signature, TensorSpec
from paritygate.serving.publish.errors import ConfigInvalid, SignatureMismatch
from paritygate.serving.publish.triton_config import (
    ModelConfig,
    check_config_against_graph,
    config_from_signature,
    load_config,
    parse_config,
)

OPERATOR_CONFIG = """\
# Tuned on the night of the launch; ask Ops before you touch it.
name: "m"
backend: "onnxruntime"
max_batch_size: 8
input [ { name: "x" data_type: TYPE_FP32 dims: [ 4 ] } ]
output [ { name: "y" data_type: TYPE_FP32 dims: [ 3 ] label_filename: "labels.txt" } ]
version_policy { specific { versions: [ 1, 3 ] } }   # live
instance_group [ { count: 2 kind: KIND_CPU } ]
dynamic_batching { max_queue_delay_microseconds: 100 }
parameters { key: "intra_op_thread_count" value: { string_value: "1" } }
"""


def signature(x: tuple[Dim, ...], y: tuple[Dim, ...], dtype: DType = DType.FLOAT32) -> Signature:
    return Signature((TensorSpec("x", dtype, x),), (TensorSpec("y", DType.FLOAT32, y),))


LINEAR = signature(("batch", 4), ("batch", 3))


def config(text: str) -> ModelConfig:
    return parse_config(text, model="m")


def test_config_of_a_new_model_says_what_was_proven() -> None:
    made = config_from_signature("m", LINEAR)
    assert text_format.Parse(made.text, model_config_pb2.ModelConfig()) == made.message
    assert (made.name, made.backend, made.max_batch_size) == ("m", "onnxruntime", 0)
    assert [(t.name, t.dtype, t.dims) for t in made.inputs] == [("x", DType.FLOAT32, (-1, 4))]
    assert [(t.name, t.dtype, t.dims) for t in made.outputs] == [("y", DType.FLOAT32, (-1, 3))]
    assert made.version_policy.versions == (1,)


@pytest.mark.parametrize("dtype", list(DType), ids=lambda dtype: dtype.value)
def test_every_datatype_survives_the_round_trip(dtype: DType) -> None:
    made = config_from_signature("m", signature((2,), (2,), dtype))
    assert parse_config(made.text, model="m").inputs[0].dtype is dtype


def test_batch_dimension_leaves_the_dims() -> None:
    made = config_from_signature("m", LINEAR, max_batch_size=16)
    assert (made.max_batch_size, made.inputs[0].dims, made.outputs[0].dims) == (16, (4,), (3,))


def test_shape_without_dims_is_said_with_a_reshape() -> None:
    made = config_from_signature("m", signature((), ("batch",)), max_batch_size=0)
    assert (made.inputs[0].dims, made.inputs[0].model_dims) == ((1,), ())
    batched = config_from_signature("m", signature(("batch",), ("batch",)), max_batch_size=4)
    assert (batched.inputs[0].dims, batched.inputs[0].model_dims) == ((1,), ())
    check_config_against_graph(made, signature((), ("batch",)))
    check_config_against_graph(batched, signature(("batch",), ("batch",)))


def test_demoted_dimension_is_fixed_on_the_way_in_and_as_in_the_graph_on_the_way_out() -> None:
    made = config_from_signature("m", LINEAR.with_dims({"batch": 2}), graph=LINEAR)
    assert (made.inputs[0].dims, made.outputs[0].dims) == ((2, 4), (-1, 3))
    check_config_against_graph(made, LINEAR, proven=LINEAR.with_dims({"batch": 2}))


@pytest.mark.parametrize(
    ("shapes", "fault"),
    [
        pytest.param(((2, 4), ("batch", 3)), "'x' has the fixed size 2 at axis 0", id="fixed"),
        pytest.param((("batch", 4), ()), "'y' has no dimensions", id="rank 0"),
        pytest.param((("batch", 4), ("length", 3)), "'y' calls axis 0 'length'", id="another dimension"),
    ],
)
def test_batch_dimension_needs_one_common_first_axis(
    shapes: tuple[tuple[Dim, ...], tuple[Dim, ...]], fault: str
) -> None:
    with pytest.raises(SignatureMismatch, match=fault):
        config_from_signature("m", signature(*shapes), max_batch_size=8)


def test_batch_dimension_needs_a_variable_first_axis_in_the_graph_too() -> None:
    graph = signature(("batch", 4), (1, 3))
    with pytest.raises(SignatureMismatch, match="'y' has the fixed size 1"):
        config_from_signature("m", LINEAR, graph=graph, max_batch_size=8)


def test_fixed_size_of_zero_is_refused() -> None:
    with pytest.raises(SignatureMismatch, match="fixed size of 0"):
        config_from_signature("m", signature((0, 4), (0, 3)))


def test_new_version_list_keeps_every_other_byte() -> None:
    changed = config(OPERATOR_CONFIG).with_versions([1, 3, 4])
    assert changed.text == OPERATOR_CONFIG.replace("versions: [ 1, 3 ]", "versions: [ 1, 3, 4 ]")
    assert parse_config(changed.text, model="m").message == changed.message


def test_new_version_list_keeps_every_field_where_the_text_is_odd() -> None:
    odd = OPERATOR_CONFIG.replace(
        "{ specific { versions: [ 1, 3 ] } }", "< specific < versions: 1 versions: 3 > >"
    )
    changed = parse_config(config(odd).with_versions([1, 3, 4]).text, model="m")
    expected = config(OPERATOR_CONFIG).with_versions([1, 3, 4])
    assert changed.message == expected.message


@pytest.mark.parametrize(
    ("text", "kind", "selected"),
    [
        pytest.param("", "latest", (7,), id="default"),
        pytest.param("version_policy { latest { num_versions: 2 } }", "latest", (3, 7), id="latest"),
        pytest.param("version_policy { all { } }", "all", (1, 3, 7), id="all"),
        pytest.param(
            "version_policy { specific { versions: [ 7, 1, 9 ] } }", "specific", (1, 7), id="specific"
        ),
    ],
)
def test_policy_selects_the_live_versions(text: str, kind: str, selected: tuple[int, ...]) -> None:
    policy = config(text).version_policy
    assert (policy.kind, policy.select([7, 1, 3])) == (kind, selected)


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        pytest.param("name: ", "is not a Triton model config: line 1", id="cut short"),
        pytest.param("max_batch_sizes: 4", 'no field named "max_batch_sizes"', id="unknown field"),
        pytest.param('input [ { name: "x" data_type: TYPE_FLOAT } ]', "TYPE_FLOAT", id="unknown datatype"),
        pytest.param('name: "other"', "name is 'other', expected the folder's name 'm'", id="name"),
        pytest.param("max_batch_size: -1", "max_batch_size is -1", id="negative batch"),
        pytest.param("version_policy { specific { versions: [ -1 ] } }", "lists version -1", id="version -1"),
        pytest.param("version_policy { specific { } }", "lists no versions", id="empty list"),
        pytest.param('input [ { name: "x" dims: [ 0 ] } ]', "'x' has dim 0", id="dim 0"),
        pytest.param('input [ { name: "x" dims: [ -2 ] } ]', "'x' has dim -2", id="dim -2"),
        pytest.param('output [ { name: "y" } ]', "output 'y' has no dims", id="no dims"),
        pytest.param("input [ { dims: [ 1 ] } ]", "an input has no name", id="no name"),
        pytest.param(
            'input [ { name: "x" dims: [ 1 ] }, { name: "x" dims: [ 1 ] } ]',
            "'x' is declared twice",
            id="twice",
        ),
    ],
)
def test_config_that_triton_refuses_is_refused_in_one_line(text: str, fault: str) -> None:
    with pytest.raises(ConfigInvalid, match=fault) as caught:
        config(text)
    assert "\n" not in str(caught.value)
    assert caught.value.model == "m"


def test_config_that_is_no_text_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "config.pbtxt"
    path.write_bytes(b"name: \xff")
    with pytest.raises(ConfigInvalid, match="is not UTF-8 text"):
        load_config(path, model="m")


FITTING = """\
backend: "onnxruntime"
input [ { name: "x" data_type: TYPE_FP32 dims: [ -1, 4 ] } ]
output [ { name: "y" data_type: TYPE_FP32 dims: [ -1, 3 ] } ]
"""


@pytest.mark.parametrize(
    ("old", "new", "fault"),
    [
        pytest.param(
            'name: "x"', 'name: "z"', "input 'z' of the config is not in the model", id="unknown input"
        ),
        pytest.param(
            'name: "x"', 'name: "z"', "input 'x' of the model is not in the config", id="missing input"
        ),
        pytest.param(
            'name: "y"', 'name: "z"', "output 'z' of the config is not in the model", id="unknown output"
        ),
        pytest.param(
            "[ -1, 4 ]", "[ -1, 5 ]", r"\[-1, 5\] in the config, \[-1, 4\] in the model", id="input size"
        ),
        pytest.param("[ -1, 4 ]", "[ -1, -1 ]", r"\[-1, -1\] in the config", id="input wider than the graph"),
        pytest.param("[ -1, 4 ]", "[ 4 ]", r"\[4\] in the config", id="input rank"),
        pytest.param(
            "[ -1, 3 ]", "[ 2, 3 ]", r"\[2, 3\] in the config, \[-1, 3\]", id="output is compared exactly"
        ),
        pytest.param(
            "TYPE_FP32 dims: [ -1, 4", "TYPE_FP64 dims: [ -1, 4", "TYPE_FP64 in the config", id="dtype"
        ),
        pytest.param("data_type: TYPE_FP32 dims: [ -1, 3", "dims: [ -1, 3", "no known type", id="no dtype"),
        pytest.param(
            "backend:", "max_batch_size: 4 backend:", r"\[-1, -1, 4\] in the config", id="batch twice"
        ),
        pytest.param('"onnxruntime"', '"pytorch"', "backend is 'pytorch'", id="backend"),
    ],
)
def test_config_that_does_not_fit_the_graph_is_refused(old: str, new: str, fault: str) -> None:
    check_config_against_graph(config(FITTING), LINEAR)
    with pytest.raises(SignatureMismatch, match=fault):
        check_config_against_graph(config(FITTING.replace(old, new)), LINEAR)


def test_input_fixed_in_the_config_is_allowed_where_the_graph_varies() -> None:
    check_config_against_graph(config(FITTING.replace("[ -1, 4 ]", "[ 2, 4 ]")), LINEAR)


def test_batching_config_needs_a_variable_first_axis() -> None:
    batching = config(FITTING.replace("backend:", "max_batch_size: 4 backend:").replace("-1, ", ""))
    check_config_against_graph(batching, LINEAR)
    with pytest.raises(SignatureMismatch, match=r"'x' has dims \[-1, 4\] in the config, \[1, 4\]"):
        check_config_against_graph(batching, LINEAR.with_dims({"batch": 1}))


def test_dimension_proven_at_one_size_may_not_be_declared_variable() -> None:
    with pytest.raises(SignatureMismatch, match="axis 0 is -1 in the config, but is proven at 2 only"):
        check_config_against_graph(config(FITTING), LINEAR, proven=LINEAR.with_dims({"batch": 2}))


def test_all_faults_are_told_at_once() -> None:
    wrong = config(FITTING.replace("[ -1, 4 ]", "[ -1, 5 ]").replace("[ -1, 3 ]", "[ -1, 9 ]"))
    with pytest.raises(SignatureMismatch) as caught:
        check_config_against_graph(wrong, LINEAR)
    assert len(caught.value.faults) == 2
