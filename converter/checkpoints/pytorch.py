"""PyTorch files, opened so that nothing they carry is run: weights, training checkpoints, exported programs.

Only `torch.load(weights_only=True)` and safetensors read a file that is not trusted. `torch.export.load` is never
called on one: where an archive is not what it expects it falls back to a plain unpickler, and runs what is in it.
"""

from __future__ import annotations

import difflib
import pickle
import re
import warnings
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from paritygate.converter.checkpoints.factories import working_directory_on_path
from paritygate.converter.errors import ExportError, SourceError, UnsafeSource

RAW_KEYS = ("state_dict", "model_state_dict", "model_state", "model", "module", "network", "net", "weights")
"""Keys under which training scripts keep the weights, the most telling first."""

_EMA = re.compile(r"ema|averag|swa", re.IGNORECASE)
_GLOBAL = re.compile(r"(?:GLOBAL|Unsupported class|Unsupported global:) (?:GLOBAL )?([\w.]+)")
_SHOWN = 5


@dataclass(frozen=True)
class StateDict:
    """Weights by name, and where in the file they were.

    Attributes:
        tensors: By name in the network.
        selection: In words, for the manifest.
        notes: What a reader should know of the choice.
    """

    tensors: dict[str, torch.Tensor]
    selection: str
    notes: tuple[str, ...] = ()


def load_file(path: Path, *, trust: bool) -> Any:
    """What a `.pt`, `.pth` or `.safetensors` file holds.

    Raises:
        UnsafeSource: If reading it needs code that the file names; nothing was run.
        SourceError: If it is no such file, or damaged.
    """
    if path.suffix == ".safetensors":
        return _load_safetensors(path)
    try:
        with warnings.catch_warnings():
            # What torch says of odd pickles is said below, in one line, if the file cannot be read for it.
            warnings.filterwarnings("ignore", "Detected pickle protocol")
            return torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        if trust:
            return _load_trusted(path)
        raise UnsafeSource(_unsafe(path, str(error))) from error
    except Exception as error:
        raise SourceError(_damaged(path, error)) from error


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


def _load_trusted(path: Path) -> Any:
    try:
        with working_directory_on_path():
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


def _unsafe(path: Path, said: str) -> str:
    found = _GLOBAL.search(said)
    what = f"asks for {found[1]}" if found else "holds a pickle that is no plain dict of tensors"
    return (
        f"{path} {what}, which could run code that the file carries; it was not opened. Save "
        f"model.state_dict() and give a factory, or pass trust=True (--trust) if you made the file yourself."
    )


def _damaged(path: Path, error: Exception) -> str:
    text = str(error)
    if "TorchScript" in text:
        return (
            f"{path} is a TorchScript archive, which torch.export cannot take; save model.state_dict() instead "
            f"and give a factory."
        )
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return (
        f"{path} cannot be read as a PyTorch file ({type(error).__name__}: {(lines or ['no text'])[0][:200]}); "
        f"it is damaged, cut short, or of another kind."
    )


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
    if not zipfile.is_zipfile(path):
        return "is not even an archive (torch would unpickle it)"
    with zipfile.ZipFile(path) as archive:
        pickles = [name for name in archive.namelist() if name.endswith((".pt", ".pkl", ".pickle"))]
    inside = f" with pickles inside ({', '.join(pickles[:2])})" if pickles else ""
    return f"is an exported program{inside}"


def select_state(content: Any, path: Path, key: str | None) -> StateDict:
    """The weights inside what a file held: a plain state dict, or a training checkpoint that keeps one.

    Args:
        content: What `load_file` gave.
        path: For messages.
        key: The entry that the user asked for, dots for nested ones; None takes the raw weights.

    Raises:
        SourceError: If there are no weights, no such entry, or more than one that might be meant.
    """
    if key is not None:
        return _named_state(content, path, key)
    if is_state(content):
        return StateDict(_tensors(content), "raw")
    found = {name: value for name, value in _states(content).items() if not _EMA.search(name)}
    averaged = [name for name in _states(content) if _EMA.search(name)]
    raw = next((name for name in RAW_KEYS if name in found), None)
    if raw is None and len(found) == 1:
        raw = next(iter(found))
    if raw is None:
        raise SourceError(
            f"{path} holds {_shape_of(content)}; expected a state dict, alone or under one of {list(RAW_KEYS)}. "
            f"Name the entry that holds the weights (weights=)."
        )
    notes = [f"The weights are the checkpoint's entry {raw!r}."]
    if averaged:
        notes.append(
            f"The checkpoint also holds averaged weights ({', '.join(averaged)}), which were not taken; "
            f"pass weights={averaged[0]!r} for them."
        )
    return StateDict(_tensors(found[raw]), f"raw: checkpoint entry {raw}", tuple(notes))


def _named_state(content: Any, path: Path, key: str) -> StateDict:
    value = content
    for part in key.split("."):
        if not isinstance(value, Mapping) or part not in value:
            raise SourceError(f"{path} has no entry {key!r}; it holds {_shape_of(content)}.")
        value = value[part]
    if not is_state(value):
        raise SourceError(f"the entry {key!r} of {path} holds {_shape_of(value)}, no weights by name.")
    kind = "ema" if _EMA.search(key) else "raw"
    return StateDict(
        _tensors(value), f"{kind}: checkpoint entry {key}", (f"The weights are the entry {key!r}.",)
    )


def is_state(value: Any) -> bool:
    """Whether a value is weights by name: a dict of texts to tensors, with at least one."""
    return (
        isinstance(value, Mapping)
        and any(isinstance(entry, torch.Tensor) for entry in value.values())
        and all(isinstance(name, str) for name in value)
        and all(
            isinstance(entry, torch.Tensor) or name.endswith("_extra_state") for name, entry in value.items()
        )
    )


def _states(content: Any) -> dict[str, Any]:
    """Entries of a checkpoint that are weights, those of the optimizer excepted."""
    if not isinstance(content, Mapping):
        return {}
    return {
        str(name): value
        for name, value in content.items()
        if is_state(value) and not re.search(r"optim|scheduler|scaler", str(name), re.IGNORECASE)
    }


def _tensors(state: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    return {name: value for name, value in state.items() if isinstance(value, torch.Tensor)}


def _shape_of(content: Any) -> str:
    if isinstance(content, Mapping):
        return f"a dict with the entries {[str(name) for name in list(content)[:12]]}"
    return f"a {type(content).__name__}"


def load_into(module: torch.nn.Module, state: StateDict, path: Path, factory: str) -> list[str]:
    """Put weights into a network that a factory built, every one or none.

    Names are tried as they are, then without the prefix that wrappers put before all of them (`module.` of
    DistributedDataParallel, `_orig_mod.` of torch.compile, `model.` of Lightning).

    Returns:
        Sentences for the manifest.

    Raises:
        SourceError: If names or shapes differ; lists them with the nearest names.
    """
    expected = module.state_dict()
    wanted = {name for name, value in expected.items() if isinstance(value, torch.Tensor)}
    tensors, notes = _fit_names(state.tensors, wanted)
    fault = _difference(tensors, expected, wanted)
    if fault:
        raise SourceError(
            f"{path} does not fit the network of {factory}: {fault}. Use the factory it was trained with."
        )
    module.load_state_dict(tensors, strict=False)
    return [*state.notes, *notes, *_casts(tensors, expected, wanted)]


def _casts(tensors: Mapping[str, torch.Tensor], expected: Mapping[str, Any], wanted: set[str]) -> list[str]:
    pairs = {(tensors[name].dtype, expected[name].dtype) for name in wanted}
    texts = sorted(
        f"{given} in the checkpoint were cast to the network's {own}" for given, own in pairs if given != own
    )
    return [f"Weights that are {text.replace('torch.', '')}." for text in texts]


def _fit_names(
    tensors: dict[str, torch.Tensor], wanted: set[str]
) -> tuple[dict[str, torch.Tensor], list[str]]:
    if wanted <= set(tensors) or not wanted:
        return tensors, []
    plain = {name.replace("_orig_mod.", ""): value for name, value in tensors.items()}
    if len(plain) == len(tensors) and wanted <= set(plain):
        return plain, ["Names in the checkpoint lost the prefix '_orig_mod.'."]
    for prefix in _prefixes(plain, wanted):
        inside = {
            name.removeprefix(prefix): value for name, value in plain.items() if name.startswith(prefix)
        }
        if wanted <= set(inside):
            outside = [name for name in plain if not name.startswith(prefix)]
            notes = [f"Names in the checkpoint lost the prefix {prefix!r}."]
            if outside:
                notes.append(f"Entries outside {prefix!r} were not needed: {_some(outside)}.")
            return inside, notes
    return tensors, []


def _prefixes(tensors: Mapping[str, Any], wanted: set[str]) -> list[str]:
    """What stands before one expected name wherever it ends a name of the checkpoint, the shortest first."""
    probe = max(wanted, key=len)
    found = {name.removesuffix(probe) for name in tensors if name.endswith(f".{probe}")}
    return sorted(found, key=len)


def _difference(tensors: Mapping[str, torch.Tensor], expected: Mapping[str, Any], wanted: set[str]) -> str:
    missing = sorted(wanted - set(tensors))
    unexpected = sorted(set(tensors) - wanted)
    shapes = [
        f"{name} is {list(tensors[name].shape)}, the network has {list(expected[name].shape)}"
        for name in sorted(wanted & set(tensors))
        if tensors[name].shape != expected[name].shape
    ]
    parts = []
    if missing:
        parts.append(f"missing {_some([_with_nearest(name, unexpected) for name in missing])}")
    if unexpected:
        parts.append(f"unexpected {_some(unexpected)}")
    if shapes:
        parts.append(f"other shapes: {_some(shapes)}")
    return "; ".join(parts)


def _with_nearest(name: str, others: Sequence[str]) -> str:
    near = difflib.get_close_matches(name, others, n=1, cutoff=0.5)
    return f"{name} (nearest: {near[0]})" if near else name


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more
