"""The words of the converter: dtypes, dimensions, tensor specs and signatures. No framework, no protobuf."""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import ml_dtypes
import numpy as np

Array: TypeAlias = "np.ndarray[Any, np.dtype[Any]]"
"""Any array of any dtype. Strings are object arrays that hold `str` and nothing else."""

Feeds: TypeAlias = Mapping[str, Array]
"""Tensors by the name of the input or output they belong to."""

Dim: TypeAlias = "int | str"
"""A dimension: a fixed size, or the name of a size that may vary (ONNX: dim_param)."""


class DType(enum.Enum):
    """Element types that a model's inputs and outputs may have; the value is numpy's name, or `string`."""

    BOOL = "bool"
    UINT8 = "uint8"
    UINT16 = "uint16"
    UINT32 = "uint32"
    UINT64 = "uint64"
    INT8 = "int8"
    INT16 = "int16"
    INT32 = "int32"
    INT64 = "int64"
    FLOAT16 = "float16"
    BFLOAT16 = "bfloat16"
    FLOAT32 = "float32"
    FLOAT64 = "float64"
    STRING = "string"

    @property
    def numpy(self) -> np.dtype[Any]:
        """The numpy dtype: object for strings, ml_dtypes' bfloat16 for bfloat16."""
        return _NUMPY_DTYPES[self]

    @property
    def onnx(self) -> int:
        """The number of this type in onnx's TensorProto.DataType.

        Source: onnx.proto3, enum DataType; the numbers are part of the file format and never change.
        """
        return _ONNX_CODES[self]

    @property
    def is_floating(self) -> bool:
        """Whether values are compared within a tolerance; all other types are compared exactly."""
        return self in _FLOATING

    @property
    def is_integer(self) -> bool:
        """Whether this is a signed or unsigned whole-number type; bool is not."""
        return self.value.startswith(("int", "uint"))

    @classmethod
    def from_numpy(cls, dtype: np.dtype[Any] | type[Any]) -> DType:
        """The type of a numpy array; object and unicode arrays count as strings.

        Raises:
            ValueError: If no model input or output may have this dtype.
        """
        dtype = np.dtype(dtype)
        if dtype.kind in "OUS":
            return cls.STRING
        if dtype.kind in "biuf" or dtype == ml_dtypes.bfloat16:
            return cls(dtype.name)
        raise ValueError(
            f"numpy dtype {dtype} is not a tensor type; expected one of {[d.value for d in cls]}."
        )

    @classmethod
    def from_onnx(cls, code: int) -> DType:
        """The type with this number in TensorProto.DataType.

        Raises:
            ValueError: If the number stands for a type that models cannot take or give here.
        """
        for dtype, number in _ONNX_CODES.items():
            if number == code:
                return dtype
        raise ValueError(f"ONNX element type {code} is not supported as a model input or output.")


_FLOATING = frozenset({DType.FLOAT16, DType.BFLOAT16, DType.FLOAT32, DType.FLOAT64})
_NUMPY_DTYPES: Mapping[DType, np.dtype[Any]] = {
    dtype: np.dtype({DType.STRING: object, DType.BFLOAT16: ml_dtypes.bfloat16}.get(dtype, dtype.value))
    for dtype in DType
}
_ONNX_CODES = {
    DType.FLOAT32: 1,
    DType.UINT8: 2,
    DType.INT8: 3,
    DType.UINT16: 4,
    DType.INT16: 5,
    DType.INT32: 6,
    DType.INT64: 7,
    DType.STRING: 8,
    DType.BOOL: 9,
    DType.FLOAT16: 10,
    DType.FLOAT64: 11,
    DType.UINT32: 12,
    DType.UINT64: 13,
    DType.BFLOAT16: 16,
}


@dataclass(frozen=True)
class TensorSpec:
    """The name, dtype and shape of one graph input or output.

    Attributes:
        name: The name clients use.
        dtype: Element type.
        shape: One entry a dimension; a `str` names a size that may vary, and the same name is the same size.
    """

    name: str
    dtype: DType
    shape: tuple[Dim, ...]

    def to_json(self) -> dict[str, Any]:
        """This spec as plain JSON values."""
        return {"name": self.name, "dtype": self.dtype.value, "shape": list(self.shape)}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> TensorSpec:
        """Build a spec from what `to_json` gave."""
        return cls(str(value["name"]), DType(value["dtype"]), tuple(value["shape"]))

    def __str__(self) -> str:
        return f"{self.name}: {self.dtype.value}[{', '.join(map(str, self.shape))}]"


@dataclass(frozen=True)
class Signature:
    """What a model takes and gives, in the order of the graph."""

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]

    def dynamic_dims(self) -> dict[str, list[tuple[str, int]]]:
        """Each named dimension of the inputs, with the (input name, axis) places where it stands."""
        places: dict[str, list[tuple[str, int]]] = {}
        for spec, axis, dim in self._input_dims():
            if isinstance(dim, str):
                places.setdefault(dim, []).append((spec.name, axis))
        return places

    def _input_dims(self) -> Iterator[tuple[TensorSpec, int, Dim]]:
        for spec in self.inputs:
            for axis, dim in enumerate(spec.shape):
                yield spec, axis, dim

    def with_dims(self, sizes: Mapping[str, int]) -> Signature:
        """The same signature with the named dimensions in `sizes` made fixed."""

        def fix(spec: TensorSpec) -> TensorSpec:
            shape = tuple(sizes.get(d, d) if isinstance(d, str) else d for d in spec.shape)
            return TensorSpec(spec.name, spec.dtype, shape)

        return Signature(tuple(map(fix, self.inputs)), tuple(map(fix, self.outputs)))

    def to_json(self) -> dict[str, Any]:
        """This signature as plain JSON values."""
        return {
            "inputs": [spec.to_json() for spec in self.inputs],
            "outputs": [spec.to_json() for spec in self.outputs],
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Signature:
        """Build a signature from what `to_json` gave."""
        return cls(
            tuple(TensorSpec.from_json(v) for v in value["inputs"]),
            tuple(TensorSpec.from_json(v) for v in value["outputs"]),
        )

    def __str__(self) -> str:
        given = ", ".join(map(str, self.inputs))
        got = ", ".join(map(str, self.outputs))
        return f"({given}) -> ({got})"


@dataclass(frozen=True)
class DemotedDim:
    """A dimension that was meant to vary but holds for one size only.

    Attributes:
        dim: The name it had in the signature.
        size: The one size at which the model may be used.
        reason: One sentence: what happened at another size, or why none was tried.
    """

    dim: str
    size: int
    reason: str

    def to_json(self) -> dict[str, Any]:
        """This entry as plain JSON values."""
        return {"dim": self.dim, "size": self.size, "reason": self.reason}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> DemotedDim:
        """Build an entry from what `to_json` gave."""
        return cls(str(value["dim"]), int(value["size"]), str(value["reason"]))
