"""How much of a difference is rounding: measured on the model itself, not assumed.

Two measurements, both relative to the output's scale. *Source noise*: how far the source's own arithmetic lies
from its float64 form. *Conditioning*: how far the candidate moves when its float inputs and its weights move by
one unit in the last place. In a zoo of convolutional, recurrent, attention and dense networks the two and the
exporter's true error were within a factor of two of each other in most cases. One draw says little where a channel
is close to nothing, so the inputs alone are moved, and both together several times; the largest counts.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import TypeAlias

from paritygate.converter.bundle import Probe
from paritygate.converter.errors import ModelRunError
from paritygate.converter.parity.feeds import EDGES
from paritygate.converter.parity.metrics import rmse
from paritygate.converter.parity.nudging import nudge
from paritygate.converter.runtime.onnxruntime import Session
from paritygate.converter.types import Array, DType, Feeds

Noise: TypeAlias = "dict[tuple[str, str], float]"
"""By case and output."""

MOVES = 3
"""How often inputs move together with the weights."""


def measure_noise(
    probes: Sequence[Probe],
    session: Session,
    scales: Mapping[tuple[str, str], Array],
    moved: Session | None = None,
) -> Noise:
    """The rounding noise of every case and output for which it can be told.

    A case's noise is at least the median over all cases: a case that rounds by luck to the exact value, or whose
    inputs are all zero, says nothing about how the model rounds. The median and not the mean, since one input that
    happens to lie on a branch of the model moves by more than rounding.

    Args:
        probes: The sealed cases.
        session: The candidate, graph optimisations off.
        scales: Scale of each output by case and output.
        moved: The candidate with every weight moved by one unit in the last place, graph optimisations off; None
            if it has no weights.

    Returns:
        Nothing for outputs whose noise could not be measured: no float64 form, no float that moves them.
    """
    source = {key: value for probe in probes for key, value in _source(probe, scales).items()}
    conditioning = {
        key: value for probe in probes for key, value in _conditioning(probe, session, moved, scales).items()
    }
    noise: Noise = {}
    for key in scales:
        known = [_with_median(part, key) for part in (source, conditioning)]
        largest = max((value for value in known if value is not None), default=0.0)
        if largest > 0.0:
            noise[key] = largest
    return noise


def _source(probe: Probe, scales: Mapping[tuple[str, str], Array]) -> Noise:
    if probe.float64 is None:
        return {}
    return {
        (probe.case, name): rmse(wide, probe.outputs[name], scales[probe.case, name])
        for name, wide in probe.float64.items()
        if wide.size
    }


def _conditioning(
    probe: Probe, session: Session, moved: Session | None, scales: Mapping[tuple[str, str], Array]
) -> Noise:
    if probe.case.startswith(EDGES):
        return {}  # it lies on branches on purpose: what one step moves there is no rounding
    try:
        still = session.run(probe.inputs)
        answers = [runner.run(feeds) for runner, feeds in _moves(probe.inputs, session, moved)]
    except ModelRunError:
        return {}  # the comparison of this case says so; there is no noise to tell
    return {
        (probe.case, name): max(
            rmse(still[name], answer[name], scales[probe.case, name]) for answer in answers
        )
        for name in probe.outputs
        if answers
        and (probe.case, name) in scales
        and still[name].size
        and all(_comparable(still[name], answer[name], probe, name) for answer in answers)
    }


def _moves(feeds: Feeds, session: Session, moved: Session | None) -> Iterator[tuple[Session, Feeds]]:
    """Which model is asked what, beside the model itself at the inputs themselves."""
    floats = any(DType.from_numpy(array.dtype).is_floating for array in feeds.values())
    if floats:
        yield session, nudge(feeds)
    if moved is not None:
        for seed in range(1, MOVES + 1 if floats else 2):  # without floats all would be the same
            yield moved, nudge(feeds, seed)


def _comparable(still: Array, moved: Array, probe: Probe, name: str) -> bool:
    """Whether the scale of the source's output may be applied: same shape on all sides."""
    return bool(still.shape == moved.shape == probe.outputs[name].shape)


def _with_median(part: Noise, key: tuple[str, str]) -> float | None:
    same_output = [value for (_, output), value in part.items() if output == key[1]]
    if not same_output:
        return None
    return max(part.get(key, 0.0), statistics.median(same_output))
