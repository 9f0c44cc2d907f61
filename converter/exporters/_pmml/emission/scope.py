"""Fields as columns: what a mining schema lets in, derived on first use, looked up from the inside out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias

import onnx

from paritygate.converter.exporters._pmml.declarations import Field, Interval, MiningField
from paritygate.converter.exporters._pmml.elements import Element, malformed, parse_number, refuse
from paritygate.converter.exporters._pmml.emission.graph import Column, Graph, single

Derive: TypeAlias = Callable[["Fields", Element], Column]


class Fields:
    """The fields that a model can name."""

    def __init__(
        self,
        graph: Graph,
        known: dict[str, Column],
        derived: Mapping[str, Element],
        derive: Derive,
        around: Fields | None = None,
    ) -> None:
        self.graph = graph
        self._known = known
        self._derived = derived
        self._derive = derive
        self._around = around

    def column(self, name: str, element: Element) -> Column:
        """The column of a field."""
        if name in self._known:
            return self._known[name]
        if name in self._derived:
            column = self._known[name] = self._derive(self, self._derived[name])
            return column
        if self._around is None:
            raise malformed(element, f"nothing declares the field {name!r}")
        return self._around.column(name, element)

    def put(self, name: str, column: Column) -> None:
        """Add what a segment gives."""
        self._known[name] = column


def value_of(graph: Graph, text: str, data_type: str, element: Element) -> float:
    """A text of the file as the number that columns of a type hold."""
    if data_type == "string":
        return graph.code(text)
    if data_type == "boolean":
        known = {"true": 1.0, "1": 1.0, "1.0": 1.0, "false": 0.0, "0": 0.0, "0.0": 0.0}
        if text.lower() not in known:
            raise malformed(element, f"{text!r} is no boolean")
        return known[text.lower()]
    if data_type not in ("double", "float", "integer"):
        raise refuse(element, f"dataType {data_type!r}", "Use double, float, integer, string or boolean.")
    number = parse_number(text, element)
    return single(number) if data_type == "float" else number


def let_in(graph: Graph, field: Field, mining: MiningField, column: Column) -> tuple[Column, str | None]:
    """An input as a model's mining schema lets it in, and where it makes a row invalid (None: nowhere)."""

    def values(texts: tuple[str, ...]) -> list[float]:
        return [value_of(graph, text, field.data_type, field.element) for text in texts]

    name, may_miss = column.name, column.may_miss
    if field.missing:
        name = graph.where(graph.member(column, values(field.missing)), graph.number(float("nan")), name)
        may_miss = True
    column = Column(name, column.data_type, may_miss)
    missing = graph.missing(column)
    bad = _invalid(graph, field, column, values)
    barred: str | None = None
    treated = _without_outliers(graph, mining, column)
    if bad is not None:
        if mining.invalid == "returnInvalid":
            barred = bad
        else:
            instead = {"asIs": column.name, "asMissing": graph.number(float("nan"))}.get(mining.invalid)
            if instead is None:
                text = mining.invalid_replacement or ""
                instead = graph.number(value_of(graph, text, field.data_type, mining.element))
            treated = graph.where(bad, instead, treated)
            may_miss = may_miss or mining.invalid == "asMissing"
    may_miss = may_miss or mining.outliers == "asMissingValues"
    if mining.missing_returns_invalid and may_miss:
        new = Column(treated, column.data_type, may_miss)
        return new, graph.either(barred, graph.missing(new), missing)
    if mining.missing_replacement is None:
        return Column(treated, column.data_type, may_miss), barred
    if not may_miss:
        return Column(treated, column.data_type, False), barred
    gone = graph.op("IsNaN", treated)
    substitute = graph.number(value_of(graph, mining.missing_replacement, field.data_type, mining.element))
    return Column(graph.where(gone, substitute, treated), column.data_type, False), barred


def _invalid(
    graph: Graph, field: Field, column: Column, values: Callable[[tuple[str, ...]], list[float]]
) -> str | None:
    """Where a value is there and not valid; None if all are."""
    if field.optype == "continuous" and field.intervals:
        inside = [within(graph, interval, column.name) for interval in field.intervals]
        inside += [graph.member(column, values(field.valid))] if field.valid else []
        good = graph.either(*inside)
        if field.invalid:
            barred = graph.op("Not", graph.member(column, values(field.invalid)))
            good = barred if good is None else graph.op("And", good, barred)
    elif field.valid:
        good = graph.member(column, values(field.valid))
    elif field.invalid:
        return graph.member(column, values(field.invalid))
    else:
        return None
    if good is None:
        return None
    bad = graph.op("Not", good)
    missing = graph.missing(column)
    return bad if missing is None else graph.op("And", bad, graph.op("Not", missing))


def within(graph: Graph, interval: Interval, name: str) -> str:
    """Where numbers lie in an interval; a missing one does not."""
    tests = []
    if interval.left is not None:
        kind = "GreaterOrEqual" if interval.closure.startswith("closed") else "Greater"
        tests.append(graph.op(kind, name, graph.number(interval.left)))
    if interval.right is not None:
        kind = "LessOrEqual" if interval.closure.endswith("Closed") else "Less"
        tests.append(graph.op(kind, name, graph.number(interval.right)))
    if not tests:
        return graph.op("Not", graph.op("IsNaN", name))
    return tests[0] if len(tests) == 1 else graph.op("And", *tests)


def _without_outliers(graph: Graph, mining: MiningField, column: Column) -> str:
    if mining.outliers == "asIs" or column.data_type == "string":
        return column.name
    assert mining.low is not None
    assert mining.high is not None
    name = column.name
    below = graph.op("Less", name, graph.number(mining.low))
    above = graph.op("Greater", name, graph.number(mining.high))
    if mining.outliers == "asMissingValues":
        return graph.where(graph.op("Or", below, above), graph.number(float("nan")), name)
    raised = graph.where(below, graph.number(mining.low), name)
    return graph.where(above, graph.number(mining.high), raised)


def rounded_to_single(graph: Graph, name: str) -> str:
    """A column with its numbers as single precision holds them."""
    return graph.cast(graph.cast(name, onnx.TensorProto.FLOAT), onnx.TensorProto.DOUBLE)
