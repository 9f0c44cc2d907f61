"""UBJSON as XGBoost writes it, decoded without believing a length that the file does not hold.

Source: https://ubjson.org/type-reference/ and src/common/json.cc of xgboost (typed arrays `[$<type>#<count>`,
big-endian numbers).
"""

from __future__ import annotations

from typing import Any

import numpy as np

_NUMBERS = {
    b"i": ">i1", b"U": ">u1", b"I": ">i2", b"l": ">i4", b"L": ">i8", b"d": ">f4", b"D": ">f8",
}  # fmt: skip
_CONSTANTS = {b"Z": None, b"T": True, b"F": False}
_DEEPEST = 64


class UbjsonFault(ValueError):
    """The bytes are no UBJSON, or only the beginning of it."""


def decode(data: bytes) -> Any:
    """The value that the bytes hold; typed arrays become numpy arrays.

    Raises:
        UbjsonFault: With the place of the fault.
    """
    reader = _Reader(data)
    value = reader.value(reader.take(1), 0)
    if reader.place != len(data):
        raise UbjsonFault(f"{len(data) - reader.place} bytes follow the end")
    return value


class _Reader:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self.place = 0

    def take(self, count: int) -> bytes:
        if not 0 <= count <= len(self._data) - self.place:
            raise UbjsonFault(f"byte {self.place} asks for {count} more, and {self._left()} are left")
        self.place += count
        return self._data[self.place - count : self.place]

    def value(self, marker: bytes, depth: int) -> Any:
        if depth > _DEEPEST:
            raise UbjsonFault(f"it is nested deeper than {_DEEPEST}")
        if marker in _NUMBERS:
            return self._number(marker)
        if marker in _CONSTANTS:
            return _CONSTANTS[marker]
        if marker in (b"S", b"C"):
            return self._text() if marker == b"S" else self.take(1).decode("latin-1")
        if marker == b"[":
            return self._array(depth)
        if marker == b"{":
            return self._object(depth)
        raise UbjsonFault(f"byte {self.place - 1} is {marker!r}, which begins no value")

    def _left(self) -> int:
        return len(self._data) - self.place

    def _number(self, marker: bytes) -> int | float:
        dtype = np.dtype(_NUMBERS[marker])
        (value,) = np.frombuffer(self.take(dtype.itemsize), dtype)
        plain: int | float = value.item()
        return plain

    def _count(self) -> int:
        marker = self.take(1)
        if marker not in _NUMBERS or marker in (b"d", b"D"):
            raise UbjsonFault(f"byte {self.place - 1} begins no length")
        return int(self._number(marker))

    def _text(self) -> str:
        try:
            return self.take(self._count()).decode("utf-8")
        except UnicodeDecodeError as error:
            raise UbjsonFault(f"byte {self.place} ends a text that is no UTF-8") from error

    def _array(self, depth: int) -> Any:
        following = self.take(1)
        if following == b"$":
            return self._typed()
        if following == b"#":
            return [self.value(self.take(1), depth + 1) for _ in range(self._bounded(self._count()))]
        items = []
        while following != b"]":
            items.append(self.value(following, depth + 1))
            following = self.take(1)
        return items

    def _typed(self) -> Any:
        kind = self.take(1)
        if kind not in _NUMBERS or self.take(1) != b"#":
            raise UbjsonFault(f"byte {self.place} begins no array of one type")
        dtype = np.dtype(_NUMBERS[kind])
        return np.frombuffer(self.take(self._count() * dtype.itemsize), dtype)

    def _bounded(self, count: int) -> int:
        if not 0 <= count <= self._left():
            raise UbjsonFault(f"byte {self.place} promises {count} values, and {self._left()} bytes are left")
        return count

    def _object(self, depth: int) -> dict[str, Any]:
        found: dict[str, Any] = {}
        following = self.take(1)
        if following == b"#":
            for _ in range(self._bounded(self._count())):
                key = self._text()
                found[key] = self.value(self.take(1), depth + 1)
            return found
        while following != b"}":
            self.place -= 1
            key = self._text()
            found[key] = self.value(self.take(1), depth + 1)
            following = self.take(1)
        return found
