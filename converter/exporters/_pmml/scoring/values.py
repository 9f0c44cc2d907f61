"""Values of the scorer, None where missing; and what a mining field does to them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import numpy as np

from paritygate.converter.exporters._pmml.declarations import NUMERIC, Field, Interval, MiningField
from paritygate.converter.exporters._pmml.elements import Element, malformed, parse_number, refuse

Value: TypeAlias = "float | int | str | bool | None"


class InvalidValue(Exception):
    """A row holds a value that its mining field does not let through: the row has no result."""


def literal(text: str, data_type: str, element: Element) -> Value:
    """A text of the file as a value of a field's type; floats are rounded to their 32 bits."""
    if data_type == "string":
        return text
    if data_type == "boolean":
        if text.lower() in ("true", "1", "1.0"):
            return True
        if text.lower() in ("false", "0", "0.0"):
            return False
        raise malformed(element, f"{text!r} is no boolean")
    if data_type not in NUMERIC:
        raise refuse(element, f"dataType {data_type!r}", "Use double, float, integer, string or boolean.")
    number = parse_number(text, element)
    return single(number) if data_type == "float" else number


def single(number: float) -> float:
    """A number rounded to single precision."""
    with np.errstate(over="ignore"):
        return float(np.float32(number))


def given(raw: Any, field: Field) -> Value:
    """An element of an input array as a value; NaN and the empty text are missing."""
    if isinstance(raw, str):
        return None if raw == "" and "" not in field.valid else raw
    if isinstance(raw, bool | np.bool_):
        return bool(raw)
    if isinstance(raw, int | np.integer):
        return int(raw)
    return None if math.isnan(raw) else float(raw)


def preparer(field: Field, mining: MiningField) -> Callable[[Value], Value]:
    """What a model does to the value of an active field before it uses it."""
    is_valid = _validity(field)
    missing = frozenset(literal(text, field.data_type, field.element) for text in field.missing)
    substitute = _substitute(mining.missing_replacement, field, mining)
    instead = _substitute(mining.invalid_replacement, field, mining)

    def when_missing() -> Value:
        if mining.missing_returns_invalid:
            raise InvalidValue
        return substitute

    def prepare(value: Value) -> Value:
        if value is None or value in missing:
            return when_missing()
        if not is_valid(value):
            if mining.invalid == "returnInvalid":
                raise InvalidValue
            if mining.invalid == "asMissing":
                return when_missing()
            return instead if mining.invalid == "asValue" else value
        if mining.outliers == "asIs" or isinstance(value, str):
            return value
        assert mining.low is not None
        assert mining.high is not None
        if mining.low <= value <= mining.high:
            return value
        if mining.outliers == "asMissingValues":
            return when_missing()
        return mining.low if value < mining.low else mining.high

    return prepare


def _substitute(text: str | None, field: Field, mining: MiningField) -> Value:
    return None if text is None else literal(text, field.data_type, mining.element)


def _validity(field: Field) -> Callable[[Value], bool]:
    listed = frozenset(literal(text, field.data_type, field.element) for text in field.valid)
    barred = frozenset(literal(text, field.data_type, field.element) for text in field.invalid)
    if field.optype == "continuous" and field.intervals:
        return lambda v: v not in barred and (v in listed or any(holds(i, v) for i in field.intervals))
    if listed:
        return lambda v: v in listed
    return lambda v: v not in barred


def holds(interval: Interval, value: Value) -> bool:
    """Whether a number lies in an interval."""
    assert isinstance(value, int | float)
    left, right = interval.left, interval.right
    if left is not None and not (value > left or (value == left and interval.closure.startswith("closed"))):
        return False
    return right is None or value < right or (value == right and interval.closure.endswith("Closed"))


class Scope:
    """The fields that one row has inside one model; derived fields are computed when asked for."""

    __slots__ = ("_around", "_derived", "_known")

    def __init__(
        self,
        known: dict[str, Value],
        derived: Mapping[str, Callable[[Scope], Value]],
        around: Scope | None = None,
    ) -> None:
        self._known = known
        self._derived = derived
        self._around = around

    def get(self, name: str) -> Value:
        """The value of a field."""
        if name in self._known:
            return self._known[name]
        if name in self._derived:
            value = self._known[name] = self._derived[name](self)
            return value
        assert self._around is not None, f"names are checked when a model is read: {name}"
        return self._around.get(name)

    def put(self, name: str, value: Value) -> None:
        """Add what a segment gave."""
        self._known[name] = value
