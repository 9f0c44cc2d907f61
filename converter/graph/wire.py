"""Protobuf's wire format, as far as a message can be taken apart and put together without being parsed.

Parsing a message copies all bytes that it holds, and writing it copies them twice more. For a model with its
weights inside, that is most of what handling it takes.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

Content = bytes | mmap.mmap

_LENGTH = 2
_FIXED = {1: 8, 5: 4}
_LONGEST_VARINT = 10


class MalformedMessage(Exception):
    """The bytes are no message: a field reaches past the end, or is of a kind that proto3 does not have."""


class Field(NamedTuple):
    """Where a field of a message lies.

    Attributes:
        number: Its number in the message's definition.
        has_length: Whether it is a text, bytes, or a message.
        begin: Where its tag begins.
        start: Where its value begins.
        end: Where the field ends.
    """

    number: int
    has_length: bool
    begin: int
    start: int
    end: int


class Extent(NamedTuple):
    """Bytes of another file."""

    offset: int
    length: int


Piece = bytes | memoryview | Extent
"""A part of a message that is to be written."""


def fields(content: Content, start: int, end: int) -> Iterator[Field]:
    """The fields of the message that lies from `start` to `end`; none of their values is read.

    Raises:
        MalformedMessage: If this is no message.
    """
    position = start
    while position < end:
        begin = position
        tag, position = _read_varint(content, position, end)
        kind = tag & 7
        if kind == _LENGTH:
            length, position = _read_varint(content, position, end)
            stop = position + length
        elif kind == 0:
            stop = _read_varint(content, position, end)[1]
        elif kind in _FIXED:
            stop = position + _FIXED[kind]
        else:
            raise MalformedMessage(f"a field of kind {kind} at byte {begin}")
        if stop > end:
            raise MalformedMessage(f"a field at byte {begin} reaches past the end")
        yield Field(tag >> 3, kind == _LENGTH, begin, position, stop)
        position = stop


def rewritten(
    content: Content, start: int, end: int, rewrite: Callable[[Field], Sequence[Piece] | None]
) -> list[Piece] | None:
    """The message from `start` to `end`, in which some fields have another value; None if none has.

    Args:
        content: The bytes in which the message lies.
        start: Where it begins.
        end: Where it ends.
        rewrite: Gives the new value of a field that has a length, or None to leave it as it is.

    Raises:
        MalformedMessage: If this is no message.
    """
    pieces: list[Piece] = []
    position = start
    for field in fields(content, start, end):
        value = rewrite(field) if field.has_length else None
        if value is not None:
            pieces += [content[position : field.begin], head(field.number, size_of(value)), *value]
            position = field.end
    return [*pieces, content[position:end]] if pieces else None


def head(number: int, length: int) -> bytes:
    """What precedes the value of a field that has a length: its tag and the length."""
    return bytes((*_varint(number << 3 | _LENGTH), *_varint(length)))


def size_of(pieces: Sequence[Piece]) -> int:
    """How many bytes these are together."""
    return sum(piece.length if isinstance(piece, Extent) else len(piece) for piece in pieces)


def _read_varint(content: Content, position: int, end: int) -> tuple[int, int]:
    number = 0
    for index in range(min(_LONGEST_VARINT, end - position)):
        byte = content[position + index]
        number |= (byte & 0x7F) << 7 * index
        if byte < 0x80:
            return number, position + index + 1
    raise MalformedMessage(f"a number without an end at byte {position}")


def _varint(number: int) -> Iterator[int]:
    while number > 0x7F:
        yield number & 0x7F | 0x80
        number >>= 7
    yield number
