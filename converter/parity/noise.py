"""How much of a difference is rounding: measured on the model itself, not assumed.

Two measurements, both relative to the output's scale. *Source noise*: how far the source's own arithmetic lies
from its float64 form. *Conditioning*: how far the candidate moves when its float inputs and its weights move by
one unit in the last place. In a zoo of convolutional, recurrent, attention and dense networks the two and the
exporter's true error were within a factor of two of each other in most cases. One draw says little where a channel
is close to nothing, so the inputs alone are moved, and both together several times; the largest counts.
"""

from __future__ import annotations

import functools
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from paritygate.converter.bundle import Probe
from paritygate.converter.errors import ModelRunError
from paritygate.converter.parity.feeds import EDGES, EXTREMES
from paritygate.converter.parity.metrics import float_distance, rmse
from paritygate.converter.parity.nudging import is_uniform, nudge, redraw
from paritygate.converter.parity.scales import Scales
from paritygate.converter.runtime.onnxruntime import Session
from paritygate.converter.types import Array, DType, Feeds


@dataclass(frozen=True)
class Rounding:
    """How far rounding carries one output of one case, relative to its scale.

    Attributes:
        rms: Root mean square over all elements.
        peaks: Largest move of any element of each channel; broadcasts against the output. A channel close to
            nothing moves by far more of its own size than the whole output does.
    """

    rms: float
    peaks: Array


Noise: TypeAlias = "dict[tuple[str, str], Rounding]"
"""By case and output."""

REDRAWS = 8
"""How often a repeated value is moved to see which part of a difference is rounding."""

MOVES = 3
"""How often inputs move together with the weights."""


def measure_noise(
    probes: Sequence[Probe],
    session: Session,
    scales: Scales,
    moved: Session | None = None,
) -> Noise:
    """The rounding noise of every case and output for which it can be told.

    A case's noise is at least the median over all cases: a case that rounds by luck to the exact value, or whose
    inputs are all zero, says nothing about how the model rounds. The median and not the mean, since one input that
    happens to lie on a branch of the model moves by more than rounding. A channel's peak is taken over all
    ordinary cases and the case's own, as a case may have few elements a channel.

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
            noise[key] = Rounding(largest, _peaks_for(key, (source, conditioning)))
    return noise


def add_own_rounding(
    noise: Noise, probes: Sequence[Probe], served: Session, plain: Session, scales: Scales
) -> Noise:
    """The noise, with what the optimised session itself rounds in cases whose inputs repeat one value.

    Kernels of the optimiser sum in another order and round more. Elsewhere the error of one position says nothing
    of the next, so sums and means over positions hide it; where all hold the same value all err alike. How much
    that is shows where the value moves a little: what two sessions differ by then falls anew if it is rounding,
    and stays if one of them computes something else. Only what falls anew is counted.

    Args:
        noise: What was measured with graph optimisations off.
        probes: The cases in question (`of_one_value`).
        served: The session as it will serve.
        plain: The same model, graph optimisations off.
        scales: Scale of each output by case and output.
    """
    more = {key: value for probe in probes for key, value in _redrawn(probe, served, plain, scales).items()}
    return noise | {
        key: Rounding(max(noise[key].rms, own.rms), np.maximum(noise[key].peaks, own.peaks))
        for key, own in more.items()
        if key in noise
    }


def _redrawn(probe: Probe, served: Session, plain: Session, scales: Scales) -> Noise:
    """How far the differences between two sessions scatter about their own mean."""
    feeds = [redraw(probe.inputs, seed) for seed in range(REDRAWS)]
    try:
        pairs = [(served.run(given), plain.run(given)) for given in feeds]
    except ModelRunError:
        return {}  # the comparison of this case says so; there is no noise to tell
    scattered = {}
    for name, expected in probe.outputs.items():
        answers = [(ours[name], theirs[name]) for ours, theirs in pairs]
        alike = all(a.shape == b.shape == expected.shape for a, b in answers)
        if (probe.case, name) in scales and expected.size and alike:
            gaps = np.stack([a.astype(np.float64) - b.astype(np.float64) for a, b in answers])
            scatter = np.nan_to_num(gaps - gaps.mean(axis=0), nan=0.0, posinf=0.0, neginf=0.0)
            nothing = np.zeros(expected.shape)
            scattered[probe.case, name] = _rounding(nothing, list(scatter), scales[probe.case, name])
    return scattered


def of_one_value(probe: Probe) -> bool:
    """Whether every float input of a case that holds more than one number repeats a single value."""
    several = [a for a in probe.inputs.values() if a.size > 1 and DType.from_numpy(a.dtype).is_floating]
    return bool(several) and all(is_uniform(array) for array in several)


def _peaks_for(key: tuple[str, str], parts: Sequence[Noise]) -> Array:
    case, output = key
    return functools.reduce(
        np.maximum,
        (
            rounding.peaks
            for part in parts
            for (other, name), rounding in part.items()
            if name == output and (other == case or not other.startswith(EXTREMES))
        ),
        np.zeros(()),
    )


def _source(probe: Probe, scales: Scales) -> Noise:
    return {
        (probe.case, name): _rounding(probe.outputs[name], [wide], scales[probe.case, name])
        for name, wide in (probe.float64 or {}).items()
        if wide.size
    }


def _rounding(still: Array, answers: Sequence[Array], scale: Array) -> Rounding:
    peaks = [_peaks(still, answer, scale) for answer in answers]
    return Rounding(
        max(rmse(still, answer, scale) for answer in answers), functools.reduce(np.maximum, peaks)
    )


def _peaks(still: Array, answer: Array, scale: Array) -> Array:
    """The largest move in each channel; a channel is what has a scale of its own."""
    ratio = np.nan_to_num(float_distance(still, answer) / scale, nan=0.0, posinf=0.0)
    if scale.ndim != ratio.ndim:
        return np.asarray(ratio.max())
    others = tuple(axis for axis, size in enumerate(scale.shape) if size == 1)
    return np.asarray(ratio.max(axis=others, keepdims=True))


def _conditioning(probe: Probe, session: Session, moved: Session | None, scales: Scales) -> Noise:
    if probe.case.startswith(EDGES):
        return {}  # it lies on branches on purpose: what one step moves there is no rounding
    try:
        still = session.run(probe.inputs)
        answers = [runner.run(feeds) for runner, feeds in _moves(probe.inputs, session, moved)]
    except ModelRunError:
        return {}  # the comparison of this case says so; there is no noise to tell
    return {
        (probe.case, name): _rounding(
            still[name], [answer[name] for answer in answers], scales[probe.case, name]
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
    same_output = [rounding.rms for (_, output), rounding in part.items() if output == key[1]]
    if not same_output:
        return None
    own = part[key].rms if key in part else 0.0
    return max(own, statistics.median(same_output))
