"""The weights inside a PyTorch checkpoint, and a network for them: which entry, which names, what does not fit."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from paritygate.converter.checkpoints.inert_pickle import Stub
from paritygate.converter.checkpoints.misfit import misfit, some
from paritygate.converter.checkpoints.naming import is_averaged, is_of_training
from paritygate.converter.checkpoints.torch_archive import ITEM_BYTES, Archive, BadArchive, TensorRef
from paritygate.converter.errors import SourceError

RAW_KEYS = ("state_dict", "model_state_dict", "model_state", "model", "module", "network", "net", "weights")
"""Keys under which training scripts keep the weights, the most telling first."""

_MAX_PREFIXES = 16
_MAX_DEPTH = 256
_MAX_LETTERS = 2**26
"""Letters in all names of the parts of one file, and a few for each part: a million weights with long names."""


@dataclass(frozen=True)
class Checkpoint:
    """What a file holds.

    Attributes:
        path: The file.
        content: Its structure; tensors are torch's, or `TensorRef`s into `archive`.
        archive: The file itself where tensors are still in it.
    """

    path: Path
    content: Any
    archive: Archive | None = None

    def tensors(self, weights: Mapping[str, Any]) -> dict[str, torch.Tensor]:
        """Weights with their values, read where they are still in the file; shared memory stays shared.

        Raises:
            SourceError: If the file is damaged there.
        """
        buffers: dict[str, bytearray] = {}
        return {
            name: self._read(value, buffers) if isinstance(value, TensorRef) else value
            for name, value in weights.items()
            if isinstance(value, torch.Tensor | TensorRef)
        }

    def _read(self, tensor: TensorRef, buffers: dict[str, bytearray]) -> torch.Tensor:
        assert self.archive is not None
        key = tensor.storage.key
        try:
            if key not in buffers:
                buffers[key] = self.archive.read(tensor.storage)
            return _view(buffers[key], tensor)
        except (BadArchive, ValueError, RuntimeError) as error:
            raise SourceError(
                f"{self.path} cannot be read as a PyTorch file: {str(error).splitlines()[0]}; it is damaged."
            ) from error
        except AttributeError as error:
            raise SourceError(
                f"{self.path} holds a tensor of the dtype {tensor.dtype}, which torch {torch.__version__} lacks; "
                "upgrade torch."
            ) from error


def _view(data: bytearray, tensor: TensorRef) -> torch.Tensor:
    """The values of a tensor in the bytes of its storage, which are not copied."""
    dtype = getattr(torch, tensor.dtype)
    count = len(data) // ITEM_BYTES[tensor.dtype]
    flat = torch.frombuffer(data, dtype=dtype, count=count) if count else torch.empty(0, dtype=dtype)
    return flat.as_strided(tensor.shape, tensor.stride, tensor.offset)


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


def select_state(checkpoint: Checkpoint, key: str | None) -> StateDict:
    """The weights inside what a file held: a plain state dict, or a training checkpoint that keeps one.

    Args:
        checkpoint: What the file holds.
        key: The entry that the user asked for, dots for nested ones; None takes the raw weights.

    Raises:
        SourceError: If there are no weights, no such entry, or more than one that might be meant.
    """
    content, path = checkpoint.content, checkpoint.path
    if key is not None:
        return _named_state(checkpoint, key)
    whole = weights_in(content)
    if whole is not None:
        return StateDict(checkpoint.tensors(whole), "raw", _said_of_module(content, "the file"))
    states = _states(content)
    found = {name: value for name, value in states.items() if not is_averaged(name)}
    averaged = [name for name in states if is_averaged(name)]
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
    notes += _said_of_module(as_mapping(content)[raw], f"the entry {raw!r}")
    return StateDict(checkpoint.tensors(found[raw]), f"raw: checkpoint entry {raw}", tuple(notes))


def _named_state(checkpoint: Checkpoint, key: str) -> StateDict:
    path, value = checkpoint.path, checkpoint.content
    for part in key.split("."):
        entries = as_mapping(value)
        if part not in entries:
            raise SourceError(f"{path} has no entry {key!r}; it holds {_shape_of(checkpoint.content)}.")
        value = entries[part]
    weights = weights_in(value)
    if weights is None:
        raise SourceError(f"the entry {key!r} of {path} holds {_shape_of(value)}, no weights by name.")
    kind = "ema" if is_averaged(key) else "raw"
    notes = (f"The weights are the entry {key!r}.", *_said_of_module(value, f"the entry {key!r}"))
    return StateDict(checkpoint.tensors(weights), f"{kind}: checkpoint entry {key}", notes)


def has_weights(content: Any) -> bool:
    """Whether there are weights anywhere where they are looked for."""
    return weights_in(content) is not None or bool(_states(content))


def is_module(value: Any) -> bool:
    """Whether a value is a whole network that was pickled, left as it stands in the file."""
    return isinstance(value, Stub) and isinstance(value.state, dict) and "_modules" in value.state


class _Budget:
    """What may still be looked at: parts of a pickle can lie in many others, and in themselves."""

    def __init__(self) -> None:
        self._left = _MAX_LETTERS

    def spend(self, name: str) -> None:
        """Count one part under its full name.

        Raises:
            SourceError: If there were more of them than in any network.
        """
        self._left -= 16 + len(name)
        if self._left < 0 or name.count(".") > _MAX_DEPTH:
            raise SourceError(
                "the pickled network contains itself, or has more parts than any real one; it was not read. Save "
                "model.state_dict() and give a factory."
            )


def weights_in(value: Any, budget: _Budget | None = None) -> Mapping[str, Any] | None:
    """Weights by name: a dict of texts to tensors, with at least one, or those of a pickled network; else None.

    Raises:
        SourceError: If it is a pickled network with more parts than any.
    """
    if is_module(value):
        return dict(_module_weights(value, budget or _Budget())) or None
    entries = as_mapping(value)
    tensors = [name for name, entry in entries.items() if isinstance(entry, torch.Tensor | TensorRef)]
    others = entries.keys() - set(tensors)
    named = all(isinstance(name, str) for name in entries)
    return entries if tensors and named and all(name.endswith("_extra_state") for name in others) else None


def as_mapping(value: Any) -> Mapping[Any, Any]:
    """The entries of a dict of whatever kind; empty for anything else."""
    if isinstance(value, Stub):
        return value.entries
    return value if isinstance(value, Mapping) else {}


def _module_weights(module: Stub, budget: _Budget) -> Iterator[tuple[str, TensorRef]]:
    """What `state_dict()` of a pickled network would give, from the places where every module keeps it.

    Raises:
        SourceError: If it has more parts than any network.
    """
    pending = [("", module)]
    while pending:
        prefix, part = pending.pop()
        skipped = _names_in(part.state.get("_non_persistent_buffers_set"), budget)
        for group in ("_parameters", "_buffers"):
            for name, value in as_mapping(part.state.get(group)).items():
                budget.spend(f"{prefix}{name}")
                if isinstance(value, TensorRef) and name not in skipped:
                    yield f"{prefix}{name}", value
        for name, child in as_mapping(part.state.get("_modules")).items():
            budget.spend(f"{prefix}{name}.")
            if is_module(child):
                pending.append((f"{prefix}{name}.", child))


def _names_in(value: Any, budget: _Budget) -> frozenset[str]:
    members = value.items if isinstance(value, Stub) else value
    listed = members if isinstance(members, list | tuple) else ()
    for _ in listed:  # one list may lie in many parts, and is gone through for each
        budget.spend("")
    return frozenset(member for member in listed if isinstance(member, str))


def _said_of_module(value: Any, where: str) -> tuple[str, ...]:
    if not is_module(value):
        return ()
    return (
        f"The weights were taken out of {where}, a whole pickled network ({value}), without running its code.",
    )


def _states(content: Any) -> dict[str, Mapping[str, Any]]:
    """Entries of a checkpoint that are weights, those of the optimizer excepted; each is looked into once."""
    found = {}
    budget = _Budget()
    seen: dict[int, Mapping[str, Any] | None] = {}
    for name, value in as_mapping(content).items():
        if not isinstance(value, Stub | Mapping) or is_of_training(str(name)):
            continue
        if id(value) not in seen:
            seen[id(value)] = weights_in(value, budget)
        weights = seen[id(value)]
        if weights is not None:
            found[str(name)] = weights
    return found


def _shape_of(content: Any) -> str:
    if as_mapping(content) or isinstance(content, Mapping):
        return f"a dict with the entries {[str(name)[:80] for name in list(as_mapping(content))[:12]]}"
    return f"a {content}" if isinstance(content, Stub) else f"a {type(content).__name__}"


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
    fault = misfit(_shapes(tensors), _shapes({name: expected[name] for name in wanted}))
    if fault:
        raise SourceError(
            f"{path} does not fit the network of {factory}: {fault}. Use the factory it was trained with."
        )
    module.load_state_dict(tensors, strict=False)
    return [*state.notes, *notes, *_casts(tensors, expected, wanted)]


def _shapes(tensors: Mapping[str, torch.Tensor]) -> dict[str, Sequence[int]]:
    return {name: tensor.shape for name, tensor in tensors.items()}


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
                notes.append(f"Entries outside {prefix!r} were not needed: {some(outside)}.")
            return inside, notes
    return tensors, []


def _prefixes(tensors: Mapping[str, Any], wanted: set[str]) -> list[str]:
    """What stands before one expected name wherever it ends a name of the checkpoint, the shortest first."""
    probe = max(wanted, key=len)
    found = {name.removesuffix(probe) for name in tensors if name.endswith(f".{probe}")}
    return sorted(found, key=len)[:_MAX_PREFIXES]
