"""Reading graphs: signatures, names of external data, and files that are no model."""

from __future__ import annotations

import onnx
import pytest
from onnx import TensorProto, helper

from paritygate.converter.errors import ModelInvalid
from paritygate.converter.graph.inspect import (
    external_locations,
    graph_signature,
    is_contained,
    opsets,
    parse_model,
    tensors,
)
from paritygate.converter.types import DType
from support.sealed import Classifier


def value(name: str, kind: int = TensorProto.FLOAT, shape: object = ("n", 2)) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, shape)


def model(
    inputs: list[onnx.ValueInfoProto], outputs: list[onnx.ValueInfoProto], **graph: object
) -> onnx.ModelProto:
    nodes = [helper.make_node("Identity", [inputs[0].name if inputs else "w"], [outputs[0].name])]
    proto = helper.make_graph(nodes, "g", inputs, outputs, **graph)
    opset_imports = [helper.make_opsetid("", 18), helper.make_opsetid("ai.onnx.ml", 3)]
    return helper.make_model(proto, opset_imports=opset_imports)


def test_the_signature_is_that_of_the_graph() -> None:
    assert graph_signature(Classifier().model()) == Classifier.signature


def test_opsets_are_told_by_domain() -> None:
    assert opsets(model([value("x")], [value("y")])) == {"ai.onnx": 18, "ai.onnx.ml": 3}


def test_a_dim_without_a_name_is_named_after_its_place() -> None:
    found = graph_signature(model([value("x", shape=(None, 2))], [value("y", shape=(None, None))]))
    assert found.inputs[0].shape == ("x_dim_0", 2)
    assert found.outputs[0].shape == ("y_dim_0", "y_dim_1")


def test_weights_that_old_files_list_as_inputs_are_no_inputs() -> None:
    weight = helper.make_tensor("w", TensorProto.FLOAT, [1], [1.0])
    found = graph_signature(model([value("x"), value("w", shape=(1,))], [value("y")], initializer=[weight]))
    assert [spec.name for spec in found.inputs] == ["x"]


def test_an_output_that_is_a_sequence_is_refused_with_what_to_do() -> None:
    sequence = helper.make_tensor_sequence_value_info("y", TensorProto.FLOAT, None)
    with pytest.raises(ModelInvalid, match=r"'y' is of kind sequence; .* zipmap=False"):
        graph_signature(model([value("x")], [sequence]))


def test_an_output_without_a_rank_is_refused() -> None:
    with pytest.raises(ModelInvalid, match="'y' has no shape"):
        graph_signature(model([value("x")], [value("y", shape=None)]))


def test_an_element_type_that_no_client_can_send_is_refused() -> None:
    with pytest.raises(ModelInvalid, match="'x': ONNX element type 14"):
        graph_signature(model([value("x", TensorProto.COMPLEX64)], [value("y")]))


def refusal(data: bytes) -> str | None:
    try:
        parse_model(data)
    except ModelInvalid as error:
        return str(error)
    return None


def test_nearly_every_prefix_of_a_model_is_refused_in_one_line() -> None:
    """A cut between two fields is seen only if a needed one is lost; parity loads the model anyway."""
    data = Classifier().model().SerializeToString()
    refusals = [refusal(data[:size]) for size in range(len(data))]
    assert sum(text is None for text in refusals) <= 8
    assert not any("\n" in text for text in refusals if text)


@pytest.mark.parametrize("data", [b"", b"not a model", b"\x00" * 100, b"PK\x03\x04zip"])
def test_what_is_no_model_is_told(data: bytes) -> None:
    with pytest.raises(ModelInvalid, match="Export it again"):
        parse_model(data)


def external(location: str) -> onnx.TensorProto:
    tensor = onnx.TensorProto(name="w", data_type=1, dims=[1], data_location=TensorProto.EXTERNAL)
    tensor.external_data.add(key="location", value=location)
    return tensor


def test_tensors_are_found_in_subgraphs_attributes_and_functions() -> None:
    names = iter("abcdef")

    def named() -> onnx.TensorProto:
        return external(f"{next(names)}.bin")

    branch = helper.make_graph(
        [helper.make_node("Constant", [], ["c"], value=named())], "b", [], [value("c")]
    )
    branch.initializer.append(named())
    node = helper.make_node("If", ["x"], ["y"], then_branch=branch, else_branch=branch)
    graph = helper.make_graph([node], "g", [value("x")], [value("y")], initializer=[named()])
    inner = helper.make_node("Constant", [], ["d"], value=named())
    function = helper.make_function("own", "F", [], ["d"], [inner], [helper.make_opsetid("", 18)])
    proto = helper.make_model(graph, functions=[function])
    assert external_locations(proto) == {"a.bin", "b.bin", "c.bin", "d.bin"}
    assert len(list(tensors(proto))) == 6


@pytest.mark.parametrize("location", ["", "..", "../w", "/w", "a/../w", "./w", "a//b", "a\\b", "a\0b", "."])
def test_a_location_that_leaves_the_directory_is_refused(location: str) -> None:
    assert not is_contained(location)
    with pytest.raises(ModelInvalid, match="is not a file name inside the model's directory"):
        external_locations(model([value("x")], [value("y")], initializer=[external(location)]))


@pytest.mark.parametrize("location", ["w", "model.onnx.data", "a/b", "..data", "ü"])
def test_plain_names_are_taken(location: str) -> None:
    assert is_contained(location)


def test_the_signature_knows_every_dtype() -> None:
    for dtype in DType:
        found = graph_signature(model([value("x", dtype.onnx)], [value("y", dtype.onnx)]))
        assert found.inputs[0].dtype is dtype
