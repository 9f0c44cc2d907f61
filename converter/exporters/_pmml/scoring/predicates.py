"""Predicates in three-valued logic: True, False, or None where a missing value leaves it open."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from paritygate.converter.exporters._pmml.elements import Element, malformed, parse_array, refuse
from paritygate.converter.exporters._pmml.scoring.types import Types
from paritygate.converter.exporters._pmml.scoring.values import Scope, literal

Test: TypeAlias = Callable[[Scope], "bool | None"]

PREDICATES = ("True", "False", "SimplePredicate", "SimpleSetPredicate", "CompoundPredicate")

_COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    "equal": operator.eq,
    "notEqual": operator.ne,
    "lessThan": operator.lt,
    "lessOrEqual": operator.le,
    "greaterThan": operator.gt,
    "greaterOrEqual": operator.ge,
}


def predicate_in(holder: Element) -> Element:
    """The predicate of a node or segment."""
    for child in holder.children:
        if child.tag in PREDICATES:
            return child
    raise malformed(holder, "it lacks a predicate")


def read_predicate(element: Element, types: Types) -> Test:
    """A predicate as a function of a row."""
    if element.tag == "True":
        return lambda scope: True
    if element.tag == "False":
        return lambda scope: False
    if element.tag == "SimplePredicate":
        return _simple(element, types)
    if element.tag == "SimpleSetPredicate":
        return _member(element, types)
    return _compound(element, types)


def _simple(element: Element, types: Types) -> Test:
    name, sign = element.need("field"), element.need("operator")
    kind = types.of(name, element)
    if sign == "isMissing":
        return lambda scope: scope.get(name) is None
    if sign == "isNotMissing":
        return lambda scope: scope.get(name) is not None
    if sign not in _COMPARE:
        raise malformed(element, f"operator {sign!r} is none")
    if kind == "string" and sign not in ("equal", "notEqual"):
        raise refuse(
            element,
            f"{sign} on the texts of {name!r}",
            "Compare texts with equal, notEqual, isIn or isNotIn.",
        )
    compare, bound = _COMPARE[sign], literal(element.need("value"), kind, element)

    def test(scope: Scope) -> bool | None:
        value = scope.get(name)
        return None if value is None else compare(value, bound)

    return test


def _member(element: Element, types: Types) -> Test:
    name, sign = element.need("field"), element.need("booleanOperator")
    if sign not in ("isIn", "isNotIn"):
        raise malformed(element, f"booleanOperator {sign!r} is none")
    kind = types.of(name, element)
    values = frozenset(literal(token, kind, element) for token in parse_array(element.child("Array")))

    def test(scope: Scope) -> bool | None:
        value = scope.get(name)
        return None if value is None else (value in values) == (sign == "isIn")

    return test


def _compound(element: Element, types: Types) -> Test:
    sign = element.need("booleanOperator")
    parts = [read_predicate(child, types) for child in element.children if child.tag in PREDICATES]
    joins = {"and": _all, "or": _any, "xor": _odd, "surrogate": _first}
    if sign not in joins:
        raise malformed(element, f"booleanOperator {sign!r} is none")
    if len(parts) < 2:
        raise malformed(element, "it joins fewer than two predicates")
    join = joins[sign]
    return lambda scope: join(parts, scope)


def _all(parts: Sequence[Test], scope: Scope) -> bool | None:
    found = [part(scope) for part in parts]
    return False if False in found else None if None in found else True


def _any(parts: Sequence[Test], scope: Scope) -> bool | None:
    found = [part(scope) for part in parts]
    return True if True in found else None if None in found else False


def _odd(parts: Sequence[Test], scope: Scope) -> bool | None:
    found = [part(scope) for part in parts]
    return None if None in found else found.count(True) % 2 == 1


def _first(parts: Sequence[Test], scope: Scope) -> bool | None:
    for part in parts:
        found = part(scope)
        if found is not None:
            return found
    return None
