"""YAML as plain values, for files that come from outside: exact numbers, and nothing that YAML could do to us.

The reader takes the YAML 1.2 core schema: `true`, `null`, `12` and `12.5` are typed, `yes`, `on` and `1:30` are
texts. Fractions are `Decimal`, read from the digits as written, so that 33.33 is 33.33. Refused, each with its
line: anchors and aliases (a few lines of them can stand for gigabytes), tags (they name objects to build), merge
keys, keys given twice, keys that are not plain values, deep nesting and large files.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from decimal import Decimal
from typing import NoReturn, TypeAlias

import yaml

from paritygate.mesh.errors import Fault, RolloutInvalid

Scalar: TypeAlias = "str | int | bool | Decimal | None"
Value: TypeAlias = "Scalar | list[Value] | dict[Scalar, Value]"

MAX_BYTES = 256 * 1024
"""Largest text read; the largest real files are a few kilobytes, and PyYAML reads about 200 kB a second."""

MAX_DEPTH = 32
"""Deepest nesting; a VirtualService needs about ten levels."""

MAX_NUMBER_LENGTH = 64
"""Longest digits read as a number; longer ones stay text and are refused where a number is wanted."""

_NULL = frozenset({"", "~", "null", "Null", "NULL"})
_TRUE = frozenset({"true", "True", "TRUE"})
_FALSE = frozenset({"false", "False", "FALSE"})
_INTEGER = re.compile(r"[-+]?(0|[1-9][0-9]*)")
_FRACTION = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]{1,4})?")
_LEADING_ZERO = re.compile(r"[-+]?0[0-9]")
_NOT_FINITE = re.compile(r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")


def load_documents(text: str, *, source: str) -> list[Value]:
    """Read all documents of a YAML text.

    Args:
        text: The text.
        source: Its name, for errors.

    Raises:
        RolloutInvalid: If it is not YAML, or holds what the module's first lines list.
    """
    if len(text.encode("utf-8", "surrogatepass")) > MAX_BYTES:
        raise _refused(
            source, f"is larger than {MAX_BYTES // 1024} KiB; expected a file of a few kilobytes", "$"
        )
    try:
        return list(_Reader(text, source).documents())
    except yaml.MarkedYAMLError as error:
        raise _refused(source, f"is not YAML: {error.problem or error.context}", _place(error)) from error
    except yaml.YAMLError as error:  # a character that YAML does not allow
        raise _refused(source, f"is not YAML: {' '.join(str(error).split())}", "$") from error


def load_document(text: str, *, source: str) -> Value:
    """Read a YAML text that must hold exactly one document.

    Raises:
        RolloutInvalid: As `load_documents`, and for none or several documents.
    """
    documents = load_documents(text, source=source)
    if len(documents) != 1:
        count = len(documents) or "no"
        raise _refused(source, f"holds {count} documents; expected exactly one", "$")
    return documents[0]


def dump_documents(documents: Sequence[object]) -> str:
    """Documents as YAML text, keys in the given order, one `---` between two."""
    return yaml.safe_dump_all(
        documents, sort_keys=False, default_flow_style=False, width=100, allow_unicode=True
    )


def _refused(source: str, message: str, path: str) -> RolloutInvalid:
    return RolloutInvalid(source, [Fault(message, path)])


def _place(error: yaml.MarkedYAMLError) -> str:
    mark = error.problem_mark or error.context_mark
    return f"line {mark.line + 1}" if mark else "$"


class _Reader:
    """Builds values from PyYAML's event stream, which expands nothing."""

    def __init__(self, text: str, source: str) -> None:
        self._events: Iterator[yaml.Event] = iter(yaml.parse(text, Loader=yaml.SafeLoader))
        self._source = source

    def documents(self) -> Iterator[Value]:
        for event in self._events:
            if isinstance(event, yaml.DocumentStartEvent):
                yield self._value(next(self._events), depth=0)

    def _value(self, event: yaml.Event, depth: int) -> Value:
        self._refuse_dangers(event, depth)
        if isinstance(event, yaml.ScalarEvent):
            return _scalar(event)
        if isinstance(event, yaml.SequenceStartEvent):
            return self._sequence(depth)
        return self._mapping(depth)

    def _refuse_dangers(self, event: yaml.Event, depth: int) -> None:
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None):
            self._refuse(event, "anchors (&) and aliases (*) are not read; write the value out")
        if getattr(event, "tag", None):
            self._refuse(event, f"the tag '{getattr(event, 'tag', '')}' is not read; leave it out")
        if depth > MAX_DEPTH:
            self._refuse(event, f"is nested deeper than {MAX_DEPTH} levels")

    def _sequence(self, depth: int) -> list[Value]:
        items: list[Value] = []
        while not isinstance(event := next(self._events), yaml.SequenceEndEvent):
            items.append(self._value(event, depth + 1))
        return items

    def _mapping(self, depth: int) -> dict[Scalar, Value]:
        items: dict[Scalar, Value] = {}
        spelled: set[str] = set()  # so that 1 and "1" are the same key
        while not isinstance(event := next(self._events), yaml.MappingEndEvent):
            key = self._key(event, depth + 1)
            if str(key) in spelled:
                self._refuse(event, f"the key '{key}' is given twice")
            spelled.add(str(key))
            items[key] = self._value(next(self._events), depth + 1)
        return items

    def _key(self, event: yaml.Event, depth: int) -> Scalar:
        self._refuse_dangers(event, depth)
        if not isinstance(event, yaml.ScalarEvent):
            self._refuse(event, "a key is a list or a mapping; expected a plain name")
        key = _scalar(event)
        if key == "<<" and not event.style:
            self._refuse(event, "merge keys (<<) are not read; write the values out")
        return key

    def _refuse(self, event: yaml.Event, message: str) -> NoReturn:
        line = event.start_mark.line + 1 if event.start_mark else 1
        raise _refused(self._source, message, f"line {line}")


def _scalar(event: yaml.ScalarEvent) -> Scalar:
    text = event.value
    if event.style or event.implicit == (False, True):
        return text
    return _plain(text)


def _plain(text: str) -> Scalar:
    if text in _NULL:
        return None
    if text in _TRUE or text in _FALSE:
        return text in _TRUE
    if len(text) > MAX_NUMBER_LENGTH or _LEADING_ZERO.match(text):
        return text
    if _INTEGER.fullmatch(text):
        return int(text)
    if _NOT_FINITE.fullmatch(text):
        return Decimal(text.replace(".", ""))
    return Decimal(text) if _FRACTION.fullmatch(text) else text
