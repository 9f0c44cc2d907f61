"""What a model gives in every row, and what all kinds share: mining schema, targets, output fields."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import onnx

from paritygate.converter.exporters._pmml.declarations import (
    ACTIVE,
    Field,
    MiningField,
    Target,
    class_values,
    derived_fields,
    function_of,
    mining_fields,
    target_name,
    target_of,
)
from paritygate.converter.exporters._pmml.elements import Element, refuse
from paritygate.converter.exporters._pmml.emission.expressions import (
    as_type,
    emit_derived,
    emit_output_expression,
)
from paritygate.converter.exporters._pmml.emission.graph import Column, Graph
from paritygate.converter.exporters._pmml.emission.scope import Fields, let_in
from paritygate.converter.exporters._pmml.outputs import PREDICTED, PROBABILITY, feature_of, output_fields

_INT64, _DOUBLE = onnx.TensorProto.INT64, onnx.TensorProto.DOUBLE


@dataclass(frozen=True)
class Result:
    """What a model gives.

    Attributes:
        number: float64[rows, 1] of a regression, NaN where there is no result; empty for a classifier.
        label: int64[rows, 1] of a classifier: which class, -1 where there is no result.
        shares: float64[rows, classes]: their probabilities; None where the model has none.
    """

    number: str = ""
    label: str = ""
    shares: str | None = None


@dataclass(frozen=True)
class Place:
    """Where a model stands.

    Attributes:
        graph: The graph.
        declared: The DataDictionary.
        fields: What the model can name.
        classes: Its classes in order; empty for a regression.
        ordinal: Whether its target is ordinal.
    """

    graph: Graph
    declared: Mapping[str, Field]
    fields: Fields
    classes: tuple[str, ...]
    ordinal: bool = False


Emit: TypeAlias = Callable[[Element, Place], Result]


@dataclass(frozen=True)
class Entry:
    """A model whose mining schema has been gone through, so that its core can be written.

    Attributes:
        place: Where it stands.
        barred: Where a value of a row is invalid: bool[rows, 1]; None if that cannot be.
        target: What happens to its prediction.
    """

    place: Place
    barred: str | None
    target: Target

    @property
    def plain(self) -> bool:
        """Whether its result is that of its core."""
        return self.barred is None and self.target == Target()


def enter(
    element: Element, graph: Graph, declared: Mapping[str, Field], around: Fields, *,
    nested: bool, classes: Sequence[str] = (), dictionary: Element | None = None,
) -> Entry:  # fmt: skip
    """Let the fields of a model in."""
    mining = mining_fields(element)
    target = target_name(element, mining)
    known, barred = _let_all_in(graph, mining, declared, around, nested=nested)
    derived = derived_fields(dictionary) | derived_fields(element.find("LocalTransformations"))
    fields = Fields(graph, known, derived, emit_derived, around)
    own: tuple[str, ...] = ()
    if function_of(element) == "classification":
        listed = target is not None and target in declared and declared[target].valid
        own = tuple(classes) if classes and not listed else class_values(element, declared, target)
    ordinal = target in declared and declared[target].optype == "ordinal" if target else False
    return Entry(Place(graph, declared, fields, own, ordinal), barred, target_of(element, target))


def _let_all_in(
    graph: Graph,
    mining: Mapping[str, MiningField],
    declared: Mapping[str, Field],
    around: Fields,
    *,
    nested: bool,
) -> tuple[dict[str, Column], str | None]:
    known: dict[str, Column] = {}
    barred: str | None = None
    for name, entry in mining.items():
        if entry.usage in ACTIVE and name in declared and (entry.treats or not nested):
            column, bad = let_in(graph, declared[name], entry, around.column(name, entry.element))
            known[name] = column
            barred = graph.either(barred, bad)
    return known, barred


def finish(element: Element, entry: Entry, core: Result) -> Result:
    """A core's result with its targets, nothing in invalid rows, and output fields for later models."""
    graph, place = entry.place.graph, entry.place
    result = _targeted(graph, entry, core)
    if entry.barred is not None:
        result = nothing_where(graph, entry.barred, result, len(place.classes))
    for field in output_fields(element):
        place.fields.put(field.need("name"), output_column(field, place, result))
    return result


def nothing_where(graph: Graph, condition: str, result: Result, num_classes: int) -> Result:
    """No result in some rows."""
    if not num_classes:
        return Result(graph.where(condition, graph.number(math.nan), result.number))
    label = graph.where(condition, graph.ints(-1), result.label)
    shares = None if result.shares is None else graph.where(condition, graph.number(math.nan), result.shares)
    return Result(label=label, shares=shares)


def _targeted(graph: Graph, entry: Entry, core: Result) -> Result:
    target, classes = entry.target, entry.place.classes
    if classes:
        return _with_priors(graph, target, classes, core) if target.priors else core
    name = core.number
    if target.minimum is not None:
        name = graph.where(
            graph.op("Less", name, graph.number(target.minimum)), graph.number(target.minimum), name
        )
    if target.maximum is not None:
        name = graph.where(
            graph.op("Greater", name, graph.number(target.maximum)), graph.number(target.maximum), name
        )
    if target.factor != 1.0:
        name = graph.op("Mul", name, graph.number(target.factor))
    if target.constant != 0.0:
        name = graph.op("Add", name, graph.number(target.constant))
    if target.cast == "round":
        name = graph.op("Floor", graph.op("Add", name, graph.number(0.5)))
    elif target.cast:
        name = graph.op({"ceiling": "Ceil", "floor": "Floor"}[target.cast], name)
    if target.default is not None:
        name = graph.where(graph.op("IsNaN", core.number), graph.number(target.default), name)
    return Result(name)


def _with_priors(graph: Graph, target: Target, classes: Sequence[str], core: Result) -> Result:
    priors = np.array([[target.priors.get(name, 0.0) for name in classes]], dtype=np.float64)
    gone = graph.op("Less", core.label, graph.ints(0))
    label = graph.where(gone, graph.ints(int(priors.argmax())), core.label)
    shares = None if core.shares is None else graph.where(gone, graph.constant(priors), core.shares)
    return Result(label=label, shares=shares)


def elected(graph: Graph, shares: str) -> Result:
    """The most probable class, the first one where several are; nothing where a probability is not a number."""
    odd = graph.any_of(graph.op("IsNaN", shares))
    best = graph.op("ArgMax", graph.where(odd, graph.number(0.0), shares), axis=1, keepdims=1)
    label = graph.where(odd, graph.ints(-1), best)
    return Result(label=label, shares=graph.where(odd, graph.number(math.nan), shares))


def output_column(element: Element, place: Place, result: Result) -> Column:
    """An OutputField as a column."""
    graph, kind = place.graph, feature_of(element)
    if kind == PREDICTED and place.classes:
        codes = np.array([*(graph.code(name) for name in place.classes), math.nan], dtype=np.float64)
        return Column(
            graph.op("Gather", graph.constant(codes), result.label, axis=0), "string", True, closed=True
        )
    if kind == PREDICTED:
        return as_type(graph, Column(result.number, "double", True), _float_or_double(element))
    if kind == PROBABILITY:
        return as_type(
            graph, Column(_probability(element, place, result), "double", True), _float_or_double(element)
        )
    return emit_output_expression(element, place.fields)


def _float_or_double(element: Element) -> str:
    return "float" if element.get("dataType") == "float" else "double"


def _probability(element: Element, place: Place, result: Result) -> str:
    graph, wanted = place.graph, element.get("value")
    if result.shares is None:
        raise refuse(
            element, "a probability, which its trees do not tell,",
            "Write ScoreDistribution elements with the model, or remove the OutputField.",
        )  # fmt: skip
    if wanted:
        return graph.op("Gather", result.shares, graph.ints(place.classes.index(wanted)), axis=1)
    no_result = graph.op("Less", result.label, graph.ints(0))
    own = graph.where(no_result, graph.ints(0), result.label)
    return graph.op("GatherElements", result.shares, own, axis=1)
