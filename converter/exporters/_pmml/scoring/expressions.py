"""Expressions of derived fields: constants, references, scalings, tables and built-in functions."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, TypeAlias

from paritygate.converter.exporters._pmml.declarations import parse_interval
from paritygate.converter.exporters._pmml.elements import Element, malformed, refuse
from paritygate.converter.exporters._pmml.scoring.functions import FUNCTIONS, Function
from paritygate.converter.exporters._pmml.scoring.types import Types
from paritygate.converter.exporters._pmml.scoring.values import Scope, Value, holds, literal, single

Compute: TypeAlias = Callable[[Scope], Value]

EXPRESSIONS = ("Constant", "FieldRef", "NormContinuous", "NormDiscrete", "Discretize", "MapValues", "Apply")


@dataclass(frozen=True)
class Expression:
    """An expression that can be computed, and the type of what it gives."""

    compute: Compute
    data_type: str


def expression_in(holder: Element) -> Element:
    """The expression of a derived or output field."""
    for child in holder.children:
        if child.tag in EXPRESSIONS:
            return child
        if child.tag not in ("Value", "Decisions"):
            raise refuse(child, f"the expression {child.tag}", f"{', '.join(EXPRESSIONS)} are.")
    raise malformed(holder, "it lacks an expression")


def read_derived(element: Element, types: Types) -> Compute:
    """A DerivedField: its expression, as a value of its own type."""
    kind = element.need("dataType")
    inner = read_expression(expression_in(element), types)
    return _cast(inner, kind, element)


def _cast(inner: Expression, kind: str, element: Element) -> Compute:
    compute = inner.compute
    if kind == inner.data_type or (kind == "double" and inner.data_type in ("integer", "float")):
        return compute
    if kind == "float" and inner.data_type in ("double", "integer"):
        return lambda scope: None if (value := compute(scope)) is None else single(float(value))
    if kind in ("double", "float", "integer") and inner.data_type == "boolean":
        return lambda scope: None if (value := compute(scope)) is None else float(bool(value))
    if kind == "boolean" and inner.data_type in ("double", "integer", "float"):
        return lambda scope: None if (value := compute(scope)) is None else value != 0
    raise refuse(
        element,
        f"dataType {kind!r} of an expression that gives {inner.data_type}",
        f"Declare dataType {inner.data_type!r}.",
    )


def read_expression(element: Element, types: Types) -> Expression:
    """An expression as a function of a row."""
    readers = {
        "Constant": _constant,
        "FieldRef": _reference,
        "NormContinuous": _scaled,
        "NormDiscrete": _indicator,
        "Discretize": _binned,
        "MapValues": _mapped,
        "Apply": _applied,
    }
    if element.tag not in readers:
        raise refuse(element, f"the expression {element.tag}", f"{', '.join(EXPRESSIONS)} are.")
    return readers[element.tag](element, types)


def _constant(element: Element, types: Types, expected: str = "") -> Expression:
    if element.get("missing") == "true":
        return Expression(lambda scope: None, expected or "double")
    kind = element.get("dataType") or expected or _kind_of_text(element.text)
    value = literal(element.text, kind, element)
    return Expression(lambda scope: value, kind)


def _kind_of_text(text: str) -> str:
    try:
        float(text)
    except ValueError:
        return "string"
    return "integer" if text.strip().lstrip("+-").isdecimal() else "double"


def _reference(element: Element, types: Types) -> Expression:
    name = element.need("field")
    kind = types.of(name, element)
    instead = _if_missing(element, kind)
    return Expression(lambda scope: instead if (value := scope.get(name)) is None else value, kind)


def _if_missing(element: Element, kind: str) -> Value:
    text = element.attributes.get("mapMissingTo")
    return None if text is None else literal(text, kind, element)


def _scaled(element: Element, types: Types) -> Expression:
    name = element.need("field")
    if types.of(name, element) not in ("double", "float", "integer"):
        raise malformed(element, f"the field {name!r} holds no numbers")
    points = [(pair.number("orig"), pair.number("norm")) for pair in element.all("LinearNorm")]
    if len(points) < 2 or any(a >= b for (a, _), (b, _) in pairwise(points)):
        raise malformed(element, "its LinearNorm points are fewer than two or do not rise")
    outliers = element.get("outliers", "asIs")
    instead = _if_missing(element, "double")

    def compute(scope: Scope) -> Value:
        value = scope.get(name)
        if value is None:
            return instead
        assert not isinstance(value, str)
        if outliers != "asIs" and not points[0][0] <= value <= points[-1][0]:
            if outliers == "asMissingValues":
                return instead
            return points[0][1] if value < points[0][0] else points[-1][1]
        return interpolate(points, float(value))

    return Expression(compute, "double")


def interpolate(points: Sequence[tuple[float, float]], value: float) -> float:
    """The line through the two points around a value; the outer lines go on."""
    at = next((k for k in range(1, len(points) - 1) if value < points[k][0]), len(points) - 1)
    (x0, y0), (x1, y1) = points[at - 1], points[at]
    return y0 + (value - x0) / (x1 - x0) * (y1 - y0)


def _indicator(element: Element, types: Types) -> Expression:
    name = element.need("field")
    wanted = literal(element.need("value"), types.of(name, element), element)
    instead = _if_missing(element, "double")

    def compute(scope: Scope) -> Value:
        value = scope.get(name)
        return instead if value is None else float(value == wanted)

    return Expression(compute, "double")


def _binned(element: Element, types: Types) -> Expression:
    name = element.need("field")
    if types.of(name, element) not in ("double", "float", "integer"):
        raise malformed(element, f"the field {name!r} holds no numbers")
    texts = [entry.need("binValue") for entry in element.all("DiscretizeBin")]
    kind = _kind_of_result(element, texts)
    bins = [
        (parse_interval(entry.child("Interval")), literal(entry.need("binValue"), kind, entry))
        for entry in element.all("DiscretizeBin")
    ]
    instead = _if_missing(element, kind)
    default = element.attributes.get("defaultValue")
    otherwise = None if default is None else literal(default, kind, element)

    def compute(scope: Scope) -> Value:
        value = scope.get(name)
        if value is None:
            return instead
        return next((result for interval, result in bins if holds(interval, value)), otherwise)

    return Expression(compute, kind)


def _kind_of_result(element: Element, texts: Sequence[str]) -> str:
    """The type of a table's results: as it says, else that of the derived field around it, else texts."""
    if "dataType" in element.attributes:
        return element.attributes["dataType"]
    around = element.parent
    if (
        around is not None
        and around.tag in ("DerivedField", "OutputField")
        and "dataType" in around.attributes
    ):
        return around.attributes["dataType"]
    return "string"


def _mapped(element: Element, types: Types) -> Expression:
    keys = [(pair.need("field"), pair.need("column")) for pair in element.all("FieldColumnPair")]
    out = element.need("outputColumn")
    rows = [{cell.tag: cell.text for cell in row.children} for row in element.child("InlineTable").all("row")]
    kind = _kind_of_result(element, [])
    kinds = [types.of(name, element) for name, _ in keys]
    table: dict[tuple[Value, ...], Value] = {}
    for row in rows:
        missing = [column for column in (*(c for _, c in keys), out) if column not in row]
        if missing:
            raise malformed(element, f"a row of its table lacks the column {missing[0]!r}")
        key = tuple(literal(row[column], k, element) for (_, column), k in zip(keys, kinds, strict=True))
        table.setdefault(key, literal(row[out], kind, element))
    instead = _if_missing(element, kind)
    default = element.attributes.get("defaultValue")
    otherwise = None if default is None else literal(default, kind, element)

    def compute(scope: Scope) -> Value:
        key = tuple(scope.get(name) for name, _ in keys)
        return instead if None in key else table.get(key, otherwise)

    return Expression(compute, kind)


def _applied(element: Element, types: Types) -> Expression:
    name = element.need("function")
    if name not in FUNCTIONS:
        raise refuse(element, f"the function {name!r}", f"These are: {', '.join(sorted(FUNCTIONS))}.")
    function = FUNCTIONS[name]
    if element.get("invalidValueTreatment", "returnInvalid") not in ("returnInvalid", "asIs", "asMissing"):
        raise malformed(element, "its invalidValueTreatment is none")
    parts = _arguments(element, function, types)
    kind = function.data_type(element, [part.data_type for part in parts])
    instead = _if_missing(element, kind)
    maps_missing = "mapMissingTo" in element.attributes
    default = element.attributes.get("defaultValue")
    otherwise = None if default is None else literal(default, kind, element)
    call = function.call

    def compute(scope: Scope) -> Value:
        values = [part.compute(scope) for part in parts]
        if maps_missing and None in values:
            return instead
        result = call(values)
        if isinstance(result, float) and math.isnan(result):
            result = None
        return otherwise if result is None else result

    return Expression(compute, kind)


def _arguments(element: Element, function: Function, types: Types) -> list[Expression]:
    """The arguments; a constant that does not tell its type takes that of what it is compared with."""
    children = [child for child in element.children if child.tag in EXPRESSIONS]
    if len(children) != len(element.children):
        odd = next(child for child in element.children if child.tag not in EXPRESSIONS)
        raise refuse(odd, f"the expression {odd.tag}", f"{', '.join(EXPRESSIONS)} are.")
    low, high = function.arity
    if not low <= len(children) <= high:
        raise malformed(element, f"{element.get('function')!r} has {len(children)} arguments")
    expected = ""
    if function.compares:
        typed = [read_expression(c, types).data_type for c in children if c.tag != "Constant"]
        expected = typed[0] if typed else ""
        if len(set(typed)) > 1 and "string" in typed:
            raise refuse(element, "a comparison of texts with numbers", "Compare fields of one type.")
    parts = [
        _constant(c, types, expected)
        if c.tag == "Constant" and not _has_type(c)
        else read_expression(c, types)
        for c in children
    ]
    function.check(element, [part.data_type for part in parts])
    return parts


def _has_type(element: Element) -> bool:
    return "dataType" in element.attributes


def cast_value(value: Any, kind: str) -> Value:
    """A predicted value as an output field of a type gives it to later segments."""
    if value is None or kind in ("", "string") or isinstance(value, str):
        return value  # type: ignore[no-any-return]
    return single(float(value)) if kind == "float" else value
