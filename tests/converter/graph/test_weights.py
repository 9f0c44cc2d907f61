"""Structure and weights apart: the parts put together are the very bytes of the whole."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from google.protobuf.message import DecodeError
from onnx import TensorProto, helper, numpy_helper

from paritygate.converter.errors import ModelInvalid
from paritygate.converter.graph import weights
from paritygate.converter.graph.inspect import is_external, tensors
from paritygate.converter.graph.weights import (
    LARGE_BYTES,
    attach_weights,
    detach_weights,
    inline_file,
    read_apart,
    save_apart,
    write_whole,
)
from paritygate.converter.graph.wire import Field, fields

_LARGE = np.arange(LARGE_BYTES, dtype=np.float32)
_SMALL = np.arange(4, dtype=np.int64)


def _model(*tensors: TensorProto) -> onnx.ModelProto:
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 4096])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 4096])
    inner = helper.make_tensor_value_info("z", TensorProto.FLOAT, [4096])
    branch = helper.make_graph([], "branch", [], [inner], [numpy_helper.from_array(_LARGE, "z")])
    nodes = [
        helper.make_node("Constant", [], ["yes"], value=numpy_helper.from_array(np.array(True))),
        helper.make_node("If", ["yes"], ["b"], then_branch=branch, else_branch=branch),
        helper.make_node("Constant", [], ["c"], value=numpy_helper.from_array(_LARGE, "constant")),
        helper.make_node("Add", ["b", "c"], ["s"]),
        helper.make_node("Add", ["x", "s"], ["y"]),
    ]
    graph = helper.make_graph(nodes, "net", [x], [y], list(tensors), doc_string="d")
    graph.metadata_props.add(key="k", value="v")
    model = helper.make_model(graph, producer_name="p", opset_imports=[helper.make_opsetid("", 18)])
    model.metadata_props.add(key="k", value="v")
    return model


def _weights() -> list[TensorProto]:
    documented = numpy_helper.from_array(_LARGE.astype(np.float64), "documented")
    documented.doc_string = "after the data"
    documented.metadata_props.add(key="k", value="v")
    return [
        numpy_helper.from_array(_LARGE, "first"),
        numpy_helper.from_array(_SMALL, "small"),
        documented,
        numpy_helper.from_array(_LARGE.reshape(2, -1) > 7, "bool"),
    ]


def _bytes(model: onnx.ModelProto) -> bytes:
    return bytes(model.SerializeToString(deterministic=True))


def test_detached_weights_stay_in_the_file_and_come_back_to_the_byte(tmp_path: Path) -> None:
    path, whole = tmp_path / "m.onnx", _bytes(_model(*_weights()))
    path.write_bytes(whole)
    structure = detach_weights(path)
    assert not path.exists()
    outside = {tensor.name for tensor in tensors(structure) if is_external(tensor)}
    assert outside == {"first", "documented", "constant"}  # 4,096 bools are no larger than the limit
    path.write_bytes(_bytes(structure))
    onnx.checker.check_model(str(path), full_check=True)
    assert _bytes(_without_places(onnx.load(path))) == whole
    attach_weights(path)
    assert path.read_bytes() == whole
    assert not inline_file(path).exists()


def test_lists_of_a_forest_are_not_walked_entry_by_entry(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    walked = 0

    def counted(*args: Any) -> Iterator[Field]:
        nonlocal walked
        for field in fields(*args):
            walked += 1
            yield field

    monkeypatch.setattr("paritygate.converter.graph.weights.fields", counted)
    monkeypatch.setattr("paritygate.converter.graph.wire.fields", counted)
    model = _model(*_weights())
    lists = {"floats": _LARGE.tolist(), "ints": list(range(10_000)), "strings": ["BRANCH_LEQ"] * 10_000}
    model.graph.node.append(helper.make_node("Forest", ["x"], ["f"], domain="ai.onnx.ml", **lists))
    path, whole = tmp_path / "m.onnx", _bytes(model)
    path.write_bytes(whole)
    path.write_bytes(_bytes(detach_weights(path)))
    assert 0 < walked < 300
    attach_weights(path)
    assert path.read_bytes() == whole


def test_a_tensor_is_found_beside_a_list_in_whatever_order_they_were_written(tmp_path: Path) -> None:
    """No exporter writes such an attribute; onnx's checker refuses it, which it must see as it is."""
    tensor = numpy_helper.from_array(_LARGE, "t")
    listed = onnx.AttributeProto(name="both", ints=[1, 2]).SerializeToString()
    held = onnx.AttributeProto(t=tensor).SerializeToString()
    for parts in (listed + held, held + listed):
        model = _model()
        model.graph.node[0].attribute.append(onnx.AttributeProto.FromString(parts))
        path = tmp_path / "m.onnx"
        path.write_bytes(_bytes(model))
        outside = [a.t for a in detach_weights(path).graph.node[0].attribute if is_external(a.t)]
        assert [each.name for each in outside] == ["t"]
        inline_file(path).unlink()


def _without_places(model: onnx.ModelProto) -> onnx.ModelProto:
    for tensor in tensors(model):
        tensor.ClearField("data_location")  # onnx's loader says there that the data are inside
    return model


def test_renamed_structure_is_put_together_as_protobuf_does(tmp_path: Path) -> None:
    path, model = tmp_path / "m.onnx", _model(*_weights())
    path.write_bytes(_bytes(model))
    structure = read_apart(path, path.name)
    for each in (model, structure):
        each.graph.initializer[0].name = "a name that is longer than the one before"
        each.graph.name = ""
        each.graph.node[-1].input[1] = "first"
        del each.metadata_props[:]
    sink = io.BytesIO()
    write_whole(structure, path, sink)
    assert sink.getvalue() == _bytes(model)


@pytest.mark.parametrize(
    "change",
    [
        lambda t: t.dims.append(2),
        lambda t: t.float_data.append(1.0),
        lambda t: t.ClearField("data_type"),
        lambda t: setattr(t, "data_type", 99),
        lambda t: setattr(t, "data_type", TensorProto.STRING),
        lambda t: t.external_data.add(key="location", value="elsewhere"),
        lambda t: setattr(t, "data_location", TensorProto.EXTERNAL),
        lambda t: t.segment.SetInParent(),
    ],
    ids=["dims", "two-values", "no-type", "unknown-type", "text", "place", "outside", "segment"],
)
def test_weight_that_contradicts_itself_is_left_for_the_checker(change: object, tmp_path: Path) -> None:
    tensor = numpy_helper.from_array(_LARGE, "w")
    assert callable(change)
    change(tensor)
    path, model = tmp_path / "m.onnx", _model(tensor)
    path.write_bytes(_bytes(model))
    left = read_apart(path, "f")
    assert left.graph.initializer[0] == tensor
    assert is_external(left.graph.node[2].attribute[0].t)


def test_model_without_large_weights_is_read_as_it_is(tmp_path: Path) -> None:
    path, model = tmp_path / "m.onnx", _model(numpy_helper.from_array(_SMALL, "small"))
    del model.graph.node[2].attribute[:]
    path.write_bytes(_bytes(model))
    assert _bytes(detach_weights(path)) == path.read_bytes() == _bytes(model)


@pytest.mark.parametrize("seed", range(2))
def test_damaged_file_is_read_as_protobuf_reads_it_or_refused(seed: int, tmp_path: Path) -> None:
    random, path = np.random.default_rng(seed), tmp_path / "m.onnx"
    whole = _bytes(_model(*_weights()))
    heads = [k for k in range(len(whole)) if whole[k : k + 1] != b"\0"][:200]
    for _ in range(50):
        changed = bytearray(whole[: random.integers(1, len(whole))] if random.random() < 0.3 else whole)
        changed[heads[random.integers(len(heads))] % len(changed)] = random.integers(256)
        path.write_bytes(changed)
        try:
            expected = onnx.ModelProto.FromString(bytes(changed))
        except DecodeError:
            with pytest.raises(ModelInvalid):
                read_apart(path, path.name)
            continue
        if not expected.graph.output or not expected.opset_import:
            continue
        sink = io.BytesIO()
        write_whole(read_apart(path, path.name), path, sink)
        assert _bytes(onnx.ModelProto.FromString(sink.getvalue())) == _bytes(expected)


def test_empty_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    path.touch()
    with pytest.raises(ModelInvalid, match="the 0 bytes hold no ONNX graph"):
        detach_weights(path)


def test_model_past_2_gib_is_refused_before_it_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(_bytes(_model(*_weights())))
    monkeypatch.setattr(weights, "MAX_MESSAGE_BYTES", 10_000)
    with pytest.raises(ModelInvalid, match=r"no ONNX file can pass 2 GiB; .*external_data_threshold_bytes=0"):
        write_whole(read_apart(path, path.name), path, io.BytesIO())


def test_weights_that_the_file_does_not_have_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(_bytes(_model(*_weights())))
    structure = read_apart(path, path.name)
    path.write_bytes(path.read_bytes()[:10_000])
    with pytest.raises(
        ModelInvalid, match=r"weight '\w+' asks for bytes .* which has 10000; the file is cut short"
    ):
        write_whole(structure, path, io.BytesIO())


@pytest.mark.parametrize(
    ("threshold", "home", "apart"),
    [
        pytest.param(2**30, "m.onnx.inline", {"first", "documented", "constant"}, id="inside"),
        pytest.param(50_000, "m.onnx.data", {"first", "documented", "constant", "bool"}, id="beside"),
        pytest.param(0, "m.onnx.data", {"first", "documented", "constant", "bool", "small"}, id="all-beside"),
    ],
)
def test_weights_handed_over_end_where_the_threshold_says(
    threshold: int, home: str, apart: set[str], tmp_path: Path
) -> None:
    source, path = tmp_path / "source.onnx", tmp_path / "m.onnx"
    model = _model(*_weights())
    source.write_bytes(_bytes(model))
    save_apart(read_apart(source, source.name), source, path, threshold)
    assert not source.exists()
    assert (tmp_path / home).exists()
    saved = onnx.load(path, load_external_data=False)
    assert {tensor.name for tensor in tensors(saved) if is_external(tensor)} == apart
    assert _bytes(_without_places(onnx.load(path))) == _bytes(model)
