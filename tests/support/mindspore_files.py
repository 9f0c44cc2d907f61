"""Hostile and damaged files of MindSpore; as a program, tells what the exporter says of each.

`python mindspore_files.py FOLDER [LIBRARY]` leaves `report.json`: for every file the classes of the error and its
text; beside it whether the payloads run in the loaders that they are meant for. LIBRARY is a shared library that
writes `FOLDER/library_ran` once it is loaded, with a function `Same`.
"""

from __future__ import annotations

import json
import pickle
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import nn, ops
from mindspore.train import serialization
from mindspore.train.checkpoint_pb2 import Checkpoint
from mindspore.train.mind_ir_pb2 import ModelProto

from paritygate.converter.exporters import export_model
from support.exporter_cases import sample
from support.mindspore_nets import build, picture

FACTORY = {"factory": "support.mindspore_nets:build"}


class Library(nn.Cell):  # type: ignore[misc]
    """Calls a function of a shared library."""

    def __init__(self, library: str) -> None:
        super().__init__()
        self.same = ops.Custom(f"{library}:Same", lambda x: x, lambda x: x, func_type="aot")

    def construct(self, x: Any) -> Any:
        return self.same(x)


class Writes:
    """Leaves a file once it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return (open, (str(self.path), "w"))


def main(folder: Path, library: str | None) -> None:
    folder.mkdir(exist_ok=True)
    net = picture()
    net.set_train(False)
    example = ms.Tensor(sample(2, 3, 8, 8))
    ms.export(net, example, file_name=str(folder / "whole"), file_format="MINDIR")
    content = (folder / "whole.mindir").read_bytes()
    said = {name: _said(folder, name, content, change) for name, change in _MINDIR.items()}
    said["elsewhere"] = _elsewhere(folder, net, example)
    said |= _checkpoints(folder)
    report: dict[str, Any] = {"said": said}
    report["pickle_runs"] = _pickle_runs(folder)
    if library is not None:
        report["said"]["library"], report["library_runs"] = _library(folder, library)
    (folder / "report.json").write_text(json.dumps(report))


def _refusal(path: Path, **options: Any) -> list[str]:
    """The classes of the error and its text; empty if there is none."""
    try:
        export_model(
            path, path.parent / f"{path.name}.bundle", name="hostile", framework="mindspore", **options
        )
    except Exception as error:
        return [" ".join(kind.__name__ for kind in type(error).__mro__), str(error)]
    return []


# --- MindIR -------------------------------------------------------------------------------------------------


def _said(folder: Path, name: str, content: bytes, change: Callable[[Any], bytes | None]) -> list[str]:
    message = ModelProto()
    message.ParseFromString(content)
    path = folder / f"{name}.mindir"
    changed = change(message)
    path.write_bytes(message.SerializeToString() if changed is None else changed)
    return _refusal(path, trust=True)


def _relu(message: Any) -> Any:
    return next(node for node in message.graph.node if node.op_type.startswith("REF::ReLU"))


def _circle(message: Any) -> None:
    node = _relu(message)
    user = next(each for each in message.graph.node if node.output[0] in each.input)
    node.input[0] = user.output[0]


def _twice(message: Any) -> None:
    message.graph.node.add().CopyFrom(_relu(message))


def _nothing_gives(message: Any) -> None:
    _relu(message).input[0] = "nobody"


def _too_large(message: Any) -> None:
    """Claims four terabytes."""
    weight = message.graph.parameter[0]
    del weight.dims[:]
    weight.dims.extend([10**6, 10**6])


def _python_class(message: Any) -> None:
    found = message.primitives[0].attribute.add(name="kind", s=b"os.system")
    found.type = found.CLASS_TYPE


def _operator(name: str) -> Callable[[Any], None]:
    def change(message: Any) -> None:
        for primitive in message.primitives:
            if primitive.op_type == "ReLU":
                primitive.op_type = name

    return change


def _cut(message: Any) -> bytes:
    content: bytes = message.SerializeToString()
    return content[: len(content) // 2]


def _of_onnx(_message: Any) -> bytes:
    import onnx

    node = onnx.helper.make_node("Identity", ["x"], ["y"])
    x, y = (onnx.helper.make_tensor_value_info(name, 1, [2]) for name in ("x", "y"))
    content: bytes = onnx.helper.make_model(onnx.helper.make_graph([node], "g", [x], [y])).SerializeToString()
    return content


_MINDIR: dict[str, Callable[[Any], bytes | None]] = {
    "circle": _circle,
    "twice": _twice,
    "nothing_gives": _nothing_gives,
    "too_large": _too_large,
    "python_class": _python_class,
    "python_text": _operator("PyExecute"),
    "writes_files": _operator("TensorDump"),
    "unknown_operator": _operator("Frobnicate"),
    "cut": _cut,
    "noise": lambda _message: np.random.default_rng(0).bytes(500),
    "empty": lambda _message: b"",
    "of_onnx": _of_onnx,
}


def _elsewhere(folder: Path, net: Any, example: Any) -> list[str]:
    """Weights that are whole, but outside the folder."""
    limit, serialization.TOTAL_SAVE = serialization.TOTAL_SAVE, 0
    inside = folder / "inside"
    inside.mkdir()
    try:
        ms.export(net, example, file_name=str(inside / "net"), file_format="MINDIR")
    finally:
        serialization.TOTAL_SAVE = limit
    (folder / "outside").mkdir()
    shutil.move(inside / "net_variables" / "data_0", folder / "outside" / "data_0")
    path = inside / "net_graph.mindir"
    message = ModelProto()
    message.ParseFromString(path.read_bytes())
    for weight in message.graph.parameter:
        weight.external_data.location = "../outside/data_0"
    path.chmod(0o600)
    path.write_bytes(message.SerializeToString())
    return _refusal(path, trust=True)


def _library(folder: Path, library: str) -> tuple[list[str], bool]:
    x = ms.Tensor(sample(2, 3))
    ran = folder / "library_ran"
    ms.export(Library(library), x, file_name=str(folder / "library"), file_format="MINDIR")
    ran.unlink(missing_ok=True)
    said = _refusal(folder / "library.mindir", trust=True)
    assert not ran.exists(), "the library was loaded"
    nn.GraphCell(ms.load(str(folder / "library.mindir")))(x)
    return said, ran.exists()


# --- checkpoints --------------------------------------------------------------------------------------------


def _checkpoints(folder: Path) -> dict[str, list[str]]:
    net, _ = build()
    path = folder / "net.ckpt"
    ms.save_checkpoint(net, str(path))
    content = path.read_bytes()
    ms.save_checkpoint(net, str(folder / "net"), format="safetensors")
    tensors = (folder / "net.safetensors").read_bytes()
    changed = {
        "pickled.ckpt": pickle.dumps(Writes(folder / "ours_ran")),
        "cut.ckpt": content[:-10],
        "lying.ckpt": _lying(content),
        "table.ckpt": _table(content),
        "empty.ckpt": b"",
        "cut.safetensors": tensors[:-8],
        "long_head.safetensors": (2**62).to_bytes(8, "little") + tensors[8:],
        "pickled.safetensors": pickle.dumps(Writes(folder / "ours_ran")),
    }
    said = {}
    for name, wrong in changed.items():
        (folder / name).write_bytes(wrong)
        said[name] = _refusal(folder / name, **FACTORY)
    assert not (folder / "ours_ran").exists(), "a pickle was run"
    said["renamed.ckpt"] = _refusal(_renamed(folder, content), **FACTORY)
    return said


def _message(content: bytes) -> Any:
    message = Checkpoint()
    message.ParseFromString(content)
    return message


def _lying(content: bytes) -> bytes:
    message = _message(content)
    del message.value[0].tensor.dims[:]
    message.value[0].tensor.dims.extend([10**6, 10**6])
    changed: bytes = message.SerializeToString()
    return changed


def _table(content: bytes) -> bytes:
    message = _message(content)
    message.value[0].ClearField("tensor")
    message.value[0].maptensor.SetInParent()
    changed: bytes = message.SerializeToString()
    return changed


def _renamed(folder: Path, content: bytes) -> Path:
    message = _message(content)
    for entry in message.value:
        entry.tag = entry.tag.replace("weight", "weigth")
    path = folder / "renamed.ckpt"
    path.write_bytes(message.SerializeToString())
    return path


def _pickle_runs(folder: Path) -> bool:
    """Whether the payload of the pickled checkpoint is one: it runs in Python's own loader."""
    pickle.loads(pickle.dumps(Writes(folder / "pickle_ran"))).close()
    return (folder / "pickle_ran").exists()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else None)
