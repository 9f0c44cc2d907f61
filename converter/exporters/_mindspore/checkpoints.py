"""MindSpore checkpoints: read without MindSpore's own loader, which trusts the sizes that a file claims.

A `.ckpt` is a row of protobuf messages, the named tensors, a tensor in several pieces where it is large, and
sometimes a checksum at the end. Nothing of it can run code. What a training run keeps beside the weights (moments,
step counters) is told by its names and left alone.
"""

from __future__ import annotations

import binascii
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from google.protobuf.message import DecodeError

from paritygate.converter.checkpoints.misfit import misfit, some
from paritygate.converter.checkpoints.sniffing import Form, look_at
from paritygate.converter.errors import SourceError
from paritygate.converter.types import Array

_CHECKSUM = b"crc_num"
_CHECKSUM_BYTES = 17
_TYPES = {
    "Int8": "int8", "UInt8": "uint8", "Int16": "int16", "UInt16": "uint16", "Int32": "int32", "UInt32": "uint32",
    "Int64": "int64", "UInt64": "uint64", "Float16": "float16", "Float32": "float32", "Float64": "float64",
    "Bool": "bool",
}  # fmt: skip
_SLOTS = {
    "moments", "moment", "moment1", "moment2", "accum", "accumulation", "accum_grad", "accu_grads", "stat",
    "stats", "mean_square", "mean_grad", "moving_mean_grad", "velocity", "rms", "exp_avg", "exp_avg_sq",
    "grad_sum", "linear", "prev", "m", "v",
}  # fmt: skip
"""First words of an optimiser's own tensors; never taken for a prefix of the weights."""
_COUNTERS = {
    "learning_rate", "lr", "momentum", "beta1_power", "beta2_power", "global_step", "epoch_num", "step_num",
    "scale_sense", "current_iterator_step", "last_overflow_iterator_step", "weight_decay", "loss_scale", "iters",
    "batch_num", "append_dict", "random_op", "remove_redundancy", "network.global_step", "accum_step", "state",
}  # fmt: skip
"""Names of what a training run counts."""
_ENTRY = 0x0A
"""Tag of `repeated Value value = 1`, all there is in a checkpoint."""


def read_checkpoint(path: Path) -> dict[str, Array]:
    """All tensors of a checkpoint by name.

    Raises:
        SourceError: If it is damaged, encrypted, or no checkpoint.
    """
    if look_at(path) is Form.SAFETENSORS:
        return _read_safetensors(path)
    content = path.read_bytes()
    if content[-_CHECKSUM_BYTES:-10] == _CHECKSUM:
        content, told = content[:-_CHECKSUM_BYTES], int.from_bytes(content[-10:], "big")
        if binascii.crc32(content) != told:
            raise SourceError(
                f"{path} is damaged: its checksum is {binascii.crc32(content)}, it says {told}."
            )
    try:
        found = dict(_tensors(_entries(content), path))
    except (DecodeError, IndexError) as error:
        raise SourceError(
            f"{path} cannot be read as a MindSpore checkpoint; it is damaged, half-written or encrypted. Write it "
            f"again with ms.save_checkpoint, without enc_key."
        ) from error
    if not found:
        raise SourceError(f"{path} holds no tensor; expected a checkpoint of ms.save_checkpoint.")
    return found


def _entries(content: bytes) -> list[Any]:
    """The entries of the file, each a message of its own: a whole checkpoint may exceed the 2 GiB of one message.

    Raises:
        DecodeError: If it is no row of entries.
        IndexError: If it ends within one.
    """
    from mindspore.train.checkpoint_pb2 import Checkpoint

    entries, start = [], 0
    while start < len(content):
        if content[start] != _ENTRY:
            raise DecodeError("another field than an entry")
        size, start = _varint(content, start + 1)
        if start + size > len(content):
            raise IndexError("an entry is cut")
        entries.append(Checkpoint.Value.FromString(content[start : start + size]))
        start += size
    return entries


def _varint(content: bytes, start: int) -> tuple[int, int]:
    """A whole number as protobuf writes it, and where it ends."""
    number = 0
    for place in range(10):
        byte = content[start + place]
        number |= (byte & 0x7F) << (7 * place)
        if byte < 0x80:
            return number, start + place + 1
    raise DecodeError("a number without end")


def _tensors(entries: Sequence[Any], path: Path) -> Iterator[tuple[str, Array]]:
    """Named arrays; pieces of one tensor follow each other."""
    pieces: list[bytes] = []
    for index, entry in enumerate(entries):
        if not entry.HasField("tensor"):
            raise SourceError(
                f"{path} holds {entry.tag!r} as a hash table (MapParameter), which no ONNX model has."
            )
        pieces.append(entry.tensor.tensor_content)
        if index + 1 < len(entries) and entries[index + 1].tag == entry.tag:
            continue
        content, pieces = b"".join(pieces), []
        if entry.tensor.tensor_type != "str":  # a text that save_checkpoint keeps beside the weights
            yield entry.tag, _array(entry.tag, entry.tensor, content, path)


def _array(name: str, tensor: Any, content: bytes, path: Path) -> Array:
    kind = tensor.tensor_type
    if kind != "BFloat16" and kind not in _TYPES:
        raise SourceError(f"{path} holds {name!r} as {kind!r}; expected one of {sorted(_TYPES)}.")
    dtype = np.dtype(ml_dtypes.bfloat16) if kind == "BFloat16" else np.dtype(_TYPES[kind])
    sizes = [] if list(tensor.dims) == [0] else list(tensor.dims)
    count = int(np.prod(sizes, dtype=object)) if sizes else 1
    if len(content) != count * dtype.itemsize or any(size < 0 for size in sizes):
        raise SourceError(
            f"{path} is damaged: {name!r} holds {len(content)} bytes, but its sizes {sizes} of {dtype} need "
            f"{count * dtype.itemsize}."
        )
    return np.frombuffer(content, dtype).reshape(sizes)


def _read_safetensors(path: Path) -> dict[str, Array]:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(str(path), framework="np") as file:
            return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - it is no mapping
    except (SafetensorError, TypeError, ValueError, OSError) as error:
        raise SourceError(f"{path} cannot be read as safetensors: {str(error).splitlines()[0]}.") from error


# --- into a cell --------------------------------------------------------------------------------------------


def load_into(
    cell: Any, weights: Mapping[str, Array], path: Path, factory: str, key: str | None = None
) -> list[str]:
    """Put the weights of a checkpoint into a cell that a factory built, every one or none.

    Names are tried as they are, then without what training put before all of them (`network.`, `_backbone.`).

    Args:
        cell: The cell; its weights are replaced.
        weights: Tensors by name.
        path: Where they are from, for the text of an error.
        factory: What built the cell, likewise.
        key: The first part of the names of the weights to take, such as `ema`; None takes the raw ones.

    Returns:
        Sentences for the manifest.

    Raises:
        SourceError: If names or shapes differ; lists them with the nearest names.
    """
    import mindspore as ms

    expected = {parameter.name: parameter for parameter in cell.get_parameters()}
    chosen = _under(weights, key, path) if key is not None else dict(weights)
    tensors, notes = _fit_names(chosen, set(expected))
    fault = misfit(
        {name: value.shape for name, value in tensors.items()},
        {name: value.shape for name, value in expected.items()},
    )
    if fault:
        raise SourceError(
            f"{path} does not fit the network of {factory}: {fault}. Use the factory it was trained with."
        )
    casts = set()
    for name, parameter in expected.items():
        value = _as_tensor(tensors[name])
        if value.dtype != parameter.dtype:
            casts.add(
                f"Weights that are {value.dtype} in the checkpoint were cast to the network's {parameter.dtype}."
            )
            value = value.astype(parameter.dtype)
        parameter.set_data(ms.Tensor(value))
    return [*notes, *sorted(casts)]


def _as_tensor(array: Array) -> Any:
    from paritygate.converter.exporters._mindspore.calls import to_tensor

    return to_tensor(array)


def _under(weights: Mapping[str, Array], key: str, path: Path) -> dict[str, Array]:
    inside = {
        name.removeprefix(f"{key}."): array for name, array in weights.items() if name.startswith(f"{key}.")
    }
    if not inside:
        first = sorted({name.partition(".")[0] for name in weights})
        raise SourceError(f"{path} has no weights under {key!r}; its names begin with {first[:12]}.")
    return inside


def _fit_names(weights: dict[str, Array], wanted: set[str]) -> tuple[dict[str, Array], list[str]]:
    """The weights under the cell's names, and what was said of the rest."""
    if wanted <= set(weights):
        return _without_rest(weights, wanted, "")
    for prefix in _prefixes(weights, wanted):
        inside = {
            name.removeprefix(prefix): array for name, array in weights.items() if name.startswith(prefix)
        }
        if wanted <= set(inside):
            kept, notes = _without_rest(weights, {prefix + name for name in wanted}, prefix)
            return {name.removeprefix(prefix): array for name, array in kept.items()}, [
                f"Names in the checkpoint lost the prefix {prefix!r}.", *notes
            ]  # fmt: skip
    rest = [name for name in weights if name not in wanted and _is_rest(name, set(weights))]
    return {name: array for name, array in weights.items() if name not in rest}, []


def _without_rest(
    weights: dict[str, Array], taken: set[str], prefix: str
) -> tuple[dict[str, Array], list[str]]:
    """Leave out what an optimiser and counters keep; anything else that is left over stays, and is an error."""
    rest = [
        name
        for name in weights
        if name not in taken and _is_rest(name.removeprefix(prefix), set(weights) | taken)
    ]
    kept = {name: array for name, array in weights.items() if name not in rest}
    if not rest:
        return kept, []
    return kept, [f"State of the training run was left out: {some(sorted(rest))}."]


def _is_rest(name: str, names: set[str]) -> bool:
    """Whether an entry is a counter, or repeats a weight under a slot's name."""
    first, _, tail = name.partition(".")
    return (
        name in _COUNTERS
        or name.rpartition(".")[2] in _COUNTERS
        or (bool(tail) and (first in _SLOTS or tail in names))
    )


def _prefixes(weights: Mapping[str, Array], wanted: set[str]) -> list[str]:
    """What stands before one expected name wherever it ends a name of the checkpoint, the shortest first."""
    if not wanted:
        return []
    probe = max(wanted, key=lambda name: (len(name), name))
    found = {name.removesuffix(probe) for name in weights if name.endswith(f".{probe}")}
    return sorted((p for p in found if p.partition(".")[0] not in _SLOTS), key=len)
