"""How much of a difference is rounding: measured on the model itself, not assumed.

Two measurements, both relative to the output's scale. *Source noise*: how far the source's own arithmetic lies
from its float64 form. *Conditioning*: how far the candidate moves when every float input moves by one unit in the
last place. In a zoo of convolutional, recurrent, attention and dense networks the two and the exporter's true
error were within a factor of two of each other, apart from inputs that are zero, where nothing moves.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import TypeAlias

import ml_dtypes
import numpy as np

from paritygate.converter.bundle import Probe
from paritygate.converter.errors import ModelRunError
from paritygate.converter.parity.feeds import EDGES
from paritygate.converter.parity.metrics import rmse
from paritygate.converter.runtime.onnxruntime import Session
from paritygate.converter.types import Array, DType, Feeds

Noise: TypeAlias = "dict[tuple[str, str], float]"
"""By case and output."""


def measure_noise(
    probes: Sequence[Probe], session: Session, scales: Mapping[tuple[str, str], Array]
) -> Noise:
    """The rounding noise of every case and output for which it can be told.

    A case's noise is at least the median over all cases: a case that rounds by luck to the exact value, or whose
    inputs are all zero, says nothing about how the model rounds. The median and not the mean, since one input that
    happens to lie on a branch of the model moves by more than rounding.

    Args:
        probes: The sealed cases.
        session: The candidate, graph optimisations off.
        scales: Scale of each output by case and output.

    Returns:
        Nothing for outputs whose noise could not be measured: no float64 form, no float input that moves them.
    """
    source = {key: value for probe in probes for key, value in _source(probe, scales).items()}
    moved = {key: value for probe in probes for key, value in _conditioning(probe, session, scales).items()}
    noise: Noise = {}
    for key in scales:
        known = [_with_median(part, key) for part in (source, moved)]
        largest = max((value for value in known if value is not None), default=0.0)
        if largest > 0.0:
            noise[key] = largest
    return noise


def nudge(feeds: Feeds, seed: int = 0) -> dict[str, Array]:
    """The same inputs with every float moved up or down by one unit in the last place, the same way each time."""
    rng = np.random.RandomState(seed)
    return {name: _nudged(array, rng) for name, array in feeds.items()}


def _nudged(array: Array, rng: np.random.RandomState) -> Array:
    if not DType.from_numpy(array.dtype).is_floating:
        return array
    up = rng.randint(2, size=array.shape) == 1
    if array.dtype == ml_dtypes.bfloat16:
        # The neighbours of a bfloat16 are those of its bits; zero is left alone, as it has none that matters.
        bits = array.view(np.uint16).astype(np.int32)
        stepped = np.where((bits & 0x7FFF) == 0, bits, bits + np.where(up, 1, -1))
        moved: Array = stepped.astype(np.uint16).view(ml_dtypes.bfloat16)
    else:
        with np.errstate(over="ignore", under="ignore"):
            moved = np.nextafter(array, np.where(up, np.inf, -np.inf).astype(array.dtype))
    return np.where(np.isfinite(array.astype(np.float64)), moved, array).astype(array.dtype)


def _source(probe: Probe, scales: Mapping[tuple[str, str], Array]) -> Noise:
    if probe.float64 is None:
        return {}
    return {
        (probe.case, name): rmse(wide, probe.outputs[name], scales[probe.case, name])
        for name, wide in probe.float64.items()
        if wide.size
    }


def _conditioning(probe: Probe, session: Session, scales: Mapping[tuple[str, str], Array]) -> Noise:
    if not any(DType.from_numpy(array.dtype).is_floating for array in probe.inputs.values()):
        return {}
    if probe.case.startswith(EDGES):
        return {}  # it lies on branches on purpose: what one step moves there is no rounding
    try:
        still = session.run(probe.inputs)
        moved = session.run(nudge(probe.inputs))
    except ModelRunError:
        return {}  # the comparison of this case says so; there is no noise to tell
    return {
        (probe.case, name): rmse(still[name], moved[name], scales[probe.case, name])
        for name in probe.outputs
        if (probe.case, name) in scales
        and still[name].size
        and _comparable(still[name], moved[name], probe, name)
    }


def _comparable(still: Array, moved: Array, probe: Probe, name: str) -> bool:
    """Whether the scale of the source's output may be applied: same shape on all sides."""
    return bool(still.shape == moved.shape == probe.outputs[name].shape)


def _with_median(part: Noise, key: tuple[str, str]) -> float | None:
    same_output = [value for (_, output), value in part.items() if output == key[1]]
    if not same_output:
        return None
    return max(part.get(key, 0.0), statistics.median(same_output))
