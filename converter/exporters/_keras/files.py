"""Look into a Keras file without Keras: foreign, half written, or carrying code."""

from __future__ import annotations

import json
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from paritygate.converter.errors import SourceError, UnsafeSource
from paritygate.converter.exporters._tensorflow.imports import first_line, import_module

KERAS_SUFFIX = ".keras"
HDF5_SUFFIXES = (".h5", ".hdf5")

_ARCHIVE_MEMBERS = ("metadata.json", "config.json", "model.weights.h5")
_CONFIG_LIMIT_BYTES = 256 * 1024 * 1024


def refuse_unreadable(path: Path, *, trust: bool) -> None:
    """Look into a file without Keras; refuse what is foreign, damaged, or carries code."""
    read = _read_hdf5_config if path.suffix.lower() in HDF5_SUFFIXES else _read_archive_config
    try:
        config = read(path)
    except OSError as error:
        raise SourceError(f"{path} cannot be read: {error}. Save the model again.") from error
    carriers = sorted(set(code_carriers(config)))
    if carriers and not trust:
        layers = ", ".join(repr(name) for name in carriers)
        raise UnsafeSource(
            f"{path} carries Python code in layer {layers} (a lambda), and loading it would run that code. "
            "Pass --trust (trust=True) if you trust where the file comes from."
        )


def _read_archive_config(path: Path) -> Any:
    try:
        with zipfile.ZipFile(path) as archive:
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
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError) as error:
        raise SourceError(
            f"{path} is not a whole Keras file ({_what_it_is(path)}). Save the model again."
        ) from error


def _what_it_is(path: Path) -> str:
    with path.open("rb") as file:
        head = file.read(8)
    if head.startswith(b"PK"):
        return "a zip archive that is cut off or damaged"
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


def code_carriers(config: Any, layer: str = "?") -> Iterator[str]:
    """Names of the layers whose configuration holds marshalled code, in the new and the old form."""
    if isinstance(config, list):
        for item in config:
            yield from code_carriers(item, layer)
    if not isinstance(config, dict):
        return
    inner = config.get("config")
    if isinstance(inner, dict) and isinstance(inner.get("name"), str):
        layer = inner["name"]
    if config.get("class_name") == "__lambda__" or _is_old_lambda(config):
        yield layer
    for value in config.values():
        yield from code_carriers(value, layer)


def _is_old_lambda(config: Mapping[str, Any]) -> bool:
    """Keras 2 wrote `[code, defaults, closure]`, with or without saying `function_type: lambda` beside it."""
    kinds = (config.get(key) for key in ("function_type", "output_shape_type", "mask_type"))
    written = (config.get(key) for key in ("function", "output_shape", "mask"))
    return "lambda" in kinds or any(isinstance(v, list) and v and isinstance(v[0], str) for v in written)
