"""Cases whose numbers prove nothing: where rounding decides the answer, or anyone's choice (`ordering`).

Of rounding only extremes that repeat one value are suspected, as no request does it. A normalisation over equal
values divides what rounding left by the root of its epsilon, 300 times at 1e-5, and a network has several of them.
Shapes, NaN and infinities count there as everywhere.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from typing import TypeAlias

from paritygate.converter.bundle import Probe
from paritygate.converter.errors import ModelRunError
from paritygate.converter.parity.feeds import EXTREMES
from paritygate.converter.parity.metrics import rmse
from paritygate.converter.parity.noise import of_one_value
from paritygate.converter.parity.replay import BASE, Replay
from paritygate.converter.parity.report import Figure
from paritygate.converter.runtime.onnxruntime import Session
from paritygate.converter.types import Array, DType

Asked: TypeAlias = "Sequence[tuple[Probe, set[str]]]"
"""Cases, and the outputs of each that are in question."""

REASONS = {
    "rounding": "rounding alone moves the answer by more than is believed of a sound model",
    "order": "equal numbers are ordered, and which of them comes first is free",
}


def only_numbers_differ(replay: Replay, figures: Sequence[Figure]) -> Asked:
    """Cases with the outputs in which numbers differ, and NaN, infinities and shapes do not."""
    differ: dict[str, set[str]] = {}
    for figure in figures:
        special = figure.specials is not None and figure.specials.differing
        if figure.fault == "numbers" and not special:
            differ.setdefault(figure.case, set()).add(figure.output)
    return [(probe, differ[probe.case]) for probe in replay.probes if probe.case in differ]


def repeats_one_value(probe: Probe) -> bool:
    """Whether a case is an extreme whose float inputs repeat a single value each."""
    return probe.case.startswith(EXTREMES) and of_one_value(probe)


def still_proven(found: Set[tuple[str, str]], probes: Sequence[Probe]) -> set[tuple[str, str]]:
    """What may be left out: of an output, ordinary cases only if others of them are left to prove it."""
    ordinary = {probe.case for probe in probes if not probe.case.startswith(EXTREMES)}
    left_out: dict[str, set[str]] = {}
    for case, output in found:
        left_out.setdefault(output, set()).add(case)
    proven = {output for output, cases in left_out.items() if BASE in ordinary - cases}
    return {(case, output) for case, output in found if case not in ordinary or output in proven}


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
        if not repeats_one_value(probe):
            continue
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
