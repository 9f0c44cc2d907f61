"""Read what `torch.save` wrote, without torch: the structure at once, the values of a tensor only when asked for.

Two formats: a zip with `data.pkl` and one record for each storage (since torch 1.6), and before that a stream of
pickles with the storages behind them, which `_use_new_zipfile_serialization=False` still writes. Nothing that the
file names is imported or called (`inert_pickle.py`).
"""

from __future__ import annotations

import io
import math
import os
import struct
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from paritygate.converter.checkpoints.archives import BadZip, open_zip
from paritygate.converter.checkpoints.inert_pickle import (
    MAX_BYTES,
    BadPickle,
    Global,
    Rebuild,
    Stub,
    read_pickle,
)

ITEM_BYTES: Mapping[str, int] = {
    "float64": 8, "float32": 4, "float16": 2, "bfloat16": 2, "complex64": 8, "complex128": 16, "complex32": 4,
    "int64": 8, "int32": 4, "int16": 2, "int8": 1, "uint8": 1, "bool": 1, "uint16": 2, "uint32": 4, "uint64": 8,
    "float8_e4m3fn": 1, "float8_e5m2": 1, "float8_e4m3fnuz": 1, "float8_e5m2fnuz": 1, "float8_e8m0fnu": 1,
}  # fmt: skip
"""Bytes of one element of each dtype that a plain tensor may have."""

_STORAGES = {
    "DoubleStorage": "float64", "FloatStorage": "float32", "HalfStorage": "float16",
    "BFloat16Storage": "bfloat16", "ComplexFloatStorage": "complex64", "ComplexDoubleStorage": "complex128",
    "LongStorage": "int64", "IntStorage": "int32", "ShortStorage": "int16", "CharStorage": "int8",
    "ByteStorage": "uint8", "BoolStorage": "bool", "UntypedStorage": "uint8",
}  # fmt: skip

_LEGACY_MAGIC = 0x1950A86A20F9469CFC6C
_LEGACY_PROTOCOL = 1001
_HEADER_BYTES = 30
_SIZES_END = 2**48
"""Beyond the sizes of all machines; larger ones overflow in torch, and may have a million digits."""

_MAX_RANK = 64
_BIG_ENDIAN = "it was written on a big-endian machine; save it again on a little-endian one"


class BadArchive(BadPickle):
    """The file is no PyTorch file, is damaged, or is of a kind that is not read here."""


@dataclass(frozen=True)
class StorageRef:
    """A block of values in the file; tensors that share memory share it.

    Attributes:
        key: Its name in the file.
        dtype: Type of its elements.
        count: How many there are.
    """

    key: str
    dtype: str
    count: int

    @property
    def size_bytes(self) -> int:
        """How long it is."""
        return self.count * ITEM_BYTES[self.dtype]


@dataclass(frozen=True)
class TensorRef:
    """A tensor in the file, its values not read yet.

    Attributes:
        storage: Where its values are.
        dtype: Type of its elements.
        offset: Elements before its first one.
        shape: Size of every axis.
        stride: Elements from one place to the next, for every axis.
    """

    storage: StorageRef
    dtype: str
    offset: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]


@dataclass(frozen=True)
class Archive:
    """A file that was looked through.

    Attributes:
        path: The file.
        content: Its structure: plain values, `TensorRef`s, `Global`s and `Stub`s.
        foreign: What it would have imported and called, had it been unpickled.
        places: Where each storage lies, by its key.
        is_bare: Whether it is a mere pickle, which torch did not write.
    """

    path: Path
    content: Any
    foreign: frozenset[Global]
    places: Mapping[str, Place]
    is_bare: bool = False

    def read(self, storage: StorageRef) -> bytearray:
        """The values of a storage.

        Raises:
            BadArchive: If they are not all there.
        """
        with self.path.open("rb") as file:
            return _read_place(file, self.places[storage.key], f"the values of storage {storage.key!r}")


@dataclass(frozen=True)
class Place:
    """A run of bytes in the file.

    Attributes:
        start: Its first byte.
        size_bytes: Its length.
        crc: Its checksum (CRC-32), or 0 where none was written.
    """

    start: int
    size_bytes: int
    crc: int = 0


def _read_place(file: BinaryIO, place: Place, what: str) -> bytearray:
    data = bytearray(place.size_bytes)
    file.seek(place.start)
    if file.readinto(data) != place.size_bytes:  # type: ignore[attr-defined]
        raise BadArchive(f"{what} are cut off")
    if place.crc and zlib.crc32(data) != place.crc:
        raise BadArchive(f"{what} are not those that were written: their checksum differs")
    return data


def read_archive(path: Path) -> Archive:
    """Look through a file that `torch.save` wrote; nothing that it names is imported or called.

    Raises:
        BadArchive: With one sentence.
    """
    try:
        with path.open("rb") as file:
            if zipfile.is_zipfile(file):
                return _read_zip(path, file)
            file.seek(0)
            return _read_stream(path, file)
    except BadArchive:
        raise
    except BadPickle as error:
        raise BadArchive(f"its pickle cannot be read: {error}") from error
    except BadZip as error:
        raise BadArchive(str(error)) from error
    except (zipfile.BadZipFile, EOFError, UnicodeDecodeError, struct.error) as error:
        raise BadArchive(f"{type(error).__name__}: {error}") from error


# --- the zip format -----------------------------------------------------------------------------------------


def _read_zip(path: Path, file: BinaryIO) -> Archive:
    with open_zip(file) as archive:
        entries = {entry.filename: entry for entry in archive.infolist()}
    pickles = [name for name in entries if name == "data.pkl" or name.endswith("/data.pkl")]
    if len(pickles) != 1:
        raise BadArchive("it is a zip archive without exactly one data.pkl")
    records = _Records(file, entries, pickles[0].removesuffix("data.pkl"))
    if records.has("byteorder") and records.read("byteorder", limit=64) != b"little":
        raise BadArchive(_BIG_ENDIAN)
    content = records.read("data.pkl", limit=MAX_BYTES)
    value, foreign = read_pickle(
        io.BytesIO(content), size=len(content), rebuild=_REBUILD, persistent=records.resolve
    )
    return Archive(path, value, frozenset(foreign), records.places)


@dataclass(frozen=True)
class _Records:
    """The records of a zip. torch compresses nothing, so what is compressed is a bomb or no checkpoint."""

    file: BinaryIO
    entries: Mapping[str, zipfile.ZipInfo]
    folder: str
    places: dict[str, Place] = field(default_factory=dict)

    def has(self, name: str) -> bool:
        return self.folder + name in self.entries

    def read(self, name: str, *, limit: int) -> bytearray:
        place = self._place(name)
        if place.size_bytes > limit:
            raise BadArchive(f"its record {name!r} is too large ({place.size_bytes} bytes)")
        return _read_place(self.file, place, f"the bytes of {name}")

    def resolve(self, persistent_id: Any) -> StorageRef:
        storage = _storage_id(persistent_id)
        if storage.key not in self.places:
            if not self.has(f"data/{storage.key}"):
                raise BadArchive(f"the values of storage {storage.key!r} are missing")
            self.places[storage.key] = self._place(f"data/{storage.key}")
        there = self.places[storage.key].size_bytes
        if there < storage.size_bytes:
            raise BadArchive(
                f"storage {storage.key!r} has {there} bytes, its tensors need {storage.size_bytes}"
            )
        return storage

    def _place(self, name: str) -> Place:
        """Where the bytes of a record are: behind its own header, which may be longer than the directory's."""
        entry = self.entries[self.folder + name]
        if entry.compress_type != zipfile.ZIP_STORED:
            raise BadArchive(f"its record {name!r} is compressed, which torch.save never does")
        size = os.fstat(self.file.fileno()).st_size
        inside = 0 <= entry.header_offset <= size - _HEADER_BYTES
        self.file.seek(entry.header_offset if inside else size)
        header = self.file.read(_HEADER_BYTES)
        if header[:4] != b"PK\x03\x04":
            raise BadArchive(f"its record {name!r} is not where the archive says")
        name_bytes, extra_bytes = struct.unpack("<HH", header[26:30])
        start = entry.header_offset + _HEADER_BYTES + int(name_bytes) + int(extra_bytes)
        if start + entry.file_size > size:
            raise BadArchive(f"its record {name!r} is cut off")
        return Place(start, entry.file_size, entry.CRC)


def _storage_id(persistent_id: Any) -> StorageRef:
    """A storage, from the id that torch gives it: ("storage", kind, key, place, number of elements, ...)."""
    if not isinstance(persistent_id, tuple) or len(persistent_id) < 5 or persistent_id[0] != "storage":
        raise BadArchive(f"it refers to a {type(persistent_id).__name__} outside, which is no storage")
    kind, key, count = persistent_id[1], persistent_id[2], persistent_id[4]
    dtype = _STORAGES.get(kind.name) if isinstance(kind, Global) else None
    if dtype is None:
        raise BadArchive(f"it holds a storage of the kind {_named(kind)}, which is not read here")
    if not isinstance(key, str) or len(key) > 64 or type(count) is not int or not 0 <= count < _SIZES_END:
        raise BadArchive("it holds a storage without a plain key and size")
    return StorageRef(key, dtype, count)


# --- the stream of pickles before it ------------------------------------------------------------------------


def _read_stream(path: Path, file: BinaryIO) -> Archive:
    size = os.fstat(file.fileno()).st_size
    first, foreign = read_pickle(file, size=size, rebuild=_REBUILD)
    if first != _LEGACY_MAGIC:
        return Archive(path, first, frozenset(foreign), {}, is_bare=True)
    if _next_pickle(file, size) != _LEGACY_PROTOCOL:
        raise BadArchive("it is of a version of torch.save's older stream that is not known")
    system = _next_pickle(file, size)
    if isinstance(system, dict) and system.get("little_endian") is False:
        raise BadArchive(_BIG_ENDIAN)
    blocks = _Blocks()
    value, foreign = read_pickle(file, size=size - file.tell(), rebuild=_REBUILD, persistent=blocks.resolve)
    return Archive(
        path, value, frozenset(foreign), _places(file, size, _next_pickle(file, size), blocks.known)
    )


def _next_pickle(file: BinaryIO, size: int) -> Any:
    value, _ = read_pickle(file, size=size - file.tell(), rebuild={})
    return value


@dataclass(frozen=True)
class _Blocks:
    """The storages of a stream, whose places stand behind the pickle."""

    known: dict[str, StorageRef] = field(default_factory=dict)

    def resolve(self, persistent_id: Any) -> Any:
        if isinstance(persistent_id, tuple) and len(persistent_id) > 1 and persistent_id[0] == "module":
            return persistent_id[1]  # the class of a module, beside its source code
        storage = _storage_id(persistent_id)
        if len(persistent_id) > 5 and persistent_id[5] is not None:
            raise BadArchive("it holds views of storages; save it again with torch 0.4 or newer")
        known = self.known.setdefault(storage.key, storage)
        if known != storage:
            raise BadArchive(f"it says two things of storage {storage.key!r}")
        return storage


def _places(file: BinaryIO, size: int, keys: Any, known: Mapping[str, StorageRef]) -> dict[str, Place]:
    plain = isinstance(keys, list) and all(isinstance(key, str | int) for key in keys)
    if not plain or set(map(str, keys)) != set(known):
        raise BadArchive("its list of storages is not that of its tensors")
    places: dict[str, Place] = {}
    for key in map(str, keys):
        storage = known[key]
        (count,) = struct.unpack("<q", file.read(8))
        start = file.tell()
        if count != storage.count or start + storage.size_bytes > size:
            raise BadArchive(f"the values of storage {key!r} are cut off")
        places[key] = Place(start, storage.size_bytes)
        file.seek(start + storage.size_bytes)
    return places


# --- what torch's own pickles call --------------------------------------------------------------------------


def _tensor(storage: Any, offset: Any, shape: Any, stride: Any, *_more: Any) -> Any:
    return _checked(storage, None, offset, shape, stride)


def _tensor_with_dtype(
    storage: Any, offset: Any, shape: Any, stride: Any, _grad: Any, _hooks: Any, dtype: Any, *_more: Any
) -> Any:
    return _checked(storage, dtype, offset, shape, stride)


def _checked(storage: Any, dtype: Any, offset: Any, shape: Any, stride: Any) -> TensorRef:
    """A tensor all of whose elements lie inside its storage."""
    if not isinstance(storage, StorageRef):
        raise BadArchive("a tensor has no storage")
    kind = storage.dtype if dtype is None else dtype.name if isinstance(dtype, Global) else ""
    if kind not in ITEM_BYTES:
        raise BadArchive(f"it holds a tensor of the dtype {_named(dtype)}, which is not read here")
    sizes, steps = _whole_numbers(shape), _whole_numbers(stride)
    first = _whole_numbers((offset,))[0]
    if len(sizes) != len(steps):
        raise BadArchive("a tensor has another number of sizes than of strides")
    last = first + sum((size - 1) * step for size, step in zip(sizes, steps, strict=True))
    there = storage.size_bytes // ITEM_BYTES[kind]
    if math.prod(sizes) and last >= there:
        raise BadArchive(
            f"a tensor of the shape {list(sizes)[:8]} reaches beyond its storage of {there} elements"
        )
    return TensorRef(storage, kind, first, sizes, steps)


def _named(value: Any) -> str:
    """What a pickle calls something, where that is a name; a nested value could take for ever to print."""
    return str(value) if isinstance(value, Global | Stub) else type(value).__name__


def _whole_numbers(values: Any) -> tuple[int, ...]:
    if not isinstance(values, tuple | list) or not all(
        type(v) is int and 0 <= v < _SIZES_END for v in values
    ):
        raise BadArchive("the shape of a tensor is not made of whole numbers")
    if len(values) > _MAX_RANK:
        raise BadArchive(f"it holds a tensor of {len(values)} axes")
    return tuple(values)


def _inner(data: Any, *_more: Any) -> Any:
    return data


def _of_type(function: Any, kind: Any, arguments: Any, _state: Any) -> Any:
    """A tensor that carried attributes of its own; those of a foreign class stay a stub."""
    plain = isinstance(kind, Global) and (kind.module, kind.name) in _TENSOR_CLASSES
    form = _REBUILD.get((function.module, function.name)) if isinstance(function, Global) else None
    return form(*arguments) if plain and form is not None else Stub(kind, arguments)


_TENSOR_CLASSES = {("torch", "Tensor"), ("torch._tensor", "Tensor"), ("torch.nn.parameter", "Parameter")}

_REBUILD: Rebuild = {
    ("collections", "OrderedDict"): lambda *pairs: _dict_of(*pairs),
    **{(m, n): lambda items=(): items for m in ("builtins", "__builtin__") for n in ("set", "frozenset")},
    ("torch", "Size"): _inner,
    ("torch._utils", "_rebuild_tensor"): _tensor,
    ("torch._utils", "_rebuild_tensor_v2"): _tensor,
    ("torch._utils", "_rebuild_tensor_v3"): _tensor_with_dtype,
    ("torch._utils", "_rebuild_parameter"): _inner,
    ("torch._utils", "_rebuild_parameter_with_state"): _inner,
    ("torch._tensor", "_rebuild_from_type_v2"): _of_type,
}


def _dict_of(pairs: Sequence[Any] = ()) -> dict[Any, Any]:
    """An ordered dict; one of old pickles brings its pairs along."""
    if any(isinstance(pair[0], tuple | list | dict) for pair in pairs):
        raise BadArchive("it has a key that is a structure of its own")
    return {str(pair[0]): pair[1] for pair in pairs}
