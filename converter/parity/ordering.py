"""Which of equal numbers comes first is anyone's choice: cases in which a TopK has to make it.

Scores that rounding cannot tell apart have no order either. Where the places themselves are an output, those of
the source are held to the scores: they must lead to the values that the graph found largest. Elsewhere only
extremes that repeat one value are looked at, whose scores are equal.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import onnx

from paritygate.converter.bundle import Probe
from paritygate.converter.errors import ModelInvalid, ModelRunError
from paritygate.converter.graph.inspect import computed_from, parse_model
from paritygate.converter.parity.undecided import Asked, repeats_one_value
from paritygate.converter.runtime.onnxruntime import Session, open_session
from paritygate.converter.types import Array

_ALIKE = 1e-5
"""Share of the largest score below which two scores are no further apart than rounding may bring them."""

_CARRIERS = frozenset({"Cast", "Identity"})


@dataclass(frozen=True)
class _Ordering:
    """One TopK of the graph.

    Attributes:
        axis: Along which it orders.
        scores: Name of what it orders.
        values: Name of the values that it found.
        places: Outputs of the graph that are its places, in whatever integer type.
        after: All values that are computed from the places; the values themselves have no choice.
    """

    axis: int
    scores: str
    values: str
    places: tuple[str, ...]
    after: set[str]


def by_order(asked: Asked, model: bytes, external_data: Mapping[str, bytes]) -> set[tuple[str, str]]:
    """Cases and outputs that follow from which of several equal numbers a TopK takes first.

    Args:
        asked: Outputs by case (`undecided.only_numbers_differ`).
        model: The serialised candidate.
        external_data: Bytes of its external files by name.
    """
    parsed = parse_model(model)
    orderings = list(_orderings(parsed.graph))
    if not any(outputs & ordering.after for _, outputs in asked for ordering in orderings):
        return set()
    try:
        session = _showing(parsed, orderings, external_data)
        return {
            (probe.case, name)
            for probe, outputs in asked
            for ordering in orderings
            if outputs & ordering.after and _is_free(session, probe, ordering)
            for name in outputs & ordering.after
        }
    except (ModelInvalid, ModelRunError):
        return set()  # nothing is told of it, and the figures stand


def _orderings(graph: onnx.GraphProto) -> Iterator[_Ordering]:
    outputs = {value.name for value in graph.output}
    for node in graph.node:
        if node.op_type == "TopK" and node.domain in ("", "ai.onnx"):
            axis = next((entry.i for entry in node.attribute if entry.name == "axis"), -1)
            places = tuple(_carried(graph, node.output[1]) & outputs)
            after = computed_from(graph, node.output[1:])
            yield _Ordering(axis, node.input[0], node.output[0], places, after)


def _carried(graph: onnx.GraphProto, name: str) -> set[str]:
    """The value and whatever is nothing but it under another name or integer type."""
    found = {name}
    for node in graph.node:
        if node.op_type in _CARRIERS and node.input[0] in found:
            found.update(node.output)
    return found


def _showing(
    model: onnx.ModelProto, orderings: list[_Ordering], external_data: Mapping[str, bytes]
) -> Session:
    """A session of the model that gives what is ordered as outputs too."""
    wanted = {name for ordering in orderings for name in (ordering.scores, ordering.values)}
    wanted -= {value.name for value in model.graph.output}
    inferred = onnx.shape_inference.infer_shapes(model).graph
    model.graph.output.extend(
        value for value in (*inferred.input, *inferred.value_info) if value.name in wanted
    )
    return open_session(
        model.SerializeToString(), external_data=external_data, optimize=False, intra_op_threads=1
    )


def _is_free(session: Session, probe: Probe, ordering: _Ordering) -> bool:
    answers = session.run(probe.inputs, [ordering.scores, ordering.values])
    scores, values = (answers[name].astype(np.float64) for name in (ordering.scores, ordering.values))
    if repeats_one_value(probe):
        return _has_equals(scores, ordering.axis)
    places = [probe.outputs[name] for name in ordering.places]
    return bool(places) and all(_leads_to(found, scores, values, ordering.axis) for found in places)


def _has_equals(scores: Array, axis: int) -> bool:
    steps = np.diff(np.sort(scores, axis=axis), axis=axis)
    return bool((steps <= _ALIKE * _largest(scores)).any())


def _leads_to(places: Array, scores: Array, values: Array, axis: int) -> bool:
    """Whether places, each taken once, hold values that are the largest but for rounding."""
    size = scores.shape[axis]
    if places.shape != values.shape or ((places < 0) | (places >= size)).any():
        return False
    if not np.diff(np.sort(places, axis=axis), axis=axis).all():
        return False
    found = np.take_along_axis(scores, places.astype(np.int64), axis=axis)
    return bool((np.abs(found - values) <= _ALIKE * _largest(scores)).all())


def _largest(scores: Array) -> float:
    return float(np.max(np.abs(scores), initial=0.0, where=np.isfinite(scores)))
