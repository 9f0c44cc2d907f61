"""Weights out of an Orbax directory or a flax.serialization file, and a model of JAX for them.

Nothing of orbax or flax opens the files. An Orbax directory is a list of names (`_METADATA`) and one array for
each, which tensorstore reads; the names are checked before any path is made of them, links are refused, and only
arrays that the model asks for are read, at the shape that it has. A msgpack file is parsed here, and only plain
arrays of numbers are made from it.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from paritygate.converter.checkpoints.files import existing_file, file_sha256
from paritygate.converter.checkpoints.misfit import misfit, some
from paritygate.converter.checkpoints.naming import is_averaged
from paritygate.converter.errors import SourceError

Name = tuple[str, ...]

_ITEMS = ("default", "state", "params", "model", "items")
"""Items of an Orbax step that hold weights, the likeliest first."""

_METADATA_BYTES = 1 << 28
_MAX_DEPTH = 64
_MAX_PREFIX_DEPTH = 4
_MAX_PREFIXES = 256
_BOXES = frozenset({"value", "raw_value"})
"""Names under which nnx writes what a variable holds."""

_PLAIN = re.compile(r"[^/\\\x00]{1,512}")
_ARRAYS = frozenset({"jax.Array", "np.ndarray", "scalar"})


@dataclass(frozen=True)
class Entry:
    """One array of a checkpoint, not yet read.

    Attributes:
        shape: Its sizes.
        dtype: Its element type.
        read: Reads it.
    """

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    read: Callable[[], np.ndarray[Any, Any]]


@dataclass(frozen=True)
class Checkpoint:
    """What a checkpoint holds.

    Attributes:
        path: The directory or file.
        entries: Opens an array by its name; the names in order.
        sha256: Digest of the file, or of all files of the directory with their names.
        step: The step of training that was taken, where the directory holds several.
    """

    path: Path
    entries: Mapping[Name, Callable[[], Entry]]
    sha256: str
    step: str | None = None


def read(path: Path) -> Checkpoint:
    """Open a checkpoint; arrays are read later, one by one.

    Raises:
        SourceNotFound: If there is none.
        SourceError: If it is damaged, or no form that is known.
    """
    if path.is_dir():
        return _read_orbax(path)
    return _read_msgpack(existing_file(path))


# --- Orbax --------------------------------------------------------------------------------------------------


def _read_orbax(path: Path) -> Checkpoint:
    folder, step = _tree_folder(path)
    _refuse_links(folder)
    metadata = _metadata(folder)
    ocdbt, zarr3 = bool(metadata.get("use_ocdbt", True)), bool(metadata.get("use_zarr3", False))
    entries: dict[Name, Callable[[], Entry]] = {}
    for keys in _names(metadata, folder):
        entries[keys] = lambda keys=keys: _open_array(folder, keys, ocdbt, zarr3)  # type: ignore[misc]
    return Checkpoint(path, entries, _digest(folder), step)


def _tree_folder(path: Path) -> tuple[Path, str | None]:
    """The folder with the arrays: the checkpoint itself, an item of it, or one of the last step of training."""
    step = None
    if not (path / "_METADATA").is_file():
        steps = [p for p in path.iterdir() if p.is_dir() and re.fullmatch(r"(?:\w+_)?\d+", p.name)]
        whole = [p for p in steps if (p / "_CHECKPOINT_METADATA").is_file()]
        if whole:
            path = max(whole, key=lambda p: int(p.name.rpartition("_")[2]))
            step = path.name
    if (path / "_METADATA").is_file():
        return path, step
    items = sorted(p.name for p in path.iterdir() if (p / "_METADATA").is_file())
    known = [name for name in _ITEMS if name in items] or (items if len(items) == 1 else [])
    if known:
        return path / known[0], step
    if items:
        raise SourceError(
            f"{path} holds the items {items}; pass the folder of the one that holds the weights."
        )
    if any(part.name.endswith(".orbax-checkpoint-tmp") for part in path.iterdir()):
        raise SourceError(f"{path} was never finished: Orbax had not yet renamed it; take an earlier step.")
    raise SourceError(
        f"{path} has no _METADATA, the list of its arrays; it is a half-written Orbax checkpoint, or none at all. "
        f"Save it again, or take an earlier step."
    )


def _refuse_links(folder: Path) -> None:
    for part in (folder, *folder.rglob("*")):
        if part.is_symlink() or not (part.is_dir() or part.is_file()):
            raise SourceError(
                f"{part} is a link or no plain file; a checkpoint may read nothing outside its own directory. "
                f"Copy it with its content (cp -rL)."
            )


def _metadata(folder: Path) -> dict[str, Any]:
    file = folder / "_METADATA"
    damaged = SourceError(
        f"{file} is damaged: it is no JSON with a tree_metadata; save the checkpoint again."
    )
    if file.stat().st_size > _METADATA_BYTES:
        raise damaged
    try:
        found = json.loads(file.read_bytes())
    except (ValueError, RecursionError) as error:
        raise damaged from error
    if not isinstance(found, dict) or not isinstance(found.get("tree_metadata"), dict):
        raise damaged
    return found


def _names(metadata: Mapping[str, Any], folder: Path) -> Iterator[Name]:
    for shown, leaf in metadata["tree_metadata"].items():
        try:
            keys = tuple(str(part["key"]) for part in leaf["key_metadata"])
            kind = leaf["value_metadata"]["value_type"]
            is_array = kind in _ARRAYS
        except (KeyError, TypeError) as error:  # TypeError also of what cannot be looked up
            raise SourceError(
                f"{folder / '_METADATA'} is damaged at {shown[:80]!r}; save it again."
            ) from error
        if not keys or any(not _PLAIN.fullmatch(key) or key in (".", "..") for key in keys):
            raise SourceError(
                f"{folder / '_METADATA'} names an array {shown[:80]!r}; expected keys without '/', so that "
                f"nothing outside the directory is read."
            )
        if is_array:
            yield keys


def _open_array(folder: Path, keys: Name, ocdbt: bool, zarr3: bool) -> Entry:
    import tensorstore

    name, root = ".".join(keys), f"{folder.resolve()}/"
    base = {"driver": "file", "path": root}
    kvstore = (
        {"driver": "ocdbt", "base": base, "path": f"{name}/"}
        if ocdbt
        else {"driver": "file", "path": f"{root}{name}/"}
    )
    try:
        store = tensorstore.open(
            {"driver": "zarr3" if zarr3 else "zarr", "kvstore": kvstore}, read=True, open=True
        ).result()
        shape, chunk = tuple(store.shape), tuple(store.chunk_layout.read_chunk.shape or store.shape)
        dtype = np.dtype(store.dtype.numpy_dtype)
    except (ValueError, OSError, RuntimeError, TypeError, LookupError, OverflowError) as error:
        raise SourceError(f"{folder} has no whole array {name!r}: {_first(error)}; save it again.") from error
    if any(part > max(size, 1) for part, size in zip(chunk, shape, strict=True)) or dtype.kind == "O":
        raise SourceError(
            f"{folder} has an array {name!r} in parts {chunk} of {shape} {dtype}; it is damaged."
        )

    def values() -> np.ndarray[Any, Any]:
        try:
            return np.asarray(store.read().result())
        except (ValueError, OSError, RuntimeError) as error:
            raise SourceError(
                f"{folder} has no whole array {name!r}: {_first(error)}; save it again."
            ) from error

    return Entry(shape, dtype, values)


def _digest(folder: Path) -> str:
    whole = hashlib.sha256()
    for part in sorted(p for p in folder.rglob("*") if p.is_file()):
        whole.update(f"{part.relative_to(folder).as_posix()}\0{file_sha256(part)}\n".encode())
    return whole.hexdigest()


# --- flax.serialization -------------------------------------------------------------------------------------

_ARRAY, _COMPLEX, _SCALAR = 1, 2, 3
"""Kinds of msgpack's extension types, as flax numbers them."""


def _read_msgpack(path: Path) -> Checkpoint:
    import msgpack

    damaged = f"{path} is no whole Flax msgpack file"
    try:
        tree = msgpack.unpackb(path.read_bytes(), ext_hook=_extension, raw=False, strict_map_key=False)
        entries = dict(_leaves(tree, ()))
    except (
        ValueError, TypeError, LookupError, AttributeError, OverflowError, RecursionError,
        msgpack.exceptions.UnpackException,
    ) as error:  # fmt: skip
        raise SourceError(
            f"{damaged}: {_first(error)}; save it again (flax.serialization.to_bytes)."
        ) from error
    if not entries:
        raise SourceError(f"{damaged}: it holds no array; expected what flax.serialization.to_bytes gave.")
    return Checkpoint(path, entries, file_sha256(path))


def _extension(kind: int, data: bytes) -> Any:
    import msgpack

    if kind == _COMPLEX:
        return complex(*msgpack.unpackb(data))
    if kind not in (_ARRAY, _SCALAR):
        raise ValueError(f"it has an extension of the unknown kind {kind}")
    shape, dtype, buffer = msgpack.unpackb(data, raw=True)
    name = dtype.decode()
    known = np.dtype(getattr(ml_dtypes, name, name))
    if known.kind not in "biufc" and known.type.__module__ != "ml_dtypes":
        raise ValueError(f"it has an array of {name}")
    return np.frombuffer(buffer, known).reshape(tuple(shape))


def _leaves(value: Any, name: Name) -> Iterator[tuple[Name, Callable[[], Entry]]]:
    if len(name) > _MAX_DEPTH:
        raise ValueError("its tree is deeper than any network")
    if isinstance(value, dict) and "__msgpack_chunked_array__" in value:
        parts = [value["chunks"][str(index)] for index in range(len(value["chunks"]))]
        shape = tuple(int(value["shape"][str(index)]) for index in range(len(value["shape"])))
        value = np.concatenate([part.ravel() for part in parts]).reshape(shape)
    if isinstance(value, dict):
        for key, part in value.items():
            yield from _leaves(part, (*name, str(key)))
    elif isinstance(value, np.ndarray | bool | int | float | complex):
        array = np.asarray(value)
        yield name, lambda: Entry(array.shape, array.dtype, lambda: array)


def _first(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines[0] if lines else type(error).__name__)[:200].rstrip(".")


# --- into a model -------------------------------------------------------------------------------------------

_STATE_OF_TRAINING = {
    "opt", "optimizer", "optim", "tx", "ema", "averaged", "average", "averages", "avg", "metric", "metrics",
    "loss", "scaler", "rng", "rngs", "prng", "dropout",
}  # fmt: skip
_ITS_KIND = {
    "state",
    "states",
    "params",
    "variables",
    "batch",
    "stats",
    "scale",
    "shadow",
    "model",
    "key",
    "keys",
}
_COUNTERS = {
    "step",
    "steps",
    "epoch",
    "epochs",
    "count",
    "counter",
    "iteration",
    "key",
    "global",
    "num",
    "train",
}


def _is_training(name: Name) -> bool:
    """Whether an entry is what training keeps beside the weights: `opt_state`, `ema_params`, a lone `step`.

    Every word of its name has to say so: `step_embed` and `opt_head` are layers.
    """
    words = set(name[0].lower().split("_"))
    state = bool(words & _STATE_OF_TRAINING) and words <= _STATE_OF_TRAINING | _ITS_KIND
    return state or (len(name) == 1 and words <= _COUNTERS)


def _is_random_stream(name: Name, found: Mapping[Name, Callable[[], Entry]]) -> bool:
    """Whether an entry is the state of a generator, which nnx keeps as a `count` beside a `key`.

    They stand wherever a module holds one, usually as `rngs` of a Dropout; whole numbers without sign are what
    tells them from weights of these names.

    Raises:
        SourceError: If such an entry is damaged.
    """
    bare, box = (name[:-1], name[-1:]) if name[-1] in _BOXES else (name, ())
    other = {"count": "key", "key": "count"}.get(bare[-1]) if len(bare) > 1 else None
    if other is None:
        return False
    beside = (*bare[:-1], other, *box)
    if "rngs" not in bare[:-1] and beside not in found:
        return False
    pair = [found[part]() for part in (name, beside) if part in found]
    return all(entry.dtype.kind == "u" for entry in pair)


def take(
    checkpoint: Checkpoint,
    wanted: Mapping[Name, tuple[tuple[int, ...], Any]],
    entry: str | None,
    factory: str,
) -> tuple[dict[Name, np.ndarray[Any, Any]], str, list[str]]:
    """The values for every weight that a model wants.

    Args:
        checkpoint: What was read.
        wanted: Shape and type by name.
        entry: The entry that holds the weights, dots go deeper; None finds it.
        factory: Who built the model, for the text of errors.

    Returns:
        Values in the wanted types; which weights they are, in words; sentences for the manifest.

    Raises:
        SourceError: If names or shapes differ; lists them with the nearest names.
    """
    found, selection, notes = _selected(checkpoint, wanted, entry)
    tops = {name[0] for name in wanted}
    unasked = [name for name in found if name not in wanted]
    streams = [name for name in unasked if _is_random_stream(name, found)]
    extra = [name for name in unasked if name not in streams]
    unexpected = [name for name in extra if name[0] in tops or not _is_training(name)]
    opened = {name: found[name]() for name in wanted if name in found}
    shapes = {_shown(name): value.shape for name, value in opened.items()}
    types = [
        f"{_shown(name)} is {value.dtype}, the model has {np.dtype(wanted[name][1])}"
        for name, value in opened.items()
        if not _means_the_same(value.dtype, np.dtype(wanted[name][1]))
    ]
    fault = misfit(
        {**dict.fromkeys(map(_shown, unexpected), ()), **shapes},
        {_shown(name): shape for name, (shape, _) in wanted.items()},
        owner="the model",
        types=types,
    )
    if fault:
        raise SourceError(
            f"{checkpoint.path} does not fit the model of {factory}: {fault}. Use the factory it was trained with."
        )
    if streams:
        shown = some([_shown(name) for name in streams])
        notes.append(f"The states of random generators are no weights and were left out: {shown}.")
    if extra:
        tops_left = sorted({name[0] for name in extra})
        notes.append(f"Entries beside the weights were not needed: {some(tops_left)}.")
    casts = sorted({(str(v.dtype), str(np.dtype(wanted[n][1]))) for n, v in opened.items()})
    notes += [
        f"Weights that are {a} in the checkpoint were cast to the model's {b}." for a, b in casts if a != b
    ]
    values = {name: value.read().astype(wanted[name][1], copy=False) for name, value in opened.items()}
    return values, selection, notes


def _selected(
    checkpoint: Checkpoint, wanted: Mapping[Name, Any], entry: str | None
) -> tuple[dict[Name, Callable[[], Entry]], str, list[str]]:
    step = (
        [f"The weights are those of step {checkpoint.step}, the last that is whole."]
        if checkpoint.step
        else []
    )
    if entry is not None:
        prefix = tuple(entry.split("."))
        inside = _below(checkpoint.entries, prefix)
        if not inside:
            tops = sorted({name[0] for name in checkpoint.entries})
            raise SourceError(f"{checkpoint.path} has no entry {entry!r}; it holds {some(tops)}.")
        kind = "ema" if is_averaged(entry) else "raw"
        best = _best(inside, wanted)
        return best, f"{kind}: checkpoint entry {entry}", [*step, f"The weights are the entry {entry!r}."]
    prefixes = {
        name[:depth] for name in checkpoint.entries for depth in range(min(len(name), _MAX_PREFIX_DEPTH))
    }
    plain = sorted(
        (p for p in prefixes if not any(_is_training((part,)) for part in p)), key=lambda p: (len(p), p)
    )
    for prefix in _likely(plain, checkpoint.entries, wanted):
        inside = _best(_below(checkpoint.entries, prefix), wanted)
        if wanted.keys() <= inside.keys():
            note = [f"The weights are the entry {_shown(prefix)!r}."] if prefix else []
            said = f"raw: checkpoint entry {_shown(prefix)}" if prefix else "raw"
            return inside, said, [*step, *note]
    return _best(dict(checkpoint.entries), wanted), "raw", step


def _likely(prefixes: list[Name], entries: Mapping[Name, Any], wanted: Mapping[Name, Any]) -> list[Name]:
    """The prefixes below which a wanted name stands, told by its last part; looking below each takes long."""
    if not wanted:
        return prefixes[:_MAX_PREFIXES]
    last = next(iter(wanted))[-1]
    holding = {
        name[:depth]
        for name in entries
        if last in name[-2:]
        for depth in range(min(len(name), _MAX_PREFIX_DEPTH))
    }
    return [prefix for prefix in prefixes if prefix in holding][:_MAX_PREFIXES]


def _below(entries: Mapping[Name, Callable[[], Entry]], prefix: Name) -> dict[Name, Callable[[], Entry]]:
    size = len(prefix)
    return {
        name[size:]: value for name, value in entries.items() if name[:size] == prefix and len(name) > size
    }


def _best(
    entries: Mapping[Name, Callable[[], Entry]], wanted: Mapping[Name, Any]
) -> dict[Name, Callable[[], Entry]]:
    """The entries under the model's names: nnx writes each variable as a box with its value in it."""
    if {name[0] for name in wanted} == {"params"} and not any(name[0] == "params" for name in entries):
        entries = {("params", *name): value for name, value in entries.items()}
    return {
        name[:-1] if name not in wanted and name[-1] in _BOXES and name[:-1] in wanted else name: value
        for name, value in entries.items()
    }


def _means_the_same(given: np.dtype[Any], wanted: np.dtype[Any]) -> bool:
    """Whether one type may stand for another: a narrower float may, a part of a complex number may not."""
    return given == wanted or (_is_float(given) and _is_float(wanted)) or given.kind == wanted.kind in "iu"


def _is_float(dtype: np.dtype[Any]) -> bool:
    return dtype.kind == "f" or (dtype.type.__module__ == "ml_dtypes" and "float" in dtype.name)


def _shown(name: Name) -> str:
    return ".".join(name)
