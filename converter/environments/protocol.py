"""What a child says to us: one JSON object a line, over a channel of its own.

The child sends any number of `progress` and `warning` messages and then exactly one `result` or `error`.
Everything that is not such a line is a fault of the child and ends the export.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from paritygate.converter import errors
from paritygate.converter.errors import ConverterError

PROTOCOL = 1
"""Sent with the first message; parent and child run the same code, so another number is a broken installation."""

_TEXT_LIMIT = 4000
_MAX_FACTS = 16  # with texts of the limit, each character escaped, one line stays below what the parent takes
_MAX_NAME = 100

_KNOWN_ERRORS: dict[str, type[Exception]] = {
    name: kind
    for name, kind in vars(errors).items()
    if isinstance(kind, type) and issubclass(kind, ConverterError)
} | {"ValueError": ValueError}


@dataclass(frozen=True)
class Event:
    """Something that went on in a framework environment.

    Attributes:
        kind: `progress` or `warning`.
        message: One line for a person.
    """

    kind: str
    message: str

    def __str__(self) -> str:
        return self.message if self.kind == "progress" else f"{self.kind}: {self.message}"


OnEvent = Callable[[Event], None]


def encode(kind: str, **fields: Any) -> bytes:
    """One message as a line of JSON with its line end."""
    return json.dumps({"protocol": PROTOCOL, "kind": kind, **fields}).encode() + b"\n"


def encode_error(error: ConverterError | ValueError) -> bytes:
    """An error as a message, with the facts that it holds as attributes.

    A subclass that `errors.py` does not know goes as the nearest class that it does. The parent cuts a line of
    more than 1 MiB in two and would take neither for a message, so long texts are shortened here.
    """
    plain = [(name, value) for name, value in vars(error).items() if _is_fact(name, value)]
    facts = {name: _shorten(value) if isinstance(value, str) else value for name, value in plain[:_MAX_FACTS]}
    return encode("error", error=_known_class(error), message=_cut(str(error)), facts=facts)


class Conversation:
    """Our side of the channel: checks each line, hands events on, keeps the ending.

    Attributes:
        result: The fields of the child's `result`, or None as long as there is none.
        error: The child's `error`, rebuilt as the class that it was there; None as long as there is none.
        fault: What the child said against the protocol, or an empty string.
    """

    def __init__(self, on_event: OnEvent) -> None:
        self.result: dict[str, Any] | None = None
        self.error: Exception | None = None
        self.fault = ""
        self._on_event = on_event

    def hear(self, line: bytes) -> None:
        """Take one line from the child; after a fault nothing more is heard."""
        if self.fault:
            return
        try:
            event = self._take(json.loads(line))
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            self.fault = f"{type(error).__name__}: {error} in {_cut(line.decode('utf-8', 'replace'), 200)!r}"
        else:
            if event is not None:
                self._on_event(event)

    def _take(self, message: dict[str, Any]) -> Event | None:
        if message["protocol"] != PROTOCOL:
            raise ValueError("another protocol")
        if self.result is not None or self.error is not None:
            raise ValueError("a message after the last one")
        match message["kind"]:
            case "progress" | "warning" as kind:
                return Event(kind, str(message["message"]))
            case "result":
                self.result = dict(message)
            case "error":
                self.error = _rebuild(message["error"], str(message["message"]), dict(message["facts"]))
            case kind:
                raise ValueError(f"unknown kind {kind!r}")
        return None


def _rebuild(name: str, message: str, facts: dict[str, Any]) -> Exception:
    kind = _KNOWN_ERRORS[name]
    error = kind.__new__(kind)
    error.args = (message,)
    vars(error).update(facts)
    return error


def _known_class(error: ConverterError | ValueError) -> str:
    return next(kind.__name__ for kind in type(error).__mro__ if kind.__name__ in _KNOWN_ERRORS)


def _is_fact(name: str, value: Any) -> bool:
    if isinstance(value, int) and value.bit_length() > 64:  # JSON refuses those of thousands of digits
        return False
    return len(name) <= _MAX_NAME and (value is None or isinstance(value, str | int | float | bool))


def _shorten(text: str) -> str:
    """A text without its middle: a name is known by its beginning, what a process said by its end."""
    half = _TEXT_LIMIT // 2
    return text if len(text) <= _TEXT_LIMIT else f"{text[:half]} ... {text[-half:]}"


def _cut(text: str, limit: int = _TEXT_LIMIT) -> str:
    return text if len(text) <= limit else text[:limit] + "..."
