"""Pure figures of how far two arrays lie apart. Shapes are never broadcast, and NaN never compares as small.

Floats are measured in float64, into which every narrower float goes without loss. Whole numbers are measured as
whole numbers: a difference of int64 values beyond 2^53 is exact.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from paritygate.converter.types import Array, DType

Float64: TypeAlias = "np.ndarray[Any, np.dtype[np.float64]]"
Bools: TypeAlias = "np.ndarray[Any, np.dtype[np.bool_]]"

SMALLEST_SCALE = 1e-3
"""Share of an output's overall size that counts as the least size of one channel. Without it a channel that is
nearly always zero, such as the probability of a class never seen, would have to agree to the last bit."""

STEADY = 0.1
"""Share of its root mean square that the median of a channel whose values are of one size reaches at least."""


class ShapeMismatch(ValueError):
    """Two arrays that should be compared have different shapes."""


@dataclass(frozen=True)
class Specials:
    """How often NaN and the infinities stand in the reference, in the candidate, and in one of the two only."""

    nan: tuple[int, int]
    positive_infinity: tuple[int, int]
    negative_infinity: tuple[int, int]
    differing: int


def max_abs_diff(reference: Array, candidate: Array) -> float | int:
    """Largest absolute difference of two arrays.

    Args:
        reference: Any numeric or bool dtype, any shape.
        candidate: Same shape and dtype.

    Returns:
        A float for floats, an exact int for whole numbers and bools. NaN or an infinity on one side only is
        infinitely far; on both sides it is no distance. Empty arrays give 0.

    Raises:
        ShapeMismatch: If the shapes differ.
    """
    _same_shape(reference, candidate)
    if reference.size == 0:
        return 0
    if reference.dtype.kind in "iub":
        return int(integer_distance(reference, candidate).max())
    return float(float_distance(reference, candidate).max())


def max_rel_diff(reference: Array, candidate: Array) -> float:
    """Largest elementwise difference relative to the reference; dimensionless.

    The denominator is at least the smallest normal number of the dtype, so that a zero in the reference gives a
    large number and not a division by zero. Empty arrays give 0.0.

    Raises:
        ShapeMismatch: If the shapes differ.

    Source: the relative term of numpy.isclose, with the reference as denominator.
    """
    _same_shape(reference, candidate)
    if reference.size == 0:
        return 0.0
    if reference.dtype.kind in "iub":
        distance = integer_distance(reference, candidate).astype(np.float64)
        return float((distance / np.maximum(np.abs(reference.astype(np.float64)), 1.0)).max())
    distance = float_distance(reference, candidate)
    size = np.abs(to_float64(reference))
    tiny = float(_tiny(reference.dtype))
    with np.errstate(over="ignore", invalid="ignore"):
        ratio = np.where(
            distance == 0.0, 0.0, distance / np.maximum(np.where(np.isfinite(size), size, 1.0), tiny)
        )
    return float(ratio.max())


def rmse(reference: Array, candidate: Array, scale: Array | float = 1.0) -> float:
    """Root mean square of the difference, each element divided by its scale first; in the unit of scale.

    Only elements that are finite on both sides take part: what else differs is told by `specials`. Without any
    such element it is 0.0.

    Raises:
        ShapeMismatch: If the shapes differ.
    """
    _same_shape(reference, candidate)
    left, right = to_float64(reference), to_float64(candidate)
    finite = np.isfinite(left) & np.isfinite(right)
    if not finite.any():
        return 0.0
    with np.errstate(over="ignore"):
        ratio = (right[finite] - left[finite]) / np.broadcast_to(scale, left.shape)[finite]
        return float(np.sqrt(np.mean(np.square(ratio))))


def float_distance(reference: Array, candidate: Array) -> Float64:
    """Elementwise |candidate - reference|; 0 where both are NaN or the same infinity, infinite where one is."""
    left, right = to_float64(reference), to_float64(candidate)
    with np.errstate(over="ignore", invalid="ignore"):
        distance = np.abs(right - left)
    same = (left == right) | (np.isnan(left) & np.isnan(right))
    finite = np.isfinite(left) & np.isfinite(right)
    result: Float64 = np.where(same, 0.0, np.where(finite, distance, np.inf))
    return result


def integer_distance(reference: Array, candidate: Array) -> np.ndarray[Any, np.dtype[np.uint64]]:
    """Elementwise |candidate - reference| of whole numbers or bools, exact over the whole range of 64 bits.

    The difference of two 64-bit numbers always fits in an unsigned one, and two's complement subtraction gives it
    without overflow as long as the smaller is taken from the larger.
    """
    larger = np.maximum(reference, candidate).astype(np.uint64)
    smaller = np.minimum(reference, candidate).astype(np.uint64)
    result: np.ndarray[Any, np.dtype[np.uint64]] = larger - smaller
    return result


def specials(reference: Array, candidate: Array) -> Specials:
    """Count NaN and infinities on both sides, and the places where the two sides disagree about them.

    Raises:
        ShapeMismatch: If the shapes differ.
    """
    _same_shape(reference, candidate)
    differing = np.zeros(reference.shape, dtype=np.bool_)
    counts = []
    for test in (np.isnan, np.isposinf, np.isneginf):
        left, right = test(to_float64(reference)), test(to_float64(candidate))
        differing |= left != right
        counts.append((int(left.sum()), int(right.sum())))
    return Specials(counts[0], counts[1], counts[2], int(differing.sum()))


def channel_scale(arrays: Iterable[Array], axis: int | None, *, smallest: float = SMALLEST_SCALE) -> Float64:
    """The size of an output, one number a channel: the root mean square over all arrays, finite elements only.

    Args:
        arrays: The same output in several cases; they may differ in every other axis.
        axis: The channel axis, counted from the front, or None for one number over everything.
        smallest: Share of the whole output's size that no channel is below.

    Returns:
        float64 that broadcasts against the arrays; an output that is zero everywhere has scale 1.
    """
    total: Any = 0.0
    count: Any = 0
    shape: tuple[int, ...] = ()
    for array in arrays:
        values = to_float64(array)
        finite = np.isfinite(values)
        others = tuple(k for k in range(values.ndim) if k != axis)
        with np.errstate(over="ignore"):
            total = total + np.square(np.where(finite, values, 0.0)).sum(axis=others)
        count = count + finite.sum(axis=others)
        if axis is not None:
            shape = tuple(-1 if k == axis else 1 for k in range(values.ndim))
    with np.errstate(over="ignore", invalid="ignore"):
        per_channel = np.sqrt(np.asarray(total) / np.maximum(count, 1))
        overall = float(np.sqrt(np.sum(total) / max(int(np.sum(count)), 1)))
    if not np.isfinite(overall) or overall == 0.0:
        scale = np.where(np.isfinite(per_channel) & (per_channel > 0), per_channel, 1.0)
    else:
        scale = np.maximum(per_channel, smallest * overall)
    result: Float64 = scale.reshape(shape) if shape else np.asarray(scale, dtype=np.float64)
    return result


def steady_channels(arrays: Sequence[Array], axis: int) -> Bools:
    """Which channels hold values of one size, unlike those that are nearly always zero.

    Args:
        arrays: The same output in several cases; they may differ in every other axis.
        axis: The channel axis, counted from the front.

    Returns:
        One bool a channel, broadcasting against the arrays; False for a channel without a finite value.
    """
    moved = [np.moveaxis(to_float64(array), axis, 0) for array in arrays]
    values = np.abs(np.concatenate([array.reshape(array.shape[0], -1) for array in moved], axis=1))
    steady = [_is_steady(channel[np.isfinite(channel)]) for channel in values]
    return np.array(steady, dtype=np.bool_).reshape([-1 if k == axis else 1 for k in range(arrays[0].ndim)])


def _is_steady(values: Float64) -> bool:
    if not values.any():
        return False
    with np.errstate(over="ignore"):
        return bool(np.median(values) >= STEADY * np.sqrt(np.mean(np.square(values))))


def to_float64(array: Array) -> Float64:
    """A float array widened to float64, without loss from every narrower float; others are counted as they are."""
    with np.errstate(over="ignore", invalid="ignore"):
        widened: Float64 = np.asarray(array).astype(np.float64)
    return widened


def _tiny(dtype: np.dtype[Any]) -> float:
    if DType.from_numpy(dtype) is DType.BFLOAT16:
        return float(np.finfo(np.float32).tiny)  # bfloat16 has float32's exponent
    return float(np.finfo(dtype).tiny)


def _same_shape(reference: Array, candidate: Array) -> None:
    if reference.shape != candidate.shape:
        raise ShapeMismatch(
            f"shapes differ: reference {list(reference.shape)}, candidate {list(candidate.shape)}"
        )
