"""Arrays to and from serialized ONNX TensorProto files, every dtype, bit for bit."""

from __future__ import annotations

import math

import numpy as np
import onnx
from google.protobuf.message import DecodeError

from paritygate.converter.types import Array, DType


def encode_tensor(array: Array, name: str) -> bytes:
    """The bytes of a TensorProto that holds this array; numbers as little-endian raw data.

    Raises:
        ValueError: If the dtype is none that a model may have, or an object array holds something but `str`.
    """
    dtype = DType.from_numpy(array.dtype)
    proto = onnx.TensorProto(name=name, data_type=dtype.onnx, dims=array.shape)
    if dtype is DType.STRING:
        proto.string_data.extend(_utf8(value, name) for value in array.reshape(-1).tolist())
    else:
        proto.raw_data = _little_endian(np.ascontiguousarray(array)).tobytes()
    encoded: bytes = proto.SerializeToString(deterministic=True)
    return encoded


def decode_tensor(data: bytes) -> Array:
    """The array in a TensorProto's bytes. It never opens another file, whatever the bytes ask for.

    Raises:
        ValueError: With one sentence, if the bytes are no tensor, point elsewhere, or do not fill the shape.
    """
    try:
        proto = onnx.TensorProto.FromString(data)
    except DecodeError as error:
        raise ValueError("the bytes are not an ONNX tensor") from error
    if proto.external_data or proto.data_location != onnx.TensorProto.DEFAULT or proto.HasField("segment"):
        raise ValueError("the tensor keeps its values in another file, which a probe must not")
    dtype = DType.from_onnx(proto.data_type)
    shape = tuple(proto.dims)
    if any(size < 0 for size in shape):
        raise ValueError(f"the tensor has a negative dimension in {list(shape)}")
    if dtype is DType.STRING:
        return _strings(proto, shape)
    return _numbers(proto.raw_data, dtype, shape)


def tensor_nbytes(array: Array) -> int:
    """The bytes that an array's values take in a file; strings count their UTF-8 form."""
    if DType.from_numpy(array.dtype) is DType.STRING:
        return sum(len(str(value).encode("utf-8")) for value in array.reshape(-1).tolist())
    return int(array.nbytes)


def _utf8(value: object, name: str) -> bytes:
    if not isinstance(value, str):
        raise ValueError(f"{name!r}: a string tensor holds a {type(value).__name__}; expected str.")  # noqa: TRY004
    return value.encode("utf-8")


def _little_endian(array: Array) -> Array:
    swapped: Array = (
        array.astype(array.dtype.newbyteorder("<"), copy=False) if array.dtype.kind in "iuf" else array
    )
    return swapped


def _strings(proto: onnx.TensorProto, shape: tuple[int, ...]) -> Array:
    values = [value.decode("utf-8") for value in proto.string_data]
    if len(values) != math.prod(shape):
        raise ValueError(
            f"the tensor has {len(values)} strings, its shape {list(shape)} asks for {math.prod(shape)}"
        )
    array = np.empty(len(values), dtype=object)
    array[:] = values
    return array.reshape(shape)


def _numbers(raw: bytes, dtype: DType, shape: tuple[int, ...]) -> Array:
    expected = math.prod(shape) * dtype.numpy.itemsize
    if len(raw) != expected:
        raise ValueError(f"the tensor has {len(raw)} bytes, its shape {list(shape)} asks for {expected}")
    stored = dtype.numpy if dtype is DType.BFLOAT16 else dtype.numpy.newbyteorder("<")
    return np.frombuffer(raw, dtype=stored).astype(dtype.numpy).reshape(shape)
