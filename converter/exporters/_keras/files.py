"""Look into a Keras file without Keras: foreign, half written, or carrying code."""

from __future__ import annotations

import importlib.util
import json
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from paritygate.converter.checkpoints.archives import MAX_EXPANSION, MAX_UNPACKED_BYTES, BadZip, open_zip
from paritygate.converter.errors import SourceError, UnsafeSource
from paritygate.converter.exporters._keras.carriers import refuse_carriers
from paritygate.converter.exporters._tensorflow.imports import first_line, import_module

KERAS_SUFFIX = ".keras"
HDF5_SUFFIXES = (".h5", ".hdf5")

_WEIGHTS_MEMBER = "model.weights.h5"
_ARCHIVE_MEMBERS = ("metadata.json", "config.json", _WEIGHTS_MEMBER)
_CONFIG_LIMIT_BYTES = 256 * 1024 * 1024


def refuse_unreadable(path: Path, *, trust: bool) -> None:
    """Look into a file without Keras; refuse what is foreign, damaged, or carries code.

    Raises:
        SourceError: If it is no whole Keras file.
        UnsafeSource: If loading it would run code that it carries, or read other files.
    """
    is_hdf5 = _is_hdf5(path)
    try:
        config = _read_hdf5_config(path) if is_hdf5 else _read_archive_config(path)
    except OSError as error:
        raise SourceError(f"{path} cannot be read: {error}. Save the model again.") from error
    if is_hdf5:
        refuse_foreign_data(path, trust=trust)
    elif importlib.util.find_spec("h5py") is not None:  # where Keras is to open it, h5py is
        with open_zip(path) as archive, archive.open(_WEIGHTS_MEMBER) as weights:
            held = archive.getinfo(_WEIGHTS_MEMBER).file_size
            _refuse_foreign_data(f"{_WEIGHTS_MEMBER} in {path}", weights, held, trust=trust)
    if not trust:
        refuse_carriers(path, config)


def refuse_foreign_data(path: Path, *, trust: bool) -> None:
    """Refuse an HDF5 file that takes its data from other files.

    Raises:
        SourceError: If it is no whole HDF5 file, or its datasets would fill the memory.
        UnsafeSource: If a part of it stands in another file and it is not trusted.
    """
    _refuse_foreign_data(str(path), path, path.stat().st_size, trust=trust)


def _refuse_foreign_data(shown: str, source: Path | IO[bytes], held: int, *, trust: bool) -> None:
    h5py = import_module("h5py")
    try:
        with h5py.File(source, "r") as file:
            elsewhere = next(_elsewhere(file, h5py), None)
            sizes: list[int] = []
            file.visititems(
                lambda _, item: sizes.append(item.nbytes if isinstance(item, h5py.Dataset) else 0)
            )
    except (OSError, RuntimeError, KeyError) as error:
        raise SourceError(
            f"{shown} is not a whole HDF5 file ({first_line(error)}). Save the model again."
        ) from error
    if elsewhere is not None and not trust:
        name, other = elsewhere
        raise UnsafeSource(
            f"{shown} takes {name!r} from another file ({other}), so it was not loaded. "
            "Pass --trust (trust=True) if you trust where the file comes from."
        )
    refuse_unpacked(shown, held, sum(sizes))


def refuse_unpacked(shown: str, held: int, unpacked: int) -> None:
    """Refuse an HDF5 file whose datasets are much larger than itself: one that was never written has any size.

    Raises:
        SourceError: If they take more than the records of an archive may.
    """
    if unpacked > max(MAX_UNPACKED_BYTES, MAX_EXPANSION * held):
        raise SourceError(
            f"{shown} has {held} bytes, and its datasets take {unpacked}; that fills any memory. Save it again."
        )


def _elsewhere(group: Any, h5py: Any, seen: set[Any] | None = None) -> Iterator[tuple[str, str]]:
    """Parts of an HDF5 file whose data stands in another file, without opening that.

    A group may be linked to from many places, itself among them; each is looked into once.
    """
    seen = set() if seen is None else seen
    place = h5py.h5o.get_info(group.id).addr
    if place in seen:
        return
    seen.add(place)
    for name in group:
        link = group.get(name, getlink=True)
        if isinstance(link, h5py.ExternalLink):
            yield f"{group.name}/{name}", link.filename
        elif isinstance(link, h5py.HardLink):
            item = group[name]
            if isinstance(item, h5py.Group):
                yield from _elsewhere(item, h5py, seen)
            elif isinstance(item, h5py.Dataset) and item.external:
                yield item.name, str(item.external[0][0])
            elif isinstance(item, h5py.Dataset) and item.is_virtual:
                yield item.name, item.virtual_sources()[0].file_name


def _is_hdf5(path: Path) -> bool:
    with path.open("rb") as file:
        is_hdf5 = file.read(8) == b"\x89HDF\r\n\x1a\n"
    return path.suffix.lower() in HDF5_SUFFIXES or (is_hdf5 and path.suffix.lower() != KERAS_SUFFIX)


def _read_archive_config(path: Path) -> Any:
    try:
        with open_zip(path) as archive:
            missing = [name for name in _ARCHIVE_MEMBERS if name not in archive.namelist()]
            if missing:
                raise SourceError(
                    f"{path} is a zip archive without {', '.join(missing)}, so it is no Keras model. "
                    "Save it with model.save."
                )
            if archive.getinfo("config.json").file_size > _CONFIG_LIMIT_BYTES:
                raise SourceError(
                    f"{path} holds a config.json of more than 256 MiB; no Keras model is built so."
                )
            damaged = archive.testzip()
            if damaged is not None:
                raise SourceError(
                    f"{path} is damaged: the checksum of {damaged} is wrong. Save the model again."
                )
            return _parse_config(path, archive.read("config.json"))
    except (BadZip, zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError) as error:
        raise SourceError(
            f"{path} is not a whole Keras file ({_what_it_is(path, error)}). Save the model again."
        ) from error


def _what_it_is(path: Path, error: Exception) -> str:
    with path.open("rb") as file:
        head = file.read(8)
    if head.startswith(b"PK"):
        return f"a zip archive that is cut off or damaged: {error}"
    if head == b"\x89HDF\r\n\x1a\n":
        return "it is HDF5: rename it to .h5"
    return "it is empty" if not head else "it is no zip archive"


def _read_hdf5_config(path: Path) -> Any:
    h5py = import_module("h5py")
    try:
        with h5py.File(path, "r") as file:
            config = file.attrs.get("model_config")
    except OSError as error:
        raise SourceError(
            f"{path} is not a whole HDF5 file ({first_line(error)}). Save the model again."
        ) from error
    if config is None:
        raise SourceError(
            f"{path} holds weights without a model. Name the code that builds it (--factory module:function), or "
            f"save the whole model (model.save('name{KERAS_SUFFIX}'))."
        )
    return _parse_config(path, config)


def _parse_config(path: Path, text: str | bytes) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise SourceError(f"{path} is damaged: its model configuration is no JSON ({error}).") from error
