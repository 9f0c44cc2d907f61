"""Rows at which a document decides: the numbers and texts that it compares with, and the values beside them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from paritygate.converter.exporters._pmml.declarations import Field
from paritygate.converter.exporters._pmml.elements import Document, Element, parse_array

_SEED = 20_077
_WORK = 1_500_000
"""Nodes that all rows together may pass: what the scorer does in about two seconds."""
_MOST_ROWS, _FEWEST_ROWS = 512, 48
_MISSING_SHARE = 0.06
_UNKNOWN_TEXT = "none of these"
_NUMERIC = ("double", "float", "integer")


class Sampler:
    """Draws rows from the values that a document names for each of its fields."""

    def __init__(self, document: Document, fields: Sequence[Field]) -> None:
        self._fields = fields
        self._named: dict[str, list[float | str]] = {field.name: _of_declaration(field) for field in fields}
        self._nodes = 0
        self._trees = 0
        for element in document.root.walk():
            self._nodes += element.tag in ("Node", "NumericPredictor", "Con")
            self._trees += element.tag == "TreeModel"
            self._note(element)

    def most_rows(self) -> int:
        """As many rows as the scorer answers in a short while."""
        passed = self._trees * 40 if self._trees else self._nodes
        return int(np.clip(_WORK // max(passed, 1), _FEWEST_ROWS, _MOST_ROWS))

    def rows(self, count: int, *, missing: bool) -> dict[str, list[Any]]:
        """Values by field; None is a missing one."""
        rng = np.random.RandomState(_SEED)
        return {field.name: self._draw(field, count, rng, missing=missing) for field in self._fields}

    def _note(self, element: Element) -> None:
        name = element.attributes.get("field") or element.attributes.get("name", "")
        if name not in self._named:
            return
        values = self._named[name]
        if (
            element.tag in ("SimplePredicate", "NormDiscrete", "CategoricalPredictor")
            and "value" in element.attributes
        ):
            values.append(element.attributes["value"])
        elif element.tag == "SimpleSetPredicate":
            array = element.find("Array")
            values.extend(parse_array(array) if array is not None else [])
        elif element.tag in ("NormContinuous", "Discretize", "MapValues"):
            values.extend(_bounds_in(element))

    def _draw(self, field: Field, count: int, rng: np.random.RandomState, *, missing: bool) -> list[Any]:
        named = list(dict.fromkeys(self._named[field.name]))
        if field.data_type == "string":
            texts = [str(value) for value in named] or ["a", "b"]
            drawn: list[Any] = [
                ([*texts, _UNKNOWN_TEXT] if missing else texts)[k] for k in _picks(rng, texts, count, missing)
            ]
        elif field.data_type == "boolean":
            drawn = [bool(bit) for bit in rng.randint(2, size=count)]
        else:
            drawn = _numbers(field, named, count, rng)
        if missing:
            gone = rng.random_sample(count) < _MISSING_SHARE
            drawn = [None if lost else value for value, lost in zip(drawn, gone, strict=True)]
        return drawn


def _picks(rng: np.random.RandomState, texts: Sequence[str], count: int, missing: bool) -> list[int]:
    return [int(k) for k in rng.randint(len(texts) + missing, size=count)]


def _numbers(
    field: Field, named: Sequence[float | str], count: int, rng: np.random.RandomState
) -> list[float]:
    """The named numbers, the next ones on both sides, and some on the scale of them."""
    known = np.array([number for number in map(_as_number, named) if number is not None], dtype=np.float64)
    spread = rng.standard_normal(count)
    if known.size == 0:
        return [float(value) for value in spread]
    scale = float(known.std()) or max(abs(float(known[0])), 1.0) * 0.25
    picked = known[rng.randint(known.size, size=count)]
    if field.data_type == "float":
        picked = picked.astype(np.float32).astype(np.float64)
    narrow = np.float32 if field.data_type == "float" else np.float64
    step = 1.0 if field.data_type == "integer" else None
    above = picked + 1 if step else np.nextafter(picked.astype(narrow), narrow(np.inf)).astype(np.float64)
    below = picked - 1 if step else np.nextafter(picked.astype(narrow), narrow(-np.inf)).astype(np.float64)
    around = picked + spread * scale
    kind = rng.randint(5, size=count)
    return [float(v) for v in np.choose(kind, [picked, above, below, around, around])]


def _as_number(value: float | str) -> float | None:
    try:
        number = float(value)
    except ValueError:
        return None
    return number if np.isfinite(number) else None


def _of_declaration(field: Field) -> list[float | str]:
    named: list[float | str] = [*field.valid, *field.missing, *field.invalid]
    for interval in field.intervals:
        named += [bound for bound in (interval.left, interval.right) if bound is not None]
    return named


def _bounds_in(element: Element) -> list[str]:
    found = [pair.attributes["orig"] for pair in element.all("LinearNorm") if "orig" in pair.attributes]
    for entry in element.all("DiscretizeBin"):
        interval = entry.find("Interval")
        if interval is not None:
            found += [v for k, v in interval.attributes.items() if k in ("leftMargin", "rightMargin")]
    return found
