"""The size that each output's errors are measured by, channel by channel, from the sealed probes alone."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import TypeAlias

import numpy as np

from paritygate.converter.bundle import Probe
from paritygate.converter.parity.feeds import EXTREMES
from paritygate.converter.parity.likeness import LIKE_EXAMPLE
from paritygate.converter.parity.metrics import channel_scale, steady_channels
from paritygate.converter.types import Array, Signature, TensorSpec

Scales: TypeAlias = "Mapping[tuple[str, str], Array]"
"""By case and output; each broadcasts against the output."""


def output_scales(signature: Signature, probes: Sequence[Probe]) -> dict[tuple[str, str], Array]:
    """Scale of each float output: that of all ordinary cases together, and the case's own where that is larger.

    Extremes do not set the scale of others: answers to large inputs would loosen what is asked of ordinary ones.
    Cases on the scale of the user's example and those of a standard normal are held to a scale each, as either
    may give answers far larger than the other.
    """
    scales = {}
    for spec in signature.outputs:
        if not spec.dtype.is_floating:
            continue
        axes = channel_axes(spec)
        ordinary = [probe for probe in probes if not probe.case.startswith(EXTREMES)]
        scale = {
            like: _scale([p.outputs[spec.name] for p in ordinary if _is_like(p) is like], axes)
            for like in {_is_like(p) for p in ordinary}
        }
        for probe in probes:
            pooled = scale[_is_like(probe)]
            own = _scale([probe.outputs[spec.name]], axes)
            nothing = not np.any(
                np.nan_to_num(probe.outputs[spec.name].astype(np.float64), posinf=0.0, neginf=0.0)
            )
            scales[probe.case, spec.name] = pooled if nothing else np.maximum(pooled, own)
    return scales


def _is_like(probe: Probe) -> bool:
    """Whether a case lies on the scale of the user's example."""
    return probe.case.startswith(LIKE_EXAMPLE)


def _scale(arrays: Sequence[Array], axes: Sequence[int | None]) -> Array:
    """The smallest of the scales along several axes."""
    return functools.reduce(np.minimum, (channel_scale(arrays, axis) for axis in axes))


def channel_axes(spec: TensorSpec) -> tuple[int | None, ...]:
    """The last axis of fixed size that is not the first: what stands there means the same in every case.

    Images have their channels last or right after the batch, and nothing tells which; both are taken then, so that
    no channel hides behind a larger one.
    """
    fixed = [axis for axis, dim in enumerate(spec.shape) if axis > 0 and isinstance(dim, int)]
    if len(spec.shape) > 3 and 1 in fixed:
        return (1,) if fixed[-1] == 1 else (1, fixed[-1])
    return (fixed[-1],) if fixed else (None,)


def steady_scales(
    signature: Signature, probes: Sequence[Probe], scales: Scales
) -> dict[tuple[str, str], Array]:
    """Finer scales for ordinary cases of outputs with channels that are small and steady; empty without any.

    `output_scales` puts no channel below a share of the whole output, for those that are nearly always zero. A
    channel whose values are all of one size, such as a target in metres beside one in millions, would hide below
    that share. It has its own size here. Whether rounding allows that is for the caller to see: what is left by a
    cancellation has a steady size too.
    """
    finer: dict[tuple[str, str], Array] = {}
    for spec in signature.outputs:
        axis = channel_axes(spec)[-1] if spec.dtype.is_floating else None
        ordinary = [p for p in probes if not p.case.startswith(EXTREMES) and p.outputs[spec.name].size]
        for like in (False, True):
            asked = [probe for probe in ordinary if _is_like(probe) is like]
            if axis is None or not asked:
                continue
            own = _own_sizes([probe.outputs[spec.name] for probe in asked], axis)
            keys = [(probe.case, spec.name) for probe in asked]
            finer |= {key: np.minimum(own, scales[key]) for key in keys if (own < scales[key]).any()}
    return finer


def _own_sizes(arrays: Sequence[Array], axis: int) -> Array:
    """The size of each steady channel, infinite for the others."""
    size = channel_scale(arrays, axis, smallest=0.0)
    if not (size < channel_scale(arrays, axis)).any():
        return np.full(size.shape, np.inf)
    return np.where(steady_channels(arrays, axis), size, np.inf)
