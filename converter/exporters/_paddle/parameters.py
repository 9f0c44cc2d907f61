"""Weights files (`.pdparams`): pickles, read with nothing but numpy's own constructors allowed."""

from __future__ import annotations

import difflib
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from paritygate.converter.checkpoints.misfit import misfit, some
from paritygate.converter.errors import SourceError, UnsafeSource
from paritygate.converter.types import Array

if TYPE_CHECKING:
    import paddle


class _ArrayClass:
    """Stands for numpy's class of arrays in a pickle, which is only ever named there.

    Called, it would make arrays of memory that nobody wrote, or of pointers that a file names.
    """


def _empty_array(kind: Any, _shape: Any, _code: Any) -> Array:
    """What a pickle fills with the state of an array; numpy itself checks that state."""
    if kind is not _ArrayClass:
        raise UnsafeSource(f"an array of the class {kind!r}")
    return np.zeros(0, np.int8)


def _scalar(dtype: Any, data: Any = None) -> Any:
    return _from_buffer(data, dtype, (), "C")[()]


def _from_buffer(buffer: Any, dtype: Any, shape: Any, order: Any) -> Array:
    if not isinstance(dtype, np.dtype) or dtype.hasobject:
        raise UnsafeSource("an array of Python objects")
    flat: Array = np.frombuffer(buffer, dtype)
    return flat.reshape(shape, order=order)


def _dtype(code: Any, align: Any = False, copy: Any = False) -> np.dtype[Any]:
    dtype: np.dtype[Any] = np.dtype(code)
    if dtype.hasobject:
        raise UnsafeSource("an array of Python objects")
    return dtype


_NUMPY: dict[str, Any] = {"_reconstruct": _empty_array, "scalar": _scalar, "_frombuffer": _from_buffer}
_ALLOWED: dict[tuple[str, str], Any] = {
    ("collections", "OrderedDict"): dict, ("builtins", "tuple"): tuple,
    ("numpy", "ndarray"): _ArrayClass, ("numpy", "dtype"): _dtype,
    **{
        (f"numpy.{core}.{module}", name): _NUMPY[name]
        for core in ("core", "_core")
        for module, name in (("multiarray", "_reconstruct"), ("multiarray", "scalar"), ("numeric", "_frombuffer"))
    },
}  # fmt: skip
"""What `paddle.save` writes for tensors, and what stands here for each; none of it does anything but build an
array of numbers out of bytes of the file."""

_NAMES_KEY = "StructuredToParameterName@@"

_USUAL_KEYS = ("model", "state_dict", "model_state_dict", "model_state", "network", "params")


class _Restricted(
    pickle._Unpickler
):  # the one in Python: that in C makes room for any number that a file names
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in _ALLOWED:
            return _ALLOWED[module, name]
        if (module, name) == ("_codecs", "encode"):
            return _bytes_from_text
        raise UnsafeSource(f"{module}.{name}")


def _bytes_from_text(text: str, encoding: str) -> bytes:
    """How pickles of protocol 2 spell the bytes of an array; codecs other than theirs are not looked up."""
    if encoding != "latin1":
        raise UnsafeSource(f"the codec {encoding}")
    return text.encode("latin1")


def load_parameters(path: Path, key: str | None, *, trust: bool) -> tuple[dict[str, Array], str]:
    """The weights in a file by name, and which entry of it they are.

    Raises:
        UnsafeSource: If the file asks for code and is not trusted.
        SourceError: If it is damaged, or holds no weights.
    """
    content = _load(path, trust=trust)
    if not isinstance(content, Mapping):
        raise SourceError(f"{path} holds a {type(content).__name__}, not a dict of weights by name.")
    chosen = key if key is not None else next((k for k in _USUAL_KEYS if _is_weights(content.get(k))), None)
    if chosen is None or (key is None and _is_weights(content)):
        return _weights(content, path, "the file"), "raw"
    if chosen not in content:
        near = difflib.get_close_matches(chosen, [str(k) for k in content], n=1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise SourceError(f"{path} has no entry {chosen!r}; it holds {some(list(map(str, content)))}.{hint}")
    return _weights(content[chosen], path, f"its entry {chosen!r}"), f"checkpoint key {chosen}"


def _load(path: Path, *, trust: bool) -> Any:
    try:
        with path.open("rb") as file:
            return (pickle.Unpickler if trust else _Restricted)(file).load()
    except UnsafeSource as error:
        raise UnsafeSource(
            f"{path} asks for {error} when it is opened, which could run code; it was not. Pass --trust "
            "(trust=True) if you know where the file comes from, or save weights only: "
            "paddle.save(layer.state_dict(), path)."
        ) from error
    except Exception as error:
        raise SourceError(
            f"{path} cannot be read as weights ({type(error).__name__}): cut short, or something else. Save it "
            "again with paddle.save(layer.state_dict(), path)."
        ) from error


def _is_weights(value: Any) -> bool:
    return isinstance(value, Mapping) and any(_as_array(item) is not None for item in value.values())


def _as_array(value: Any) -> Array | None:
    """A tensor inside a nested dict is written as (name, array)."""
    if isinstance(value, tuple) and len(value) == 2 and isinstance(value[0], str):
        value = value[1]
    return value if isinstance(value, np.ndarray) else None


def _weights(content: Any, path: Path, where: str) -> dict[str, Array]:
    arrays = {} if not isinstance(content, Mapping) else {
        str(name): array for name, value in content.items()
        if name != _NAMES_KEY and (array := _as_array(value)) is not None
    }  # fmt: skip
    if not arrays:
        held = some(list(map(str, content))) if isinstance(content, Mapping) else type(content).__name__
        raise SourceError(
            f"{path}: {where} holds no weights, but {held}. Name the entry: weights= (--weights)."
        )
    return arrays


def load_into(layer: paddle.nn.Layer, arrays: Mapping[str, Array], path: Path, factory: str) -> list[str]:
    """Put weights into the layer that a factory built; all names and shapes must fit.

    Raises:
        SourceError: Listing the names and shapes that do not.
    """
    expected = layer.state_dict()
    found, notes = _fitting_names(arrays, set(expected))
    fault = misfit(
        {name: array.shape for name, array in found.items()},
        {name: tensor.shape for name, tensor in expected.items()},
        owner="the layer",
    )
    if fault:
        raise SourceError(
            f"{path} does not fit what {factory} builds: {fault}. Use the factory and the settings that it was "
            "trained with."
        )
    layer.set_state_dict(dict(found))
    return notes


def _fitting_names(arrays: Mapping[str, Array], wanted: set[str]) -> tuple[dict[str, Array], list[str]]:
    """Names without the prefix that DataParallel put before every one."""
    prefix = "_layers."
    if arrays and all(name.startswith(prefix) for name in arrays) and not set(arrays) & wanted:
        note = f"The prefix {prefix!r} of DataParallel was taken off every name."
        return {name.removeprefix(prefix): array for name, array in arrays.items()}, [note]
    return dict(arrays), []
