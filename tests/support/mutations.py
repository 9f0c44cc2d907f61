"""Damaged messages: a field of a protobuf message changed, or a byte of its file."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

_WHOLE = (0, 1, -1, 2, 7, 18, 255, 2**31 - 1, -(2**31), 2**31, 2**62, 2**63 - 1, -(2**63))
_TEXTS = (
    "",
    "x",
    "y",
    "w",
    "\n",
    "é",
    "a" * 5000,
    "If",
    "Loop",
    "Scan",
    "Gather",
    "Cast",
    "Expand",
    "..",
    "/dev/zero",
)
_FLOATS = (0.0, -1.0, 1e38, float("nan"), float("inf"))
_BYTES = (b"", b"\0", b"\xff" * 7, bytes(range(32)))


def mutated(message: Any, random: np.random.Generator) -> bytes:
    """The bytes of a message after one to three changes; the message itself is left as it is."""
    twin = type(message)()
    twin.CopyFrom(message)
    if random.random() < 0.6:
        for _ in range(random.integers(1, 4)):
            _change_field(twin, random)
        return bytes(twin.SerializePartialToString())
    return damaged(twin.SerializePartialToString(), random)


def damaged(data: bytes, random: np.random.Generator) -> bytes:
    """The bytes with one to three of them changed, lost, or put in."""
    changed = bytearray(data)
    for _ in range(random.integers(1, 4)):
        place, some = int(random.integers(len(changed))), int(random.choice([1, 2, 8]))
        kind = random.random()
        if kind < 0.6:
            changed[place] = int(random.integers(256))
        elif kind < 0.8 and len(changed) > some:
            del changed[place : place + some]
        else:
            changed[place:place] = random.bytes(some)
    return bytes(changed)


def _change_field(message: Any, random: np.random.Generator) -> None:
    parts = list(_parts(message))
    part = parts[random.integers(len(parts))]
    present = [field for field, _ in part.ListFields()]
    known = present if present and random.random() < 0.7 else list(part.DESCRIPTOR.fields)
    field = known[random.integers(len(known))]
    held = getattr(part, field.name)
    many = not isinstance(held, str | bytes | int | float) and hasattr(held, "__len__")
    if many and hasattr(held, "keys"):  # a map
        held.clear()
    elif many and field.message_type is not None:
        _change_list(held, random)
    elif field.message_type is not None:
        _ = part.ClearField(field.name) if random.random() < 0.5 else held.SetInParent()
    elif random.random() < 0.2:
        part.ClearField(field.name)
    elif many:
        value = _value(field, random)
        if len(held) and random.random() < 0.7:
            held[int(random.integers(len(held)))] = value
        else:
            held.append(value)
    else:
        setattr(part, field.name, _value(field, random))


def _change_list(messages: Any, random: np.random.Generator) -> None:
    if len(messages) and random.random() < 0.5:
        del messages[int(random.integers(len(messages)))]
    elif len(messages):
        messages.add().CopyFrom(messages[0])
    else:
        messages.add()


def _parts(message: Any) -> Iterator[Any]:
    """A message and all that lie in it."""
    yield message
    for field, value in message.ListFields():
        if field.message_type is not None and not hasattr(value, "keys"):
            for part in value if hasattr(value, "__len__") else (value,):
                yield from _parts(part)


def _value(field: Any, random: np.random.Generator) -> Any:
    if field.cpp_type == field.CPPTYPE_ENUM:
        values = field.enum_type.values
        return values[random.integers(len(values))].number
    if field.cpp_type in (field.CPPTYPE_FLOAT, field.CPPTYPE_DOUBLE):
        return _FLOATS[random.integers(len(_FLOATS))]
    if field.type == field.TYPE_BYTES:
        return _BYTES[random.integers(len(_BYTES))]
    if field.cpp_type == field.CPPTYPE_STRING:
        return _TEXTS[random.integers(len(_TEXTS))]
    if field.cpp_type == field.CPPTYPE_BOOL:
        return bool(random.integers(2))
    whole = [value for value in _WHOLE if _fits(value, field)]
    return whole[random.integers(len(whole))]


def _fits(value: int, field: Any) -> bool:
    if field.cpp_type == field.CPPTYPE_INT32:
        return -(2**31) <= value < 2**31
    if field.cpp_type == field.CPPTYPE_UINT32:
        return 0 <= value < 2**32
    return value >= 0 or field.cpp_type == field.CPPTYPE_INT64
