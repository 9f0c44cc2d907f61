"""MiningModel: what the segments give side by side, and how it becomes one result.

TreeModels that change nothing around their core are written as one ensemble, however many segments they are.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx

from paritygate.converter.exporters._pmml.elements import Element, malformed, refuse
from paritygate.converter.exporters._pmml.emission.graph import Graph
from paritygate.converter.exporters._pmml.emission.models import (
    Emit,
    Entry,
    Place,
    Result,
    elected,
    enter,
    finish,
    nothing_where,
)
from paritygate.converter.exporters._pmml.emission.predicates import emit_predicate, predicate_of
from paritygate.converter.exporters._pmml.emission.trees import Forest
from paritygate.converter.types import Array

_DOUBLE = onnx.TensorProto.DOUBLE


def ensemble_emitter(emitters: dict[str, Emit]) -> Emit:
    """The emitter of MiningModel, which needs those of all models that it can hold."""

    def emit(element: Element, place: Place) -> Result:
        segmentation = element.child("Segmentation")
        method = segmentation.need("multipleModelMethod")
        if method == "modelChain":
            return _chain(segmentation, place, emitters)
        segments = [_Segment(entry, place) for entry in segmentation.all("Segment")]
        if method == "selectFirst":
            return _first(segments, place, emitters)
        said = _ask(segments, place, emitters)
        return _joined(segmentation, place, said, method)

    return emit


class _Segment:
    """One segment: its model, its condition, its weight."""

    def __init__(self, element: Element, place: Place) -> None:
        self.element = element
        self.model = next(child for child in element.children if child.get("functionName"))
        self.weight = element.number("weight", 1.0)
        predicate = predicate_of(element)
        self.holds = None if predicate.tag == "True" else emit_predicate(predicate, place.fields).true
        self.entry: Entry = enter(
            self.model, place.graph, place.declared, place.fields, nested=True, classes=place.classes
        )

    def emit(self, emitters: dict[str, Emit]) -> Result:
        """Its result, and its output fields in its scope."""
        return finish(self.model, self.entry, emitters[self.model.tag](self.model, self.entry.place))


def _chain(segmentation: Element, place: Place, emitters: dict[str, Emit]) -> Result:
    graph = place.graph
    stops = segmentation.get("missingPredictionTreatment", "continue") == "returnMissing"
    result = Result()
    missing: list[str | None] = []
    for element in segmentation.all("Segment"):
        segment = _Segment(element, place)
        if segment.holds is not None:
            raise refuse(
                element, "a segment of a modelChain under a condition", "Give it the predicate True."
            )
        result = segment.emit(emitters)
        missing.append(_missing(graph, result) if stops else None)
        output = segment.model.find("Output")
        for field in [] if output is None else output.all("OutputField"):
            name = field.need("name")
            place.fields.put(name, segment.entry.place.fields.column(name, field))
    gone = graph.either(*missing[:-1])
    result = _in_order(graph, result, segment.entry.place.classes, place.classes)
    return result if gone is None else nothing_where(graph, gone, result, len(place.classes))


def _missing(graph: Graph, result: Result) -> str:
    if result.number:
        return graph.op("IsNaN", result.number)
    return graph.op("Less", result.label, graph.ints(0))


def _in_order(graph: Graph, result: Result, own: Sequence[str], wanted: Sequence[str]) -> Result:
    """A result with its classes in the order of the model around."""
    if tuple(own) == tuple(wanted) or not wanted:
        return result
    where = np.array([*(list(wanted).index(name) for name in own), -1], dtype=np.int64)
    label = graph.op("Gather", graph.constant(where), result.label, axis=0)
    if result.shares is None:
        return Result(label=label)
    order = graph.ints(*(list(own).index(name) for name in wanted))
    return Result(label=label, shares=graph.op("Gather", result.shares, order, axis=1))


def _first(segments: Sequence[_Segment], place: Place, emitters: dict[str, Emit]) -> Result:
    graph, classes = place.graph, place.classes
    results = [_in_order(graph, s.emit(emitters), s.entry.place.classes, classes) for s in segments]
    number, label = graph.filled(math.nan), graph.cast(graph.filled(-1.0), onnx.TensorProto.INT64)
    shares: str | None = None
    if classes and all(result.shares is not None for result in results):
        shares = graph.op("Add", graph.filled(math.nan), graph.constant(np.zeros((1, len(classes)))))
    for segment, result in reversed(list(zip(segments, results, strict=True))):
        holds = segment.holds or graph.everywhere(True)
        if not classes:
            number = graph.where(holds, result.number, number)
            continue
        label = graph.where(holds, result.label, label)
        if shares is not None and result.shares is not None:
            shares = graph.where(holds, result.shares, shares)
    return Result(label=label, shares=shares) if classes else Result(number)


# --- segments side by side ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Said:
    """What the segments give, in the order of their weights.

    Attributes:
        numbers: float64[rows, segments] of regressions.
        labels: int64[rows, segments] of classifiers.
        shares: float64[rows, segments, classes], if all have probabilities.
        taking_part: bool[rows, segments]: whose condition holds; None if all do.
        weights: One each.
    """

    numbers: str
    labels: str
    shares: str | None
    taking_part: str | None
    weights: Array


def _ask(segments: Sequence[_Segment], place: Place, emitters: dict[str, Emit]) -> _Said:
    graph, classes = place.graph, place.classes
    together = [s for s in segments if _goes_with_others(s, classes)]
    alone = [s for s in segments if s not in together]
    parts: list[tuple[str, str, str | None]] = []
    if together:
        forest = Forest(graph, classes)
        for segment in together:
            forest.add(segment.model, segment.entry.place.fields)
        parts.append(forest.results())
    for segment in alone:
        result = _in_order(graph, segment.emit(emitters), segment.entry.place.classes, classes)
        shares = None if result.shares is None else graph.op("Unsqueeze", result.shares, graph.ints(1))
        parts.append((result.number, result.label, shares))
    ordered = [*together, *alone]
    all_shares = [shares for _, _, shares in parts if shares is not None]
    return _Said(
        numbers=graph.side_by_side([n for n, _, _ in parts]) if not classes else "",
        labels=graph.side_by_side([label for _, label, _ in parts]) if classes else "",
        shares=graph.side_by_side(all_shares) if len(all_shares) == len(parts) else None,
        taking_part=_taking_part(graph, ordered),
        weights=np.array([segment.weight for segment in ordered], dtype=np.float64),
    )


def _goes_with_others(segment: _Segment, classes: Sequence[str]) -> bool:
    return (
        segment.model.tag == "TreeModel"
        and segment.entry.plain
        and segment.entry.place.classes == tuple(classes)
    )


def _taking_part(graph: Graph, segments: Sequence[_Segment]) -> str | None:
    if all(segment.holds is None for segment in segments):
        return None
    return graph.side_by_side([segment.holds or graph.everywhere(True) for segment in segments])


def _joined(segmentation: Element, place: Place, said: _Said, method: str) -> Result:
    graph, classes = place.graph, place.classes
    there = graph.op("IsNaN", said.numbers) if said.numbers else graph.op("Less", said.labels, graph.ints(0))
    there = graph.op("Not", there)
    used = there if said.taking_part is None else graph.op("And", there, said.taking_part)
    gone = _gone(segmentation, graph, said, there, used)
    weighted = method.startswith("weighted")
    weights = said.weights if weighted else np.ones_like(said.weights)
    shares_of_rows = graph.op("Mul", graph.cast(used, _DOUBLE), graph.constant(weights[None, :]))
    if not classes:
        number = _number(segmentation, graph, said, used, shares_of_rows, method)
        return nothing_where(graph, gone, Result(number), 0)
    if method in ("majorityVote", "weightedMajorityVote"):
        silent = None
        if segmentation.get("missingPredictionTreatment", "continue") == "continue":
            silent = _silent_votes(graph, said, there, weights)
        return nothing_where(graph, gone, _vote(graph, said, shares_of_rows, classes, silent), len(classes))
    if said.shares is None:
        raise refuse(
            segmentation,
            f"{method} of trees without probabilities",
            "Write their ScoreDistribution elements.",
        )
    if method in ("average", "weightedAverage"):
        result = elected(graph, _mean(graph, said.shares, shares_of_rows))
    elif method == "max":
        result = _strongest(graph, said.shares, used, len(classes))
    else:
        raise refuse(segmentation, f"{method} of classifiers", "Use majorityVote, average or max.")
    return nothing_where(graph, gone, result, len(classes))


def _gone(segmentation: Element, graph: Graph, said: _Said, there: str, used: str) -> str:
    """Where the whole has no result: nobody takes part, or somebody who does has none."""
    nobody = graph.op("Not", graph.any_of(used))
    lacking = graph.op("Not", there)
    if said.taking_part is not None:
        lacking = graph.op("And", lacking, said.taking_part)
    treatment = segmentation.get("missingPredictionTreatment", "continue")
    votes = segmentation.get("multipleModelMethod") in ("majorityVote", "weightedMajorityVote")
    if treatment == "returnMissing" or (treatment == "continue" and not votes):
        return graph.op("Or", nobody, graph.any_of(lacking))
    threshold = segmentation.number("missingThreshold", 1.0)
    if threshold >= 1.0:
        return nobody
    weights = graph.constant(said.weights[None, :])
    asked = graph.op("Or", lacking, used)
    part = graph.sum_of(graph.op("Mul", graph.cast(lacking, _DOUBLE), weights), 1)
    whole = graph.sum_of(graph.op("Mul", graph.cast(asked, _DOUBLE), weights), 1)
    return graph.op("Or", nobody, graph.op("Greater", graph.op("Div", part, whole), graph.number(threshold)))


def _number(segmentation: Element, graph: Graph, said: _Said, used: str, weights: str, method: str) -> str:
    values = graph.where(used, said.numbers, graph.number(0.0))
    if method in ("sum", "weightedSum", "average", "weightedAverage"):
        total = graph.sum_of(values if method == "sum" else graph.op("Mul", values, weights), 1)
        return total if method.endswith("um") else graph.op("Div", total, graph.sum_of(weights, 1))
    if method == "median":
        return _median(segmentation, graph, said)
    raise malformed(segmentation, f"{method} of models that predict numbers")


def _median(segmentation: Element, graph: Graph, said: _Said) -> str:
    skips = segmentation.get("missingPredictionTreatment", "continue") == "skipSegment"
    if said.taking_part is not None or skips:
        raise refuse(
            segmentation,
            "the median of segments that may not take part",
            "Give all segments the predicate True.",
        )
    count = said.weights.size
    upper = count // 2 + 1
    top = f"{said.numbers}_sorted"
    graph.nodes.append(
        onnx.helper.make_node(
            "TopK", [said.numbers, graph.ints(upper)], [top, f"{top}_at"], axis=1, largest=1, sorted=1
        )
    )
    middle = graph.op("Gather", top, graph.ints(upper - 1), axis=1)
    if count % 2:
        return middle
    other = graph.op("Gather", top, graph.ints(upper - 2), axis=1)
    return graph.op("Mul", graph.op("Add", middle, other), graph.number(0.5))


def _silent_votes(graph: Graph, said: _Said, there: str, weights: Array) -> str:
    """float64[rows, 1]: the votes of those who take part and have no result."""
    silent = graph.op("Not", there)
    if said.taking_part is not None:
        silent = graph.op("And", silent, said.taking_part)
    return graph.sum_of(graph.op("Mul", graph.cast(silent, _DOUBLE), graph.constant(weights[None, :])), 1)


def _vote(graph: Graph, said: _Said, weights: str, classes: Sequence[str], silent: str | None) -> Result:
    """The class with most votes; nothing where the silent ones are more than those for any class."""
    labels = graph.op("Unsqueeze", said.labels, graph.ints(2))
    hits = graph.op("Equal", labels, graph.constant(np.arange(len(classes), dtype=np.int64)[None, None, :]))
    votes = graph.op("Mul", graph.cast(hits, _DOUBLE), graph.op("Unsqueeze", weights, graph.ints(2)))
    counted = graph.sum_of(votes, 1, keep=False)
    result = elected(graph, graph.op("Div", counted, graph.sum_of(counted, 1)))
    if silent is None:
        return result
    lost = graph.op("Greater", silent, graph.reduced("ReduceMax", counted, 1))
    return nothing_where(graph, lost, result, len(classes))


def _mean(graph: Graph, shares: str, weights: str) -> str:
    """float64[rows, classes]: the weighted mean over segments; those that have no part weigh nothing."""
    deep = graph.op("Unsqueeze", weights, graph.ints(2))
    counted = graph.where(graph.op("Greater", deep, graph.number(0.0)), shares, graph.number(0.0))
    total = graph.sum_of(graph.op("Mul", counted, deep), 1, keep=False)
    return graph.op("Div", total, graph.sum_of(weights, 1))


def _strongest(graph: Graph, shares: str, used: str, count: int) -> Result:
    """The class with the highest probability that any segment gives, and the mean of the segments that give it."""
    deep = graph.op("Unsqueeze", used, graph.ints(2))
    open_shares = graph.where(deep, shares, graph.number(-math.inf))
    tops = graph.op("Squeeze", graph.reduced("ReduceMax", open_shares, 1), graph.ints(1))
    label = graph.op("ArgMax", tops, axis=1, keepdims=1)
    own = graph.op("Equal", label, graph.constant(np.arange(count, dtype=np.int64)[None, :]))
    own = graph.op("Unsqueeze", own, graph.ints(1))
    of_class = graph.where(own, open_shares, graph.number(-math.inf))
    per_segment = graph.op("Squeeze", graph.reduced("ReduceMax", of_class, 2), graph.ints(2))
    chosen = graph.op("Equal", per_segment, graph.reduced("ReduceMax", per_segment, 1))
    weights = graph.cast(graph.op("And", chosen, used), _DOUBLE)
    return Result(label=label, shares=_mean(graph, shares, weights))
