"""Predicates as columns of truth, with the rows apart that a missing value leaves open."""

from __future__ import annotations

from collections.abc import Sequence

from paritygate.converter.exporters._pmml.elements import Element, malformed, parse_array, refuse
from paritygate.converter.exporters._pmml.emission.graph import Column, Graph, Truth
from paritygate.converter.exporters._pmml.emission.scope import Fields, value_of

KINDS = ("True", "False", "SimplePredicate", "SimpleSetPredicate", "CompoundPredicate")
COMPARISONS = {
    "lessThan": "Less", "lessOrEqual": "LessOrEqual", "greaterThan": "Greater", "greaterOrEqual": "GreaterOrEqual",
}  # fmt: skip


def predicate_of(holder: Element) -> Element:
    """The predicate of a node or segment."""
    found = [child for child in holder.children if child.tag in KINDS]
    if not found:
        raise malformed(holder, "it lacks a predicate")
    return found[0]


def emit_predicate(element: Element, fields: Fields) -> Truth:
    """A predicate in every row."""
    graph = fields.graph
    if element.tag in ("True", "False"):
        return Truth(graph.everywhere(element.tag == "True"))
    if element.tag == "CompoundPredicate":
        parts = [emit_predicate(child, fields) for child in element.children if child.tag in KINDS]
        return _joined(element, graph, parts)
    column = fields.column(element.need("field"), element)
    if element.tag == "SimpleSetPredicate":
        values = set_values(element, graph, column)
        return _known(
            graph, column, graph.member(column, values), flip=element.get("booleanOperator") == "isNotIn"
        )
    return _simple(element, graph, column)


def set_values(element: Element, graph: Graph, column: Column) -> list[float]:
    """The members that a SimpleSetPredicate names."""
    if element.need("booleanOperator") not in ("isIn", "isNotIn"):
        raise malformed(element, f"booleanOperator {element.get('booleanOperator')!r} is none")
    return [
        value_of(graph, token, column.data_type, element) for token in parse_array(element.child("Array"))
    ]


def _simple(element: Element, graph: Graph, column: Column) -> Truth:
    sign = element.need("operator")
    if sign in ("isMissing", "isNotMissing"):
        gone = graph.missing(column)
        if gone is None:
            return Truth(graph.everywhere(sign == "isNotMissing"))
        return Truth(gone if sign == "isMissing" else graph.op("Not", gone))
    bound = value_of(graph, element.need("value"), column.data_type, element)
    if sign in ("equal", "notEqual"):
        return _known(graph, column, graph.member(column, [bound]), flip=sign == "notEqual")
    if sign not in COMPARISONS:
        raise malformed(element, f"operator {sign!r} is none")
    if column.data_type == "string":
        raise refuse(element, f"{sign} on texts", "Compare texts with equal, notEqual, isIn or isNotIn.")
    return Truth(graph.op(COMPARISONS[sign], column.name, graph.number(bound)), graph.missing(column))


def _known(graph: Graph, column: Column, holds: str, *, flip: bool) -> Truth:
    gone = graph.missing(column)
    if not flip:
        return Truth(holds, gone)
    outside = graph.op("Not", holds)
    return Truth(outside if gone is None else graph.op("And", outside, graph.op("Not", gone)), gone)


def _joined(element: Element, graph: Graph, parts: Sequence[Truth]) -> Truth:
    if len(parts) < 2:
        raise malformed(element, "it joins fewer than two predicates")
    joins = {"and": _all, "or": _any, "xor": _odd, "surrogate": _first}
    sign = element.need("booleanOperator")
    if sign not in joins:
        raise malformed(element, f"booleanOperator {sign!r} is none")
    result = parts[-1]
    for part in reversed(parts[:-1]):
        result = joins[sign](graph, part, result)
    return result


def _all(graph: Graph, a: Truth, b: Truth) -> Truth:
    both = graph.op("And", a.true, b.true)
    maybe_a = a.true if a.open is None else graph.op("Or", a.true, a.open)
    maybe_b = b.true if b.open is None else graph.op("Or", b.true, b.open)
    if a.open is None and b.open is None:
        return Truth(both)
    return Truth(both, graph.op("And", graph.op("And", maybe_a, maybe_b), graph.op("Not", both)))


def _any(graph: Graph, a: Truth, b: Truth) -> Truth:
    one = graph.op("Or", a.true, b.true)
    undecided = graph.either(a.open, b.open)
    return Truth(one, None if undecided is None else graph.op("And", undecided, graph.op("Not", one)))


def _odd(graph: Graph, a: Truth, b: Truth) -> Truth:
    odd = graph.op("Xor", a.true, b.true)
    undecided = graph.either(a.open, b.open)
    return Truth(odd if undecided is None else graph.op("And", odd, graph.op("Not", undecided)), undecided)


def _first(graph: Graph, a: Truth, b: Truth) -> Truth:
    if a.open is None:
        return a
    true = graph.op("Or", a.true, graph.op("And", a.open, b.true))
    return Truth(true, None if b.open is None else graph.op("And", a.open, b.open))
