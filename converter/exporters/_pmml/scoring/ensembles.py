"""MiningModel: segments that vote, add up, or hand their outputs on."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from paritygate.converter.exporters._pmml.elements import Element, malformed, refuse
from paritygate.converter.exporters._pmml.scoring.models import (
    NOTHING,
    Core,
    Model,
    Outcome,
    Reader,
    Setting,
    from_probabilities,
)
from paritygate.converter.exporters._pmml.scoring.predicates import Test, predicate_in, read_predicate
from paritygate.converter.exporters._pmml.scoring.values import Scope

METHODS = (
    "majorityVote", "weightedMajorityVote", "average", "weightedAverage", "median", "max", "sum", "weightedSum",
    "selectFirst", "modelChain",
)  # fmt: skip


@dataclass(frozen=True)
class _Segment:
    test: Test
    model: Model
    weight: float


_Counted: TypeAlias = Sequence[tuple[Outcome, float]]
"""What each segment that takes part said, and its weight."""


def ensemble_reader(readers: dict[str, Reader]) -> Reader:
    """The reader of MiningModel, which needs those of all models that it can hold."""

    def read(element: Element, setting: Setting) -> Core:
        segmentation = element.child("Segmentation")
        method = segmentation.need("multipleModelMethod")
        if method not in METHODS:
            raise refuse(segmentation, f"multipleModelMethod {method!r}", f"{', '.join(METHODS)} are.")
        segments = _read_segments(segmentation, setting, readers, method)
        if method == "modelChain":
            return _chain(segments, element, setting)
        if method == "selectFirst":
            return _first(segments)
        return _joint(segmentation, segments, setting, method)

    return read


def _read_segments(
    segmentation: Element, setting: Setting, readers: dict[str, Reader], method: str
) -> list[_Segment]:
    found = []
    for element in segmentation.all("Segment"):
        models = [child for child in element.children if child.get("functionName")]
        if len(models) != 1:
            raise malformed(element, f"it holds {len(models)} models where one is expected")
        if element.find("VariableWeight") is not None:
            raise refuse(element, "a VariableWeight", "Give the segment a fixed weight.")
        model = Model(
            models[0], setting.fields, setting.types, readers, nested=True, around_classes=setting.classes
        )
        test = read_predicate(predicate_in(element), setting.types)
        found.append(_Segment(test, model, element.number("weight", 1.0)))
        if method == "modelChain":
            for name, kind in model.publishes().items():
                setting.types.add(name, kind)
    if not found:
        raise malformed(segmentation, "it holds no Segment")
    return found


def _chain(segments: Sequence[_Segment], element: Element, setting: Setting) -> Core:
    for segment in segments:
        if predicate_in(_around(segment)).tag != "True":
            raise refuse(
                _around(segment), "a segment of a modelChain under a condition", "Give it the predicate True."
            )
    last = segments[-1].model
    if bool(setting.classes) != last.classifies:
        raise malformed(last.element, f"it ends a chain whose function is {element.get('functionName')}")
    treatment = element.child("Segmentation").get("missingPredictionTreatment", "continue")

    def score(scope: Scope) -> Outcome:
        outcome = NOTHING
        for segment in segments:
            outcome, given = segment.model.outputs(scope)
            if outcome.value is None and treatment == "returnMissing":
                return NOTHING
            for name, value in given.items():
                scope.put(name, value)
        return _in_order(outcome, last.classes, setting.classes)

    return score


def _around(segment: _Segment) -> Element:
    element = segment.model.element.parent
    assert element is not None, "a nested model stands in a segment"
    return element


def _in_order(outcome: Outcome, own: Sequence[str], wanted: Sequence[str]) -> Outcome:
    """An outcome with its probabilities in the order of the classes around."""
    if outcome.probabilities is None or tuple(own) == tuple(wanted):
        return outcome
    by_name = dict(zip(own, outcome.probabilities, strict=True))
    return Outcome(outcome.value, tuple(by_name.get(name, 0.0) for name in wanted))


def _first(segments: Sequence[_Segment]) -> Core:
    def score(scope: Scope) -> Outcome:
        for segment in segments:
            if segment.test(scope):
                return segment.model.run(scope)[0]
        return NOTHING

    return score


def _joint(segmentation: Element, segments: Sequence[_Segment], setting: Setting, method: str) -> Core:
    join = _join_of(segmentation, setting, method)
    treatment = segmentation.get("missingPredictionTreatment", "continue")
    if treatment not in ("continue", "skipSegment", "returnMissing"):
        raise malformed(segmentation, f"missingPredictionTreatment {treatment!r} is none")
    threshold = segmentation.number("missingThreshold", 1.0)
    votes = method in _VOTES
    ends = treatment == "returnMissing" or (treatment == "continue" and not votes)

    def score(scope: Scope) -> Outcome:
        said = [(s.model.run(scope)[0], s.weight) for s in segments if s.test(scope)]
        there = [(outcome, weight) for outcome, weight in said if outcome.value is not None]
        if len(there) < len(said) and (ends or _missing_share(said) > threshold):
            return NOTHING
        if treatment == "continue" and votes and _missing_wins(said, weighted=method != "majorityVote"):
            return NOTHING
        return join(there) if there else NOTHING

    return score


_VOTES = ("majorityVote", "weightedMajorityVote")


def _missing_wins(said: _Counted, *, weighted: bool) -> bool:
    """Whether having no result gets more votes than any class."""
    votes: dict[object, float] = {None: 0.0}
    for outcome, weight in said:
        votes[outcome.value] = votes.get(outcome.value, 0.0) + (weight if weighted else 1.0)
    missing = votes.pop(None)
    return missing > max(votes.values(), default=0.0)


def _missing_share(said: _Counted) -> float:
    total = sum(weight for _, weight in said)
    return sum(weight for outcome, weight in said if outcome.value is None) / total if total else 0.0


def _join_of(segmentation: Element, setting: Setting, method: str) -> Callable[[_Counted], Outcome]:
    weighted = method.startswith("weighted")
    if not setting.classes:
        if method in _VOTES:
            raise malformed(segmentation, f"{method} of models that predict numbers")
        if method == "max":
            raise refuse(segmentation, "max of models that predict numbers", "Use average, median or sum.")
        return lambda said: Outcome(_number(method, said))
    if method in _VOTES:
        return lambda said: _elected(said, setting.classes, weighted=weighted)
    if method in ("average", "weightedAverage"):
        return lambda said: _averaged(said, setting.classes, weighted=weighted)
    if method == "max":
        return lambda said: _strongest(said, setting.classes)
    raise refuse(
        segmentation, f"{method} of classifiers", "Use majorityVote, average, weightedAverage or max."
    )


def _number(method: str, said: _Counted) -> float:
    values = [float(outcome.value) for outcome, _ in said]  # type: ignore[arg-type]
    weights = [weight for _, weight in said]
    if method == "sum":
        return math.fsum(values) if all(map(math.isfinite, values)) else sum(values)
    if method == "average":
        return sum(values) / len(values)
    if method == "median":
        return statistics.median(values)
    total = sum(value * weight for value, weight in zip(values, weights, strict=True))
    if method == "weightedSum":
        return total
    return total / sum(weights) if sum(weights) else math.nan


def _elected(said: _Counted, classes: Sequence[str], *, weighted: bool) -> Outcome:
    votes = dict.fromkeys(classes, 0.0)
    for outcome, weight in said:
        votes[str(outcome.value)] += weight if weighted else 1.0
    total = sum(votes.values())
    return from_probabilities(classes, [vote / total if total else math.nan for vote in votes.values()])


def _averaged(said: _Counted, classes: Sequence[str], *, weighted: bool) -> Outcome:
    totals, weights = [0.0] * len(classes), 0.0
    for outcome, weight in said:
        if outcome.probabilities is None:
            return NOTHING
        share = weight if weighted else 1.0
        weights += share
        totals = [a + share * b for a, b in zip(totals, outcome.probabilities, strict=True)]
    return from_probabilities(classes, [total / weights if weights else math.nan for total in totals])


def _strongest(said: _Counted, classes: Sequence[str]) -> Outcome:
    """The class with the highest probability that any segment gives, and the mean of the segments that give it."""
    if any(outcome.probabilities is None for outcome, _ in said):
        return NOTHING
    all_shares = [outcome.probabilities for outcome, _ in said if outcome.probabilities is not None]
    best = from_probabilities(classes, [max(shares[k] for shares in all_shares) for k in range(len(classes))])
    if best.value is None:
        return NOTHING
    k = classes.index(str(best.value))
    top = max(shares[k] for shares in all_shares)
    chosen = [shares for shares in all_shares if shares[k] == top]
    means = tuple(sum(shares[j] for shares in chosen) / len(chosen) for j in range(len(classes)))
    return Outcome(best.value, means)
