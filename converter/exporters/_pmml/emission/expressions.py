"""Expressions of derived fields as columns."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise

import numpy as np

from paritygate.converter.exporters._pmml.declarations import parse_interval
from paritygate.converter.exporters._pmml.elements import Element, malformed, refuse
from paritygate.converter.exporters._pmml.emission.functions import emit_function
from paritygate.converter.exporters._pmml.emission.graph import Column, Graph
from paritygate.converter.exporters._pmml.emission.scope import Fields, rounded_to_single, value_of, within

KINDS = ("Constant", "FieldRef", "NormContinuous", "NormDiscrete", "Discretize", "MapValues", "Apply")
MOST_ROWS = 2_000
"""Rows of a table that becomes a chain of choices; a table over one text field has no such limit."""

NAN = float("nan")


def emit_derived(fields: Fields, element: Element) -> Column:
    """A DerivedField as a column of its own type."""
    found = emit_expression(_expression_of(element), fields)
    return as_type(fields.graph, found, element.need("dataType"))


def as_type(graph: Graph, column: Column, data_type: str) -> Column:
    """A column under another type; only what a float cannot hold changes."""
    if data_type == "float" and column.data_type in ("double", "integer"):
        return Column(rounded_to_single(graph, column.name), "float", column.may_miss)
    if data_type == "boolean" and column.data_type != "boolean":
        nonzero = graph.cast(graph.op("Not", graph.op("Equal", column.name, graph.number(0.0))), 11)
        return Column(_unless(graph, graph.missing(column), nonzero), "boolean", column.may_miss)
    return Column(column.name, data_type or column.data_type, column.may_miss, column.closed)


def _expression_of(holder: Element) -> Element:
    found = [child for child in holder.children if child.tag in KINDS]
    if not found:
        raise malformed(holder, "it lacks an expression")
    return found[0]


def emit_output_expression(element: Element, fields: Fields) -> Column:
    """The expression of an OutputField."""
    return as_type(fields.graph, emit_expression(_expression_of(element), fields), element.get("dataType"))


def emit_expression(element: Element, fields: Fields) -> Column:
    """An expression as a column."""
    emitters: dict[str, Callable[[Element, Fields], Column]] = {
        "FieldRef": _reference,
        "NormContinuous": _scaled,
        "NormDiscrete": _indicator,
        "Discretize": _binned,
        "MapValues": _mapped,
        "Apply": _applied,
    }
    if element.tag == "Constant":
        return _constant(element, fields.graph, "")
    if element.tag not in emitters:
        raise refuse(element, f"the expression {element.tag}", f"{', '.join(KINDS)} are.")
    return emitters[element.tag](element, fields)


def _constant(element: Element, graph: Graph, expected: str) -> Column:
    if element.get("missing") == "true":
        return Column(graph.filled(NAN), expected or "double", True)
    kind = element.get("dataType") or expected or _told_by(element.text)
    value = value_of(graph, element.text, kind, element)
    return Column(graph.filled(value), kind, value != value, closed=True)


def _told_by(text: str) -> str:
    bare = text.strip().lstrip("+-")
    if bare.isdecimal():
        return "integer"
    try:
        float(bare)
    except ValueError:
        return "string"
    return "double"


def _unless(graph: Graph, missing: str | None, name: str, instead: float = NAN) -> str:
    """A column with another value where something is missing."""
    return name if missing is None else graph.where(missing, graph.number(instead), name)


def _filled_in(element: Element, graph: Graph, column: Column) -> Column:
    """A column with its missing values as `mapMissingTo` says."""
    text = element.attributes.get("mapMissingTo")
    if text is None or not column.may_miss:
        return column
    value = value_of(graph, text, column.data_type, element)
    name = _unless(graph, graph.missing(column), column.name, value)
    return Column(name, column.data_type, False, column.closed)


def _reference(element: Element, fields: Fields) -> Column:
    return _filled_in(element, fields.graph, fields.column(element.need("field"), element))


def _scaled(element: Element, fields: Fields) -> Column:
    graph, column = fields.graph, fields.column(element.need("field"), element)
    points = [(pair.number("orig"), pair.number("norm")) for pair in element.all("LinearNorm")]
    if len(points) < 2:
        raise malformed(element, "it has fewer than two LinearNorm points")
    name = piecewise(graph, column.name, points)
    outliers, missing = element.get("outliers", "asIs"), column.may_miss
    if outliers != "asIs":
        below = graph.op("Less", column.name, graph.number(points[0][0]))
        above = graph.op("Greater", column.name, graph.number(points[-1][0]))
        ends = (points[0][1], points[-1][1]) if outliers == "asExtremeValues" else (NAN, NAN)
        name = graph.where(below, graph.number(ends[0]), name)
        name = graph.where(above, graph.number(ends[1]), name)
        missing = missing or outliers == "asMissingValues"
    return _filled_in(element, graph, Column(name, "double", missing))


def piecewise(graph: Graph, name: str, points: Sequence[tuple[float, float]]) -> str:
    """The line through points that rise; its ends go on."""
    result = ""
    for (x0, y0), (x1, y1) in reversed(list(pairwise(points))):
        moved = graph.op("Sub", name, graph.number(x0))
        line = graph.op("Mul", graph.op("Div", moved, graph.number(x1 - x0)), graph.number(y1 - y0))
        line = graph.op("Add", graph.number(y0), line)
        result = line if not result else graph.where(graph.op("Less", name, graph.number(x1)), line, result)
    return result


def _indicator(element: Element, fields: Fields) -> Column:
    graph, column = fields.graph, fields.column(element.need("field"), element)
    wanted = value_of(graph, element.need("value"), column.data_type, element)
    hit = graph.cast(graph.member(column, [wanted]), 11)
    name = _unless(graph, graph.missing(column), hit)
    return _filled_in(element, graph, Column(name, "double", column.may_miss))


def _result_type(element: Element) -> str:
    if "dataType" in element.attributes:
        return element.attributes["dataType"]
    around = element.parent
    told = around is not None and around.tag in ("DerivedField", "OutputField")
    return around.get("dataType", "string") if told and around is not None else "string"


def _default(element: Element, graph: Graph, kind: str) -> float:
    text = element.attributes.get("defaultValue")
    return NAN if text is None else value_of(graph, text, kind, element)


def _binned(element: Element, fields: Fields) -> Column:
    graph, column = fields.graph, fields.column(element.need("field"), element)
    kind = _result_type(element)
    otherwise = _default(element, graph, kind)
    name = graph.filled(otherwise)
    for entry in reversed(element.all("DiscretizeBin")):
        inside = within(graph, parse_interval(entry.child("Interval")), column.name)
        name = graph.where(inside, graph.number(value_of(graph, entry.need("binValue"), kind, entry)), name)
    missing = graph.missing(column)
    name = _unless(graph, missing, name)
    may_miss = column.may_miss or otherwise != otherwise
    return _filled_in_where(element, graph, Column(name, kind, may_miss, closed=True), missing)


def _filled_in_where(element: Element, graph: Graph, column: Column, missing: str | None) -> Column:
    """`mapMissingTo` for a missing input, which a table keeps apart from a value that it does not hold."""
    text = element.attributes.get("mapMissingTo")
    if text is None or missing is None:
        return column
    value = value_of(graph, text, column.data_type, element)
    name = graph.where(missing, graph.number(value), column.name)
    return Column(name, column.data_type, column.may_miss, column.closed)


def _mapped(element: Element, fields: Fields) -> Column:
    graph, kind = fields.graph, _result_type(element)
    pairs = [(pair.need("field"), pair.need("column")) for pair in element.all("FieldColumnPair")]
    columns = [fields.column(name, element) for name, _ in pairs]
    table: dict[tuple[float, ...], float] = {}
    for row in element.child("InlineTable").all("row"):
        cells = {cell.tag: cell.text for cell in row.children}
        key = tuple(
            value_of(graph, _cell(cells, c, row), column.data_type, row)
            for (_, c), column in zip(pairs, columns, strict=True)
        )
        table.setdefault(key, value_of(graph, _cell(cells, element.need("outputColumn"), row), kind, row))
    otherwise = _default(element, graph, kind)
    missing = graph.either(*map(graph.missing, columns))
    if len(columns) == 1 and columns[0].data_type == "string":
        name = _looked_up(graph, columns[0], table, otherwise)
    else:
        name = _chosen(element, graph, columns, table, otherwise)
    may_miss = missing is not None or otherwise != otherwise
    name = _unless(graph, missing, name)
    return _filled_in_where(element, graph, Column(name, kind, may_miss, closed=True), missing)


def _cell(cells: Mapping[str, str], column: str, row: Element) -> str:
    if column not in cells:
        raise malformed(row, f"it lacks the column {column!r}")
    return cells[column]


def _looked_up(
    graph: Graph, column: Column, table: Mapping[tuple[float, ...], float], otherwise: float
) -> str:
    """A table over one text field: its number is the row."""
    size = max((int(key[0]) for key in table), default=0) + 1
    values = np.full((size + 1, 1), otherwise)
    for (code,), value in table.items():
        values[int(code), 0] = value
    known = graph.op("And", graph.op("GreaterOrEqual", column.name, graph.number(0.0)),
                     graph.op("Less", column.name, graph.number(float(size))))  # fmt: skip
    row = graph.cast(graph.where(known, column.name, graph.number(float(size))), 7)
    return graph.op("Gather", graph.constant(values[:, 0]), row, axis=0)


def _chosen(
    element: Element, graph: Graph, columns: Sequence[Column], table: Mapping[tuple[float, ...], float],
    otherwise: float,
) -> str:  # fmt: skip
    if len(table) > MOST_ROWS:
        raise refuse(
            element,
            f"a table of {len(table)} rows over numbers or several fields",
            f"Up to {MOST_ROWS} rows are.",
        )
    name = graph.filled(otherwise)
    for key, value in table.items():
        hit = ""
        for column, wanted in zip(columns, key, strict=True):
            same = graph.op("Equal", column.name, graph.number(wanted))
            hit = graph.op("And", hit, same) if hit else same
        name = graph.where(hit, graph.number(value), name)
    return name


def _applied(element: Element, fields: Fields) -> Column:
    graph = fields.graph
    children = element.children
    typed = [
        None if c.tag == "Constant" and "dataType" not in c.attributes else emit_expression(c, fields)
        for c in children
    ]
    compares = element.get("function") in (
        "equal", "notEqual", "lessThan", "lessOrEqual", "greaterThan", "greaterOrEqual", "isIn", "isNotIn",
    )  # fmt: skip
    kinds = [
        column.data_type
        for child, column in zip(children, typed, strict=True)
        if column and child.tag != "Constant"
    ]
    expected = kinds[0] if compares and kinds else ""
    columns = [c or _constant(child, graph, expected) for child, c in zip(children, typed, strict=True)]
    result = emit_function(element, graph, columns)
    if "mapMissingTo" in element.attributes:
        missing = graph.either(*map(graph.missing, columns))
        if missing is not None:
            value = value_of(graph, element.attributes["mapMissingTo"], result.data_type, element)
            kept = graph.where(missing, graph.number(value), result.name)
            result = Column(kept, result.data_type, result.may_miss, result.closed)
    if "defaultValue" in element.attributes and result.may_miss:
        value = value_of(graph, element.attributes["defaultValue"], result.data_type, element)
        result = Column(
            _unless(graph, graph.missing(result), result.name, value), result.data_type, False, result.closed
        )
    return result
