"""Codec of raw tensor bytes: what HTTP's binary extension and gRPC's raw contents have in common.

Little-endian, row-major, no padding; BOOL is one byte; BYTES is a 4-byte length and the bytes, element by element.
Nothing is set aside for a size that a client only claims: sizes are compared with the bytes that came.

Source: triton-inference-server/server, docs/protocol/extension_binary_data.md.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Sequence

import numpy as np

from paritygate.converter.types import Array, DType
from paritygate.serving.errors import InvalidArgument
from paritygate.serving.types import DATATYPES, InferTensor

_NUMPY = {dtype: dtype.numpy for dtype in DType}
_MAX_RANK = 32
_MAX_ELEMENTS = 2**40
_LITTLE = sys.byteorder == "little"


def dtype_of(name: str, datatype: object) -> DType:
    """The element type that a wire name stands for.

    Raises:
        InvalidArgument: If there is no such wire name.
    """
    dtype = DATATYPES.get(datatype) if isinstance(datatype, str) else None
    if dtype is None:
        raise InvalidArgument(
            f"input '{name}' has datatype {_shown(datatype)}; expected one of {', '.join(DATATYPES)}."
        )
    return dtype


def shape_of(name: str, shape: object) -> tuple[int, ...]:
    """A checked shape: a list of whole numbers, none of them negative.

    Raises:
        InvalidArgument: If it is none.
    """
    if not isinstance(shape, (list, tuple)):
        raise InvalidArgument(f"input '{name}' has shape {_shown(shape)}; expected a list of whole numbers.")
    for dim in shape:
        if type(dim) is not int or not 0 <= dim < 2**63:
            raise InvalidArgument(
                f"input '{name}' has {_shown(dim)} in its shape; expected whole numbers from 0 to 2^63-1."
            )
    if len(shape) > _MAX_RANK:
        raise InvalidArgument(f"input '{name}' has {len(shape)} dimensions; expected at most {_MAX_RANK}.")
    return tuple(shape)


def num_elements(name: str, shape: Sequence[int]) -> int:
    """How many elements a shape holds.

    Raises:
        InvalidArgument: If that many cannot come in one request.
    """
    count = 1
    for dim in shape:
        count *= dim
    if count > _MAX_ELEMENTS:
        raise InvalidArgument(
            f"input '{name}' claims {count} elements by its shape {list(shape)}, which no request can carry."
        )
    return count


def decode_raw(name: str, dtype: DType, datatype: str, shape: tuple[int, ...], data: memoryview) -> Array:
    """The tensor that lies in `data`; numbers are a view of the same memory, not a copy.

    Raises:
        InvalidArgument: If the bytes do not make up exactly this shape and type.
    """
    count = num_elements(name, shape)
    if dtype is DType.STRING:
        return _decode_strings(name, count, data).reshape(shape)
    numpy_dtype = _NUMPY[dtype]
    expected = count * numpy_dtype.itemsize
    if len(data) != expected:
        raise InvalidArgument(
            f"input '{name}' came with {len(data)} bytes; {datatype} of shape {list(shape)} takes {expected}."
        )
    if dtype is DType.BOOL:
        return _decode_bools(name, data).reshape(shape)
    array: Array = np.frombuffer(data, dtype=numpy_dtype)
    if not _LITTLE:  # pragma: no cover - no big-endian machine runs onnxruntime
        array = array.byteswap()
    if not array.flags.aligned:
        # Tensors follow JSON text of any length; the runtime reads through typed pointers.
        array = array.copy()
    return array.reshape(shape)


class RawTensor:
    """How to read a raw tensor of a name, type and shape that were found right once, anywhere in a message.

    Attributes:
        size_bytes: Its length.
    """

    __slots__ = ("_count", "_dtype", "_name", "_numpy", "_shape", "_wire_name", "size_bytes")

    def __init__(self, name: str, datatype: str, shape: tuple[int, ...], size_bytes: int) -> None:
        self._name = name
        self._wire_name = datatype
        self._dtype = DATATYPES[datatype]
        self._shape = shape
        self._count = num_elements(name, shape)
        self.size_bytes = size_bytes
        plain = _LITTLE and self._dtype not in (DType.STRING, DType.BOOL) and size_bytes > 0
        # What is read at once: any other type, and a size that does not fit, take the way with all checks.
        fits = plain and size_bytes == self._count * _NUMPY[self._dtype].itemsize
        self._numpy = _NUMPY[self._dtype] if fits else None

    def read(self, buffer: bytes, at: int) -> InferTensor:
        """The tensor at a place of a message, which has all of its bytes there.

        Raises:
            InvalidArgument: If they are no values of its type.
        """
        if self._numpy is None:
            data = memoryview(buffer)[at : at + self.size_bytes]
            array = decode_raw(self._name, self._dtype, self._wire_name, self._shape, data)
        else:
            array = np.frombuffer(buffer, self._numpy, self._count, at)
            if not array.flags.aligned:
                array = array.copy()
            array = array.reshape(self._shape)
        return InferTensor(self._name, self._wire_name, array)


def _decode_bools(name: str, data: memoryview) -> Array:
    octets = np.frombuffer(data, dtype=np.uint8)
    if octets.size and octets.max() > 1:
        place = int(np.argmax(octets > 1))
        raise InvalidArgument(
            f"input '{name}' has the byte {octets[place]} at element {place}; a BOOL is 0 or 1."
        )
    return octets.view(np.bool_)


def _decode_strings(name: str, count: int, data: memoryview) -> Array:
    if 4 * count > len(data):
        raise InvalidArgument(
            f"input '{name}' came with {len(data)} bytes; {count} BYTES elements take at least {4 * count} bytes."
        )
    array = np.empty(count, dtype=object)
    at = 0
    for index in range(count):
        array[index], at = _decode_string(name, index, data, at)
    if at != len(data):
        raise InvalidArgument(
            f"input '{name}' has {len(data) - at} unexpected additional bytes after its {count} BYTES elements."
        )
    return array


def _decode_string(name: str, index: int, data: memoryview, at: int) -> tuple[str, int]:
    if at + 4 > len(data):
        raise InvalidArgument(
            f"input '{name}' ends inside the length of element {index} of its BYTES elements."
        )
    (size,) = struct.unpack_from("<I", data, at)
    end = at + 4 + size
    if end > len(data):
        raise InvalidArgument(
            f"input '{name}' says {size} bytes for BYTES element {index}, but only {len(data) - at - 4} follow."
        )
    return decode_text(name, index, data[at + 4 : end]), end


def decode_text(name: str, index: int, data: memoryview | bytes) -> str:
    """One BYTES element as text; onnxruntime carries UTF-8 and nothing else.

    Raises:
        InvalidArgument: If the bytes are not UTF-8.
    """
    try:
        return str(data, "utf-8")
    except UnicodeDecodeError as error:
        raise InvalidArgument(
            f"input '{name}' has no UTF-8 at element {index} ({error.reason} at byte {error.start}); "
            "the model takes text. Encode it as UTF-8, or as base64 if the model decodes that."
        ) from None


def encode_raw(dtype: DType, array: Array) -> bytes:
    """The bytes of a tensor as they go on the wire."""
    if dtype is DType.STRING:
        return _encode_strings(array)
    if not _LITTLE:  # pragma: no cover - no big-endian machine runs onnxruntime
        array = array.byteswap()
    return array.tobytes()


def _encode_strings(array: Array) -> bytes:
    parts: list[bytes] = []
    for text in array.ravel():
        octets = text.encode("utf-8", "surrogateescape")
        parts.append(struct.pack("<I", len(octets)))
        parts.append(octets)
    return b"".join(parts)


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
