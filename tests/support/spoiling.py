"""Damaged model files of every kind of content: JSON, UBJSON, text, protobuf, archives, folders, bytes."""

from __future__ import annotations

import copy
import io
import json
import re
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import numpy as np

from paritygate.converter.checkpoints.sniffing import Form
from support.mutations import damaged, mutated

Random = np.random.Generator

MESSAGES = {
    Form.SAVED_MODEL: "tensorflow.core.protobuf.saved_model_pb2:SavedModel",
    Form.FROZEN_GRAPH: "tensorflow.core.framework.graph_pb2:GraphDef",
    Form.MINDIR: "mindspore.train.mind_ir_pb2:ModelProto",
    Form.MINDSPORE_CHECKPOINT: "mindspore.train.checkpoint_pb2:Checkpoint",
    Form.PADDLE_PROGRAM: "paddle.base.proto.framework_pb2:ProgramDesc",
    Form.ONNX: "onnx:ModelProto",
}
"""The protobuf message that files of a form hold; a form may have files beside it that hold something else."""

_NUMBERS: tuple[Any, ...] = (
    0, 1, -1, 2, 3, 7, 64, 127, 128, 255, 2**16, 2**24, 2**31 - 1, -(2**31), 2**31, 2**32, 2**40, 2**62, 2**63 - 1,
    -(2**63), 2**64, 10**30, 0.5, 1e38, 1e39, 1e308, float("nan"), float("inf"), -float("inf"),
)  # fmt: skip
_WORDS = (
    "", "x", "\n", "é", "a" * 5000, "..", "../../../etc/hostname", "/dev/zero", "nan", "inf", "1e999", "-1",
    "99999999999999999999", "true", "[]", "{}", "0x10", "\0",
)  # fmt: skip
_OTHERS: tuple[Any, ...] = (None, True, False, [], {}, [[]], [0] * 1000, {"a": 1}, *_NUMBERS, *_WORDS)


def spoil(source: Path, form: Form, random: Random) -> Path:
    """Damage one of the files that a source consists of; gives that file.

    Args:
        source: A file, a folder, or the prefix of a checkpoint's files.
        form: What it was before.
        random: Where the choice comes from.
    """
    if source.is_file():
        beside = [path for path in source.parent.iterdir() if path.is_file() and path.stem == source.stem]
        files = [source] if random.random() < 0.7 else sorted(beside)
    else:
        folder = source if source.is_dir() else source.parent
        files = sorted(path for path in folder.rglob("*") if path.is_file())
    chosen = files[random.integers(len(files))]
    if random.random() < 0.05:
        chosen.unlink()
    else:
        chosen.write_bytes(spoilt(chosen.read_bytes(), chosen, form, random))
    return chosen


def spoilt(data: bytes, path: Path, form: Form, random: Random) -> bytes:
    """The bytes after damage that suits what they hold."""
    if not data:
        return random.bytes(8)
    way = _way_of(data, path, form)
    kind = random.random()
    if way is not None and kind < 0.7:
        return way(data, random)
    if kind < 0.75:
        return data[: int(random.integers(len(data)))]
    return damaged(data, random)


def _way_of(data: bytes, path: Path, form: Form) -> Callable[[bytes, Random], bytes] | None:
    if data.startswith(b"PK\x03\x04"):
        return _in_zip
    if form is Form.XGBOOST_UBJ:
        return _in_ubjson
    if len(data) > 9 and data[8:9] == b"{":
        return _in_safetensors
    if re.match(rb"\s*[\[{]", data):
        return _in_json
    message = MESSAGES.get(form)
    if message is not None and path.suffix in (".pb", ".mindir", ".ckpt", ".pdmodel", ".onnx"):
        return lambda given, random: mutated(resolve_name(message).FromString(given), random)
    return _in_text if _is_text(data) else None


def _is_text(data: bytes) -> bool:
    return all(byte >= 32 or byte in b"\t\r\n" for byte in data[:1000])


# --- JSON and what is like it -------------------------------------------------------------------------------


def changed(document: Any, random: Random) -> Any:
    """A document of lists, dicts and plain values with one to three of its parts changed."""
    document = copy.deepcopy(document)
    for _ in range(random.integers(1, 4)):
        if not isinstance(document, list | dict) or not document:
            return _OTHERS[random.integers(len(_OTHERS))]
        holder = _holder_in(document, random)
        keys = list(range(len(holder))) if isinstance(holder, list) else list(holder)
        key = keys[random.integers(len(keys))]
        _change(holder, key, random)
    return document


def _change(holder: Any, key: Any, random: Random) -> None:
    kind, old = random.random(), holder[key]
    if kind < 0.5:
        holder[key] = _like(old, random)
    elif kind < 0.65:
        holder[key] = _OTHERS[random.integers(len(_OTHERS))]
    elif kind < 0.8:
        del holder[key]
    elif isinstance(holder, list):
        holder.insert(key, old)
    elif kind < 0.85:
        holder[key] = _nested(old, int(random.choice([3, 70, 700, 3000])))
    else:
        holder[f"{key}_"] = holder.pop(key)


def _like(old: Any, random: Random) -> Any:
    """Another value of the same kind, which the checks of a reader see last."""
    if isinstance(old, str) and re.fullmatch(r"-?[\d.]+(E-?\d+)?", old):
        return str(_NUMBERS[random.integers(len(_NUMBERS))])
    if isinstance(old, str):
        return _WORDS[random.integers(len(_WORDS))]
    if isinstance(old, list):
        items = [] if random.random() < 0.3 else [*old, *old][: int(random.integers(2 * len(old) + 1))]
        return _typed(items, old.dtype) if isinstance(old, _Typed) else items
    if isinstance(old, dict):
        return {}
    return _NUMBERS[random.integers(len(_NUMBERS))]


def _nested(value: Any, depth: int) -> Any:
    for _ in range(depth):
        value = [value]
    return value


def _holder_in(document: Any, random: Random) -> Any:
    """A list or dict on a walk from the top, so that the few settings are met as often as the many numbers."""
    while True:
        parts = document.values() if isinstance(document, dict) else document
        inner = [part for part in parts if isinstance(part, list | dict) and part]
        if not inner or random.random() < 0.15:
            return document
        document = inner[random.integers(len(inner))]


def _in_json(data: bytes, random: Random) -> bytes:
    return _spelled(changed(json.loads(data), random))


def _spelled(document: Any) -> bytes:
    try:
        return json.dumps(document).encode()
    except RecursionError:
        return b"[" * 5000 + b"]" * 5000


def _in_safetensors(data: bytes, random: Random) -> bytes:
    size = int.from_bytes(data[:8], "little")
    header = _spelled(changed(json.loads(data[8 : 8 + size]), random))
    return len(header).to_bytes(8, "little") + header + data[8 + size :]


def _in_ubjson(data: bytes, random: Random) -> bytes:
    from paritygate.converter.exporters._trees.ubjson import decode

    return as_ubjson(changed(_plain(decode(data)), random))


class _Typed(list[Any]):
    """An array of numbers of one type, which the file names once."""

    dtype = np.dtype(">i4")


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return _typed(value.tolist(), value.dtype) if isinstance(value, np.ndarray) else value


def _typed(items: list[Any], dtype: np.dtype[Any]) -> _Typed:
    typed = _Typed(items)
    typed.dtype = dtype
    return typed


_MARKERS = {">i1": "i", "|i1": "i", "|u1": "U", ">i2": "I", ">i4": "l", ">i8": "L", ">f4": "d", ">f8": "D"}


def as_ubjson(value: Any) -> bytes:
    """The value in UBJSON, with the markers that XGBoost uses."""
    if isinstance(value, bool) or value is None:
        return {None: b"Z", True: b"T", False: b"F"}[value]
    if isinstance(value, int):
        return b"L" + struct.pack(">q", max(-(2**63), min(2**63 - 1, value)))
    if isinstance(value, float):
        return b"d" + np.array(value).astype(">f4").tobytes()
    if isinstance(value, str):
        return b"S" + _ubjson_text(value)
    if isinstance(value, dict):
        entries = (_ubjson_text(key) + as_ubjson(item) for key, item in value.items())
        return b"{" + b"".join(entries) + b"}"
    if isinstance(value, _Typed) and all(isinstance(item, int | float) for item in value):
        with np.errstate(all="ignore"):
            data = np.array(value, np.float64).astype(value.dtype).tobytes()
        return f"[${_MARKERS[value.dtype.str]}#L".encode() + struct.pack(">q", len(value)) + data
    try:
        return b"[" + b"".join(as_ubjson(item) for item in value) + b"]"
    except RecursionError:
        return b"[" * 5000 + b"]" * 5000


def _ubjson_text(text: str) -> bytes:
    spelled = text.encode()
    return b"L" + struct.pack(">q", len(spelled)) + spelled


# --- texts and archives -------------------------------------------------------------------------------------


def _in_text(data: bytes, random: Random) -> bytes:
    """One to three words, or lines, changed."""
    parts = re.split(rb"([\s=<>\"/:,]+)", data)
    for _ in range(random.integers(1, 4)):
        place = int(random.integers(len(parts)))
        kind = random.random()
        if kind < 0.6:
            parts[place] = str(_like(parts[place].decode("latin-1"), random)).encode()
        elif kind < 0.8:
            parts[place] = b""
        else:
            other = int(random.integers(len(parts)))
            parts[place:place] = parts[min(place, other) : max(place, other)][:200]
    return b"".join(parts)


def _in_zip(data: bytes, random: Random) -> bytes:
    """One record damaged, and the archive whole."""
    out = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as given, zipfile.ZipFile(out, "w") as made:
        entries = given.infolist()
        chosen = int(random.integers(len(entries)))
        for place, entry in enumerate(entries):
            content = given.read(entry)
            if place == chosen:
                content = spoilt(content, Path(entry.filename), Form.SAMPLES, random)
            made.writestr(entry, content)
    return out.getvalue()
