"""PyTorch files, opened so that nothing they carry is run: weights, training checkpoints, programs, scripts.

A file that is not trusted is read as data (`torch_archive.py`), or by safetensors. `torch.export.load` is never
called on one: where an archive is not what it expects it falls back to a plain unpickler, and runs what is in it.
Nor is `torch.jit.load`: the code in a TorchScript archive runs while it is loaded (`__setstate__`) and when it is
called, and may use operators that write and map files (`aten::save`, `aten::from_file`) or any that an extension
registers, so no list of bad ones is ever whole.
"""

from __future__ import annotations

import pickle
import warnings
from pathlib import Path
from typing import Any

import torch

from paritygate.converter.checkpoints.archives import BadZip, open_zip
from paritygate.converter.checkpoints.factories import working_directory_on_path
from paritygate.converter.checkpoints.inert_pickle import Global, Stub
from paritygate.converter.checkpoints.sniffing import Form, look_at
from paritygate.converter.checkpoints.torch_archive import Archive, BadArchive, read_archive
from paritygate.converter.checkpoints.torch_state import (
    RAW_KEYS,
    Checkpoint,
    as_mapping,
    has_weights,
    is_module,
)
from paritygate.converter.errors import ExportError, SourceError, UnsafeSource


def load_file(path: Path, *, trust: bool, whole: bool) -> Checkpoint:
    """What a checkpoint holds; code that it names is run only with `trust`, and only where nothing else will do.

    Args:
        path: The file.
        trust: Whether its code may be run.
        whole: Whether a pickled network is wanted itself, since no factory builds one for its weights.

    Raises:
        UnsafeSource: If what is wanted needs code that the file names; nothing was run.
        SourceError: If it is no such file, or damaged.
    """
    if look_at(path) is Form.SAFETENSORS or path.suffix == ".safetensors":
        return Checkpoint(path, _load_safetensors(path))
    try:
        archive = read_archive(path)
    except BadArchive as error:
        raise SourceError(_damaged(path, str(error))) from error
    needs_code = bool(archive.foreign) and not has_weights(archive.content)
    if needs_code or (whole and _pickled_module(archive.content) is not None):
        if not trust:
            raise UnsafeSource(_special(path, archive) or _unsafe(path, _asked_for(archive)))
        return Checkpoint(path, _load_trusted(path, archive))
    return Checkpoint(path, archive.content, archive)


def whole_module(checkpoint: Checkpoint, key: str | None) -> torch.nn.Module | None:
    """The network itself, where a trusted file holds one, alone or under one of the usual names."""
    content = checkpoint.content
    names = RAW_KEYS if key is None else (key,)
    entries = [content[name] for name in names if name in content] if isinstance(content, dict) else [content]
    return next((entry for entry in entries if isinstance(entry, torch.nn.Module)), None)


def _pickled_module(content: Any) -> Stub | None:
    """A whole network, alone or under one of the usual names."""
    entries = [content, *(as_mapping(content).get(name) for name in RAW_KEYS)]
    return next((entry for entry in entries if is_module(entry)), None)


def _asked_for(archive: Archive) -> str:
    """The most telling of the names that stand in the way of reading a file as data."""
    module = _pickled_module(archive.content) or archive.content
    return str(module) if isinstance(module, Stub) else min(map(str, archive.foreign), default="")


def _special(path: Path, archive: Archive) -> str | None:
    """What to say of tensors that only torch itself builds (sparse, quantised, nested).

    Its restricted reader (weights_only=True) would, with some thousand lines of code of which a part lies in C++;
    files have run code through it before (CVE-2025-32434), so it is no substitute for trust.
    """
    kind = min((str(name) for name in archive.foreign if _builds_tensors(name)), default=None)
    if kind is None:
        return None
    return (
        f"{path} holds a tensor that is not plain ({kind}: sparse, quantised or nested), which only torch's own "
        f"loader builds; it was not opened. Save it as a plain one (to_dense(), dequantize()), or pass trust=True "
        f"(--trust) if you made the file yourself."
    )


def _builds_tensors(name: Global) -> bool:
    return name.module.startswith("torch.") and name.name.startswith("_rebuild_")


def _load_safetensors(path: Path) -> dict[str, torch.Tensor]:
    try:
        from safetensors import SafetensorError
        from safetensors.torch import load_file as read
    except ImportError as error:
        raise ExportError(
            f"{path} needs safetensors, which is not installed here; run: pip install safetensors"
        ) from error
    try:
        tensors: dict[str, torch.Tensor] = read(path)
    except (SafetensorError, OSError, ValueError) as error:
        raise SourceError(f"{path} is no safetensors file, or is damaged: {error}.") from error
    return tensors


def _load_trusted(path: Path, archive: Archive | None) -> Any:
    try:
        with working_directory_on_path():
            if archive is not None and archive.is_bare:
                with path.open("rb") as file:
                    return pickle.load(file)  # noqa: S301 - the user said that it is their own
            return torch.load(path, map_location="cpu", weights_only=False)
    except ModuleNotFoundError as error:
        raise SourceError(
            f"{path} needs the module {error.name or str(error)!r}, which cannot be imported here; "
            f"looked on sys.path and in {Path.cwd()}. "
            f"Run the export where that module is, or add its folder to PYTHONPATH."
        ) from error
    except Exception as error:
        raise SourceError(_unpickled(path, error)) from error


def _unpickled(path: Path, error: Exception) -> str:
    """Why a trusted pickle was not read; code that has changed since is no fault of the file."""
    if isinstance(error, AttributeError | ImportError):
        return (
            f"{path} names code that is not there any more, or is another one now ({error}); use the code that "
            f"the file was saved with."
        )
    return _damaged(path, error)


def _unsafe(path: Path, name: str) -> str:
    what = f"asks for {name}" if name else "holds a pickle that is no plain dict of tensors"
    return (
        f"{path} {what}, which could run code that the file carries; it was not opened. Save "
        f"model.state_dict() and give a factory, or pass trust=True (--trust) if you made the file yourself."
    )


def _damaged(path: Path, error: Exception | str) -> str:
    if isinstance(error, str):
        said = error
    else:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        said = f"{type(error).__name__}: {(lines or ['no text'])[0][:200]}"
    return f"{path} cannot be read as a PyTorch file ({said}); it is damaged, cut short, or of another kind."


def load_program(path: Path, *, trust: bool) -> torch.export.ExportedProgram:
    """The exported program in a `.pt2` file.

    Raises:
        UnsafeSource: Without `trust`; the file is looked at as a zip and not opened.
        SourceError: If it is no exported program, or damaged.
    """
    if not trust:
        raise UnsafeSource(
            f"{path} {_carries(path)}, and torch's loader of .pt2 files can run code that hides in one; it was "
            f"not opened. Pass trust=True (--trust) if you made the file yourself, or save model.state_dict() "
            f"and give a factory."
        )
    try:
        return torch.export.load(path)
    except Exception as error:
        raise SourceError(_damaged(path, error)) from error


def _carries(path: Path) -> str:
    """What a `.pt2` file is to the eye, told from the names in its zip directory alone."""
    try:
        archive = open_zip(path)
    except BadZip:
        return "is not even a whole archive (torch may unpickle it)"
    with archive:
        pickles = [name for name in archive.namelist() if name.endswith((".pt", ".pkl", ".pickle"))]
    inside = f" with pickles inside ({', '.join(pickles[:2])})" if pickles else ""
    return f"is an exported program{inside}"


def load_script(path: Path) -> torch.jit.ScriptModule:
    """The script in a TorchScript archive that the user trusts.

    Raises:
        SourceError: If it is damaged, or needs what is not there.
    """
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", category=DeprecationWarning)
            return torch.jit.load(path, map_location="cpu")
    except Exception as error:
        raise SourceError(_damaged(path, error)) from error
