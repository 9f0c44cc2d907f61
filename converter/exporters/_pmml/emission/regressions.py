"""RegressionModel as one matrix of predictors times one of coefficients, and a link."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from paritygate.converter.exporters._pmml.elements import Element, malformed, only, refuse
from paritygate.converter.exporters._pmml.emission.graph import Column, Graph
from paritygate.converter.exporters._pmml.emission.models import Place, Result, elected, nothing_where
from paritygate.converter.exporters._pmml.emission.scope import value_of
from paritygate.converter.exporters._pmml.emission.special import arctangent, normal_probability


@dataclass
class _Design:
    """The terms that the tables of a model are sums of, each once.

    Attributes:
        place: Where the model stands.
        columns: Their columns.
        missing: Where a number that some table needs is missing.
    """

    place: Place
    columns: dict[str, int] = field(default_factory=dict)
    missing: list[str | None] = field(default_factory=list)

    def index(self, name: str) -> int:
        """The number of a term."""
        return self.columns.setdefault(name, len(self.columns))

    def term(self, element: Element) -> int:
        """The number of the term that a predictor stands for."""
        graph = self.place.graph
        if element.tag == "CategoricalPredictor":
            column = self.place.fields.column(element.need("name"), element)
            wanted = value_of(graph, element.need("value"), column.data_type, element)
            return self.index(graph.cast(graph.member(column, [wanted]), 11))
        if element.tag == "NumericPredictor":
            name = self._number(element.need("name"), element).name
            exponent = element.number("exponent", 1.0)
            return self.index(name if exponent == 1 else graph.op("Pow", name, graph.number(exponent)))
        names = [self._number(entry.need("field"), element).name for entry in element.all("FieldRef")]
        if not names:
            raise malformed(element, "it holds no FieldRef")
        product = names[0]
        for name in names[1:]:
            product = graph.op("Mul", product, name)
        return self.index(product)

    def _number(self, name: str, element: Element) -> Column:
        column = self.place.fields.column(name, element)
        if column.data_type == "string":
            raise refuse(element, f"the field {name!r}, which holds texts,", "Use a CategoricalPredictor.")
        self.missing.append(self.place.graph.missing(column))
        return column


_PREDICTORS = ("NumericPredictor", "CategoricalPredictor", "PredictorTerm")


def emit_regression(element: Element, place: Place) -> Result:
    """A RegressionModel."""
    tables = element.all("RegressionTable")
    method = element.get("normalizationMethod", "none")
    graph = place.graph
    if not place.classes:
        only(tables, element, "RegressionTable elements")
        design = _Design(place)
        total = _totals(tables, design)
        value = _linked(graph, "logit" if method == "softmax" else method, total, element)
        return Result(_unless_missing(graph, design, value))
    design = _Design(place)
    totals = _totals(tables, design)
    shares = _shares(element, place, totals, len(tables), method)
    order = [[table.need("targetCategory") for table in tables].index(name) for name in place.classes]
    if order != list(range(len(tables))):
        shares = graph.op("Gather", shares, graph.ints(*order), axis=1)
    missing = graph.either(*design.missing)
    result = elected(graph, shares)
    return result if missing is None else nothing_where(graph, missing, result, len(place.classes))


def _unless_missing(graph: Graph, design: _Design, value: str) -> str:
    missing = graph.either(*design.missing)
    return value if missing is None else graph.where(missing, graph.number(math.nan), value)


def _totals(tables: Sequence[Element], design: _Design) -> str:
    """float64[rows, tables]: intercept and all terms of each table."""
    entries: list[tuple[int, int, float]] = []
    for column, table in enumerate(tables):
        for element in table.all(*_PREDICTORS):
            entries.append((design.term(element), column, element.number("coefficient")))
    graph = design.place.graph
    intercepts = np.array([[table.number("intercept") for table in tables]], dtype=np.float64)
    if not entries:
        return graph.op("Add", graph.filled(0.0), graph.constant(intercepts))
    weights = np.zeros((len(design.columns), len(tables)))
    for row, column, coefficient in entries:
        weights[row, column] += coefficient
    matrix = graph.side_by_side(list(design.columns))
    return graph.op("Add", graph.product(matrix, weights), graph.constant(intercepts))


def _shares(element: Element, place: Place, totals: str, count: int, method: str) -> str:
    graph = place.graph
    if method == "softmax":
        return graph.op("Softmax", totals, axis=1)
    if method == "simplemax":
        return graph.op("Div", totals, graph.sum_of(totals, 1))
    if place.ordinal:
        return _steps(graph, element, totals, count, method)
    if count == 2:
        first = _linked(graph, method, graph.op("Gather", totals, graph.ints(0), axis=1), element)
        if method == "none":
            first = _between(graph, first)
        return graph.side_by_side([first, graph.op("Sub", graph.number(1.0), first)])
    if method != "none":
        raise refuse(
            element, f"normalizationMethod {method!r} of {count} classes", "Write softmax or simplemax."
        )
    most = graph.op("Gather", totals, graph.ints(*range(count - 1)), axis=1)
    rest = graph.op("Sub", graph.number(1.0), graph.sum_of(most, 1))
    return graph.side_by_side([most, rest])


def _between(graph: Graph, name: str) -> str:
    raised = graph.where(graph.op("Less", name, graph.number(0.0)), graph.number(0.0), name)
    return graph.where(graph.op("Greater", raised, graph.number(1.0)), graph.number(1.0), raised)


def _steps(graph: Graph, element: Element, totals: str, count: int, method: str) -> str:
    """Of an ordinal target: what each cumulative probability adds to the one before."""
    most = graph.op("Gather", totals, graph.ints(*range(count - 1)), axis=1)
    upto = _linked(graph, method, most, element)
    one, zero = graph.filled(1.0), graph.filled(0.0)
    return graph.op("Sub", graph.side_by_side([upto, one]), graph.side_by_side([zero, upto]))


def _linked(graph: Graph, link: str, name: str, element: Element) -> str:
    """The inverse of a link function."""
    if link == "none":
        return name
    if link == "exp":
        return graph.op("Exp", name)
    if link == "logit":
        return graph.op("Sigmoid", name)
    if link == "probit":
        return normal_probability(graph, name)
    if link == "cloglog":
        return graph.op("Sub", graph.number(1.0), graph.op("Exp", graph.op("Neg", graph.op("Exp", name))))
    if link == "loglog":
        return graph.op("Exp", graph.op("Neg", graph.op("Exp", graph.op("Neg", name))))
    if link == "cauchit":
        turned = graph.op("Mul", arctangent(graph, name), graph.number(1.0 / math.pi))
        return graph.op("Add", turned, graph.number(0.5))
    raise refuse(element, f"normalizationMethod {link!r}", "Use none, exp or the inverse of a link.")
