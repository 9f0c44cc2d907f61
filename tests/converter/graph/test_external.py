"""Gathering external weights: byte for byte, aligned, and never past what the files hold."""

from __future__ import annotations

import io
from pathlib import Path

import onnx
import pytest

from paritygate.converter.errors import ModelInvalid
from paritygate.converter.graph.external import ALIGNMENT_BYTES, gather_external_data, has_external_data
from paritygate.converter.graph.inspect import is_external


def model_with(*tensors: onnx.TensorProto) -> onnx.ModelProto:
    return onnx.ModelProto(graph=onnx.GraphProto(initializer=tensors))


def tensor(name: str, **fields: str) -> onnx.TensorProto:
    proto = onnx.TensorProto(name=name, data_type=2, dims=[4], data_location=onnx.TensorProto.EXTERNAL)
    for key, value in fields.items():
        proto.external_data.add(key=key, value=value)
    return proto


def test_tensors_are_copied_aligned_and_the_model_points_there(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"xxABCDyy")
    (tmp_path / "b").write_bytes(b"EFGH")
    model = model_with(tensor("one", location="a", offset="2", length="4"), tensor("two", location="b"))
    sink = io.BytesIO()
    gather_external_data(model, tmp_path, sink, "all.bin")
    data = sink.getvalue()
    for proto, expected in zip(model.graph.initializer, (b"ABCD", b"EFGH"), strict=True):
        fields = {entry.key: entry.value for entry in proto.external_data}
        offset = int(fields["offset"])
        assert fields["location"] == "all.bin"
        assert offset % ALIGNMENT_BYTES == 0
        assert data[offset : offset + int(fields["length"])] == expected


def test_tensors_inside_the_file_are_left_alone(tmp_path: Path) -> None:
    model = model_with(onnx.TensorProto(name="w", data_type=2, dims=[1], raw_data=b"x"))
    assert not has_external_data(model)
    sink = io.BytesIO()
    gather_external_data(model, tmp_path, sink, "all.bin")
    assert sink.getvalue() == b""
    assert not is_external(model.graph.initializer[0])


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        pytest.param({"location": "absent"}, "there is no such file beside the model", id="missing"),
        pytest.param({"location": "../secret"}, "not a file name inside", id="outside"),
        pytest.param({"location": "link"}, "there is no such file beside the model", id="link_outside"),
        pytest.param(
            {"location": "a", "length": "9"}, "asks for bytes 0 to 9 of 'a', which has 8", id="too_long"
        ),
        pytest.param({"location": "a", "offset": "9"}, "cut short", id="offset_past_the_end"),
        pytest.param({"location": "a", "offset": "-1"}, "cut short", id="negative"),
        pytest.param({"location": "a", "offset": "x"}, "is no number", id="no_number"),
    ],
)
def test_what_the_files_do_not_hold_is_refused(tmp_path: Path, fields: dict[str, str], message: str) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "a").write_bytes(b"12345678")
    (tmp_path / "secret").write_bytes(b"12345678")
    (folder / "link").symlink_to("../secret")
    with pytest.raises(ModelInvalid, match=message):
        gather_external_data(model_with(tensor("w", **fields)), folder, io.BytesIO(), "all.bin")
