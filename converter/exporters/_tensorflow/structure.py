"""The tensors in whatever structure a model answers with, in order and with names."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from paritygate.converter.errors import ExportError

Path: TypeAlias = "tuple[str | int, ...]"
"""The keys and positions that lead to a tensor."""


def flatten(
    answer: Any, path: Path = (), convert: Callable[[Any, Path], Any] | None = None
) -> list[tuple[Path, Any]]:
    """The tensors of a model's answer with their paths: dicts in their own order, None left out.

    Args:
        answer: What the model gave.
        path: Where it stands in a larger answer.
        convert: Makes a tensor of a leaf; None makes it one of TensorFlow's.

    Raises:
        ExportError: If something in it is not a dense tensor.
    """
    convert = convert or _dense
    if answer is None:
        return []
    if isinstance(answer, Mapping):
        return [leaf for key, item in answer.items() for leaf in flatten(item, (*path, str(key)), convert)]
    if isinstance(answer, tuple) and hasattr(answer, "_fields"):
        pairs = zip(answer._fields, answer, strict=True)
        return [leaf for key, item in pairs for leaf in flatten(item, (*path, key), convert)]
    if isinstance(answer, list | tuple):
        return [leaf for k, item in enumerate(answer) for leaf in flatten(item, (*path, k), convert)]
    return [(path, convert(answer, path))]


def _dense(answer: Any, path: Path) -> Any:
    import tensorflow as tf

    if isinstance(answer, tf.RaggedTensor | tf.SparseTensor):
        raise ExportError(
            f"the model gives a {type(answer).__name__}{_at(path)}; served models give dense tensors. "
            "Add .to_tensor() or tf.sparse.to_dense to it."
        )
    try:
        return tf.convert_to_tensor(answer)
    except (TypeError, ValueError) as error:
        raise ExportError(f"the model gives a {type(answer).__name__}{_at(path)}, not a tensor.") from error


def _at(path: Path) -> str:
    return f" at output {'/'.join(map(str, path))}" if path else ""


def name_outputs(
    leaves: Sequence[tuple[Path, Any]], positional: Sequence[str], taken: Sequence[str] = ()
) -> list[tuple[str, Any]]:
    """Each tensor with its name: the keys on its path, or for one given by position the name at that position.

    A name that an input or an earlier output has gets a number: in a graph every value has its own.
    """
    if not leaves:
        raise ExportError("the model gives no tensor at all.")
    fitting = positional if len(positional) == len(leaves) else ()
    named: list[tuple[str, Any]] = []
    for k, (path, tensor) in enumerate(leaves):
        if any(isinstance(part, str) for part in path):
            name = "_".join(map(str, path))
        elif fitting:
            name = fitting[k]
        else:
            name = "output" if len(leaves) == 1 else f"output_{k}"
        named.append((unused_name(name, {*taken, *(n for n, _ in named)}), tensor))
    return named


def unused_name(name: str, taken: set[str]) -> str:
    """A name that nothing else has: a number is added where it is taken."""
    candidate, k = name, 1
    while candidate in taken:
        k += 1
        candidate = f"{name}_{k}"
    return candidate
