"""Extreme cases in which rounding, or the order of equal numbers, decides the answer: their numbers prove nothing.

Only extremes that repeat one value are looked at, as no request does it. A normalisation over equal values divides
what rounding left by the root of its epsilon, 300 times at 1e-5, and a network has several of them; where scores
are equal, which of them come first is anyone's choice. Shapes, NaN and infinities count there as everywhere.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

import numpy as np
import onnx

from paritygate.converter.bundle import Probe
from paritygate.converter.errors import ModelInvalid, ModelRunError
from paritygate.converter.graph.inspect import computed_from, parse_model
from paritygate.converter.parity.feeds import EXTREMES
from paritygate.converter.parity.metrics import rmse
from paritygate.converter.parity.noise import of_one_value
from paritygate.converter.parity.replay import Replay
from paritygate.converter.parity.report import Figure
from paritygate.converter.runtime.onnxruntime import Session, open_session
from paritygate.converter.types import Array, DType

_ALIKE = 1e-5
"""Share of the largest score below which two scores are no further apart than rounding may bring them."""

Asked: TypeAlias = "Sequence[tuple[Probe, set[str]]]"
"""Cases, and the outputs of each that are in question."""

REASONS = {
    "rounding": "rounding alone moves the answer by more than is believed of a sound model",
    "order": "equal numbers are ordered, and which of them comes first is free",
}


def only_numbers_differ(replay: Replay, figures: Sequence[Figure]) -> Asked:
    """The outputs of extremes of one value in which numbers differ, and NaN, infinities and shapes do not."""
    differ: dict[str, set[str]] = {}
    for figure in figures:
        special = figure.specials is not None and figure.specials.differing
        if figure.case.startswith(EXTREMES) and figure.fault == "numbers" and not special:
            differ.setdefault(figure.case, set()).add(figure.output)
    return [(p, differ[p.case]) for p in replay.probes if p.case in differ and of_one_value(p)]


def by_rounding(
    replay: Replay, asked: Asked, session: Session, moved: Session | None
) -> set[tuple[str, str]]:
    """Cases and outputs that move by more than the cap on noise when weights move by one unit in the last place.

    The inputs stay: a threshold just at the repeated value is decided, and must be the same on both sides.

    Args:
        replay: Scales and caps.
        asked: Outputs by case (`only_numbers_differ`).
        session: The candidate, graph optimisations off.
        moved: The same with moved weights; None if it has none, and nothing can be told.
    """
    found: set[tuple[str, str]] = set()
    if moved is None:
        return found
    for probe, outputs in asked:
        try:
            still, answer = session.run(probe.inputs), moved.run(probe.inputs)
        except ModelRunError:
            continue  # the comparison of this case says so
        found |= {
            (probe.case, name)
            for name in outputs
            if _is_moved(still[name], answer[name], replay, (probe.case, name), probe.outputs[name])
        }
    return found


def _is_moved(still: Array, answer: Array, replay: Replay, key: tuple[str, str], reference: Array) -> bool:
    if not DType.from_numpy(still.dtype).is_floating or still.shape != answer.shape:
        return False
    return rmse(still, answer, replay.scales[key]) > replay.noise_cap(reference)


def by_order(asked: Asked, model: bytes, external_data: Mapping[str, bytes]) -> set[tuple[str, str]]:
    """Cases and outputs that follow from which of several equal numbers a TopK takes first.

    Args:
        asked: Outputs by case (`only_numbers_differ`).
        model: The serialised candidate.
        external_data: Bytes of its external files by name.
    """
    parsed = parse_model(model)
    ordering = [
        node for node in parsed.graph.node if node.op_type == "TopK" and node.domain in ("", "ai.onnx")
    ]
    after = {node.output[0]: computed_from(parsed.graph, node.output) for node in ordering}
    if not any(outputs & names for _, outputs in asked for names in after.values()):
        return set()
    scores = {node.input[0] for node in ordering} - {value.name for value in parsed.graph.output}
    inferred = onnx.shape_inference.infer_shapes(parsed).graph
    parsed.graph.output.extend(v for v in (*inferred.input, *inferred.value_info) if v.name in scores)
    try:
        session = open_session(
            parsed.SerializeToString(), external_data=external_data, optimize=False, intra_op_threads=1
        )
        return {
            (probe.case, name)
            for probe, outputs in asked
            for node in ordering
            if _has_equals(session.run(probe.inputs, [node.input[0]])[node.input[0]], node)
            for name in outputs & after[node.output[0]]
        }
    except (ModelInvalid, ModelRunError):
        return set()  # nothing is told of it, and the figures stand


def _has_equals(scores: Array, node: onnx.NodeProto) -> bool:
    axis = next((entry.i for entry in node.attribute if entry.name == "axis"), -1)
    ordered = np.sort(scores.astype(np.float64), axis=axis)
    steps = np.diff(ordered, axis=axis)
    largest = np.max(np.abs(ordered), initial=0.0, where=np.isfinite(ordered))
    return bool((steps <= _ALIKE * largest).any())
