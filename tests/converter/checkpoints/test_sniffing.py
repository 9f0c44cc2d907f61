"""What a file is, told from its content and never from its name alone."""

from __future__ import annotations

import json
import pickle
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from paritygate.converter.checkpoints.sniffing import Form, is_first_for, look_at, refuse_foreign
from paritygate.converter.errors import SourceError
from paritygate.converter.exporters import EXPORTERS
from support.onnx_models import add_model


def field(number: int, content: bytes) -> bytes:
    """One length-delimited protobuf field of fewer than 128 bytes."""
    return bytes([number << 3 | 2, len(content)]) + content


def _torch(path: Path, **options: object) -> None:
    torch = pytest.importorskip("torch")
    torch.save({"w": torch.zeros(3)}, path, **options)


def _torchscript(path: Path) -> None:
    torch = pytest.importorskip("torch")
    archive = torch._C.PyTorchFileWriter(str(path))
    archive.write_record("code/__torch__.py", b"x", 1)
    archive.write_record("constants.pkl", b"x", 1)
    archive.write_end_of_file()


def _program(path: Path) -> None:
    torch = pytest.importorskip("torch")
    torch.export.save(torch.export.export(torch.nn.Linear(2, 1), (torch.zeros(3, 2),)), path)


def _zip_of(*names: str) -> Callable[[Path], None]:
    def write(path: Path) -> None:
        with zipfile.ZipFile(path, "w") as archive:
            for name in names:
                archive.writestr(name, "{}")

    return write


def _bytes(content: bytes) -> Callable[[Path], None]:
    return lambda path: path.write_bytes(content) and None


def _folder(*names: str) -> Callable[[Path], None]:
    def write(path: Path) -> None:
        path.mkdir()
        for name in names:
            (path / name).write_bytes(b"{}")

    return write


_SAFE_HEAD = b'{"w":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}'

FILES: list[tuple[str, Callable[[Path], None], Form | None]] = [
    ("net.pt", _torch, Form.TORCH_CHECKPOINT),
    ("last.ckpt", _torch, Form.TORCH_CHECKPOINT),
    ("no_suffix", _torch, Form.TORCH_CHECKPOINT),
    ("old.bin", lambda p: _torch(p, _use_new_zipfile_serialization=False), Form.TORCH_CHECKPOINT),
    ("script.pt", _torchscript, Form.TORCHSCRIPT),
    ("program.pt2", _program, Form.TORCH_PROGRAM),
    ("w.safetensors", _bytes(struct.pack("<Q", len(_SAFE_HEAD)) + _SAFE_HEAD + b"\0" * 4), Form.SAFETENSORS),
    ("m.keras", _zip_of("metadata.json", "config.json", "model.weights.h5"), Form.KERAS_ARCHIVE),
    ("m.h5", _bytes(b"\x89HDF\r\n\x1a\n" + b"\0" * 20), Form.HDF5),
    ("frozen.pb", _bytes(field(1, field(1, b"x") + field(2, b"Placeholder"))), Form.FROZEN_GRAPH),
    (
        "ms.ckpt",
        _bytes(field(1, field(1, b"conv.weight") + field(2, b"\x08\x03"))),
        Form.MINDSPORE_CHECKPOINT,
    ),
    ("m.mindir", _bytes(field(1, b"0.1.0") + field(2, b"MindSpore")), Form.MINDIR),
    ("m.pdmodel", _bytes(field(1, b"\x08\x00\x10\xff\x01")), Form.PADDLE_PROGRAM),
    ("m.json", _bytes(b'{"base_code":{"magic":"pir","version":1}}'), Form.PADDLE_PROGRAM),
    ("w.pdparams", _bytes(pickle.dumps({"w": 1})), Form.PADDLE_PARAMETERS),
    ("x.json", _bytes(json.dumps({"learner": {}, "version": [3, 0, 0]}).encode()), Form.XGBOOST_JSON),
    ("x.ubj", _bytes(b"{L\0\0\0\0\0\0\0\x07learner{"), Form.XGBOOST_UBJ),
    ("l.txt", _bytes(b"tree\nversion=v4\nnum_class=1\n"), Form.LIGHTGBM_TEXT),
    ("p.pmml", _bytes(b'<?xml version="1.0"?>\n<PMML version="4.4">'), Form.PMML),
    ("wide.pmml", _bytes('<?xml version="1.0" encoding="UTF-16"?><PMML>'.encode("utf-16")), Form.PMML),
    ("big-endian.pmml", _bytes(b"\xfe\xff" + "<PMML>".encode("utf-16-be")), Form.PMML),
    ("m.onnx", lambda p: p.write_bytes(add_model(1.0).SerializeToString()) and None, Form.ONNX),
    ("model", lambda p: p.write_bytes(add_model(1.0).SerializeToString()) and None, Form.ONNX),
    ("est.pkl", _bytes(pickle.dumps([1])), Form.PICKLE),
    ("est.joblib", _bytes(b"\x78\x9c" + b"\0" * 8), Form.PICKLE),
    ("flax.msgpack", _bytes(b"\x81\xa1w\xc0"), Form.FLAX_MSGPACK),
    ("x.npz", lambda p: np.savez(p, x=np.zeros(2)), Form.SAMPLES),
    ("odd.npz", lambda p: np.savez(p, **{"code/x": np.zeros(2)}), Form.SAMPLES),
    ("net.pdiparams", _bytes(b"\0" * 16 + b"\4\0\0\0\x08\5\x10\3"), Form.PADDLE_PROGRAM_WEIGHTS),
    ("params", _bytes(b"\0" * 16 + b"\4\0\0\0\x08\5\x10\3"), Form.PADDLE_PROGRAM_WEIGHTS),
    ("cut.pdiparams", _bytes(b"\0" * 7), Form.PADDLE_PROGRAM_WEIGHTS),
    ("zeros", _bytes(b"\0" * 64), None),
    ("m.tflite", _bytes(b"\x1c\0\0\0TFL3" + b"\0" * 8), Form.TFLITE),
    ("m.plan", _bytes(b"ftrt" + b"\0" * 20), Form.TENSORRT),
    ("saved", _folder("saved_model.pb", "variables"), Form.SAVED_MODEL),
    ("hf", _folder("config.json", "model.safetensors"), Form.HUGGING_FACE),
    ("hf_sharded", _folder("config.json", "model.safetensors.index.json"), Form.HUGGING_FACE),
    ("orbax", _folder("_METADATA", "manifest.ocdbt"), Form.ORBAX),
    ("tf", _folder("checkpoint", "ckpt-1.index"), Form.TF_CHECKPOINT),
    ("dcp", _folder(".metadata", "__0_0.distcp"), Form.TORCH_SHARDS),
    ("bundle", _folder("bundle.json", "model.onnx"), Form.BUNDLE),
    ("empty", _folder(), None),
    ("empty.pt", _bytes(b""), None),
    ("notes.txt", _bytes(b"hello\n"), None),
    ("page.xml", _bytes(b"<?xml version='1.0'?><html/>"), None),
    ("data.json", _bytes(b'{"a": 1}'), None),
    ("noise", _bytes(bytes(range(1, 255)) * 9), None),
    ("long", _bytes(b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff"), None),
]


@pytest.mark.parametrize(("name", "write", "form"), FILES, ids=[row[0] for row in FILES])
def test_form_is_told_from_the_content(
    name: str, write: Callable[[Path], None], form: Form | None, tmp_path: Path
) -> None:
    write(tmp_path / name)
    assert look_at(tmp_path / name) is form


def test_form_does_not_hang_on_the_name(tmp_path: Path) -> None:
    _torch(tmp_path / "weights.json")
    assert look_at(tmp_path / "weights.json") is Form.TORCH_CHECKPOINT


def test_prefix_of_a_tensorflow_checkpoint_stands_for_its_files(tmp_path: Path) -> None:
    (tmp_path / "ckpt-7.index").write_bytes(b"x")
    assert look_at(tmp_path / "ckpt-7") is Form.TF_CHECKPOINT
    assert look_at(tmp_path / "ckpt-8") is None


def test_prefix_of_a_paddle_program_stands_for_its_files(tmp_path: Path) -> None:
    (tmp_path / "inf.json").write_text('{"base_code":{"magic":"pir","version":1}}')
    (tmp_path / "old.v1.pdmodel").write_bytes(field(1, b"\x08\0"))
    (tmp_path / "other.json").write_text('{"a": 1}')
    found = [look_at(tmp_path / name) for name in ("inf", "old.v1", "other", "none")]
    assert found == [Form.PADDLE_PREFIX, Form.PADDLE_PREFIX, None, None]


@pytest.mark.parametrize(
    ("name", "said"), [("net.pt", Form.TORCH_CHECKPOINT), ("m.keras", Form.KERAS_ARCHIVE)]
)
def test_zip_that_is_cut_off_is_still_its_exporters(name: str, said: Form, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(b"PK\x03\x04" + b"\0" * 40)
    assert look_at(tmp_path / name) is said


@pytest.mark.parametrize("form", [form for form in Form if form.exporters], ids=lambda form: form.name)
def test_readers_of_a_form_are_registered(form: Form) -> None:
    assert set(form.exporters) <= set(EXPORTERS)


@pytest.mark.parametrize("form", [form for form in Form if not form.exporters], ids=lambda form: form.name)
def test_form_that_nobody_reads_says_what_to_do(form: Form) -> None:
    assert form.advice.endswith(".")


def test_wrong_framework_is_told_what_the_file_is(tmp_path: Path) -> None:
    _torch(tmp_path / "net.pt")
    with pytest.raises(
        SourceError, match=r"is a PyTorch checkpoint, and the keras exporter .* --framework pytorch"
    ):
        refuse_foreign(tmp_path / "net.pt", "keras")
    refuse_foreign(tmp_path / "net.pt", "pytorch")
    assert is_first_for(tmp_path / "net.pt", "pytorch")
    assert not is_first_for(tmp_path / "net.pt", "keras")


def test_form_that_nobody_reads_is_refused_with_its_advice(tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", x=np.zeros(2))
    with pytest.raises(SourceError, match="Pass it as --samples"):
        refuse_foreign(tmp_path / "x.npz", "pytorch")


def test_unknown_file_is_left_to_the_exporter(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"hello")
    refuse_foreign(tmp_path / "x", "pytorch")
