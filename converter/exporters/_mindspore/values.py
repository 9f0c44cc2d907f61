"""What stands on the edges of a MindIR graph while it is translated: constants, tensors, tuples, functions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from paritygate.converter.types import DType

Shape = tuple[int | None, ...]
"""Sizes; None is one that is known only when the graph runs."""


@dataclass(frozen=True)
class Abstract:
    """What MindSpore inferred of a value.

    Attributes:
        dtype: Element type.
        shape: Sizes, or None where even the rank is open.
        scalar: Whether MindSpore has a Python number there and no tensor.
    """

    dtype: np.dtype[Any]
    shape: Shape | None
    scalar: bool = False


@dataclass(frozen=True)
class Known:
    """A value that is known while the graph is translated: a number, a text, None, or an array."""

    value: Any


@dataclass(frozen=True)
class Tensor:
    """A value that is known only when the graph runs.

    Attributes:
        name: Its name in the ONNX graph.
        abstract: What MindSpore inferred of it.
    """

    name: str
    abstract: Abstract


@dataclass(frozen=True)
class Many:
    """A tuple or list of values."""

    items: tuple[Value, ...]


@dataclass(frozen=True)
class Function:
    """A graph of the program with its first arguments given.

    Attributes:
        graph: Its name.
        bound: The arguments that are given.
    """

    graph: str
    bound: tuple[Value, ...]


@dataclass(frozen=True)
class Choice:
    """One of two functions, chosen when the graph runs."""

    condition: Value
    yes: Value
    no: Value


Value = Known | Tensor | Many | Function | Choice

_TENSOR_TYPES = {
    1: "float32", 2: "uint8", 3: "int8", 4: "uint16", 5: "int16", 6: "int32", 7: "int64", 8: "string", 9: "bool",
    10: "float16", 11: "float64", 12: "uint32", 13: "uint64", 16: "bfloat16", 17: "float64",
}  # fmt: skip
"""Numbers of element types in a MindIR tensor."""

_TYPE_IDS = {
    30: "bool", 31: "int64", 32: "int8", 33: "int16", 34: "int32", 35: "int64", 36: "uint64", 37: "uint8",
    38: "uint16", 39: "uint32", 40: "uint64", 41: "float32", 42: "float16", 43: "float32", 44: "float64",
    45: "bfloat16",
}  # fmt: skip
"""Numbers of element types in an argument `dtype` of a primitive (MindSpore's TypeId)."""


class UnknownType(Exception):
    """An element type that ONNX tensors of ours do not have; the text is its number or name."""


def dtype_of_tensor(number: int) -> np.dtype[Any]:
    """The element type that a MindIR tensor names by this number."""
    if number not in _TENSOR_TYPES:
        raise UnknownType(f"type {number}")
    return DType(_TENSOR_TYPES[number]).numpy


def dtype_of_id(number: int) -> np.dtype[Any]:
    """The element type that a primitive's argument names by this number."""
    if number not in _TYPE_IDS:
        raise UnknownType(f"type id {number}")
    return DType(_TYPE_IDS[number]).numpy


def python_value(value: Value) -> Any:
    """What a value is in Python: tuples of numbers for shapes and axes.

    Raises:
        LookupError: If a part of it is known only when the graph runs.
    """
    if isinstance(value, Known):
        array = value.value
        return array.item() if isinstance(array, np.ndarray) and array.ndim == 0 else array
    if isinstance(value, Many):
        return tuple(python_value(item) for item in value.items)
    raise LookupError("the value is not constant")


def is_known(value: Value) -> bool:
    """Whether every part of a value is known while the graph is translated."""
    return isinstance(value, Known) or (isinstance(value, Many) and all(map(is_known, value.items)))


def is_none(value: Value) -> bool:
    """Whether it is Python's None."""
    return isinstance(value, Known) and value.value is None


def array_of(items: Sequence[Any]) -> np.ndarray[Any, np.dtype[np.int64]]:
    """int64[n] of whole numbers."""
    return np.array(items, np.int64)
