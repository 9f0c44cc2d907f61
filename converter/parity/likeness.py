"""Cases on the scale of the user's own example, which a standard normal may never reach.

Where real features lie around 2000 or 50000, a standard normal drives the units of the first layer to one side,
and weights behind units that stay dead are never asked. These cases draw from a normal with the example's own mean
and standard deviation, feature by feature, so that the example's scale is asked and none of its rows is sealed.
Features of whole numbers get whole numbers, and those with missing values as many.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from paritygate.converter.parity.feeds import Case
from paritygate.converter.types import Array, DType, Feeds, TensorSpec

LIKE_EXAMPLE = "like_example"

LIKE_ROWS = 17
"""Rows of the larger case: enough to wake most units, and a size that the sweep asks anyway."""

_ROUNDING = 1e-9
"""Share of the mean below which a deviation is what averaging in float64 left of a constant."""


@dataclass(frozen=True)
class Moments:
    """What each feature of one example input is like; all broadcast against it.

    Attributes:
        mean: float64.
        deviation: The standard deviation, float64.
        whole: Whether all its values are whole numbers. Fractions do not ask what decides between those, such as
            `x > 3` beside `x >= 3`.
        missing: Share of its values that are NaN.
    """

    mean: Array
    deviation: Array
    whole: Array
    missing: Array

    @property
    def varies(self) -> bool:
        """Whether any feature takes more than one value."""
        return bool(np.any(self.deviation > 0))

    @classmethod
    def of(cls, spec: TensorSpec, example: Array) -> Moments:
        """The moments of an example, NaN and infinities left out.

        Features stand on the last axis, for images (rank 4) on axis 1; where the size of that axis may vary, what
        stands there has no meaning of its own, and all elements are one feature.
        """
        axis = 1 if len(spec.shape) == 4 else len(spec.shape) - 1
        by_feature = axis >= 0 and isinstance(spec.shape[axis], int)
        others = tuple(k for k in range(example.ndim) if not (by_feature and k == axis))
        values = example.astype(np.float64)
        finite = np.isfinite(values)
        count = np.maximum(finite.sum(axis=others, keepdims=True), 1)
        mean = np.where(finite, values, 0.0).sum(axis=others, keepdims=True) / count
        square = np.where(finite, values - mean, 0.0) ** 2
        deviation = np.sqrt(square.sum(axis=others, keepdims=True) / count)
        constant = deviation <= _ROUNDING * np.abs(mean)
        whole = np.asarray(np.all(~finite | (values == np.rint(values)), axis=others, keepdims=True))
        missing = np.isnan(values).mean(axis=others, keepdims=True) if values.size else np.zeros(mean.shape)
        return cls(mean, np.where(constant, 0.0, deviation), whole, missing)

    def applied(self, normal: Array, dtype: DType) -> Array:
        """Standard normal draws moved to be like this, kept within what the dtype can hold."""
        with np.errstate(over="ignore"):
            wide = normal.astype(np.float64) * self.deviation + self.mean
            wide = np.where(self.whole, np.rint(wide), wide)
            values: Array = wide.astype(dtype.numpy)
        asked = np.where(np.isfinite(values.astype(np.float64)), values, normal)
        return np.where(self._left_out(normal), np.nan, asked).astype(dtype.numpy)

    def _left_out(self, normal: Array) -> Array:
        """Which draws are missing, as often as in the example; by digits that say nothing of a draw's size."""
        left_out: Array = np.modf(np.abs(normal.astype(np.float64)) * 1e3)[0] < self.missing
        return left_out


def example_moments(inputs: Sequence[TensorSpec], example: Feeds) -> dict[str, Moments]:
    """The moments of every float input of an example."""
    return {spec.name: Moments.of(spec, example[spec.name]) for spec in inputs if spec.dtype.is_floating}


def like_cases(inputs: Sequence[TensorSpec], trace_dims: Mapping[str, int], seed: int) -> list[Case]:
    """The case at trace sizes, which counts whatever dim is fixed later, and a larger one where axis 0 may vary.

    Args:
        inputs: The inputs; axis 0 of the first float one that has an open axis 0 is the one that grows.
        trace_dims: The size of every dynamic dim.
        seed: Where the random stream of the first case begins.
    """
    cases = [Case(LIKE_EXAMPLE, dict(trace_dims), "random", seed)]
    rows = [
        spec.shape[0]
        for spec in inputs
        if spec.dtype.is_floating and spec.shape and isinstance(spec.shape[0], str)
    ]
    if rows and trace_dims[str(rows[0])] < LIKE_ROWS:
        name = f"{LIKE_EXAMPLE}:{rows[0]}={LIKE_ROWS}"
        cases.append(Case(name, {**trace_dims, str(rows[0]): LIKE_ROWS}, "random", seed + 1))
    return cases


def as_example(
    inputs: Sequence[TensorSpec], feeds: Feeds, moments: Mapping[str, Moments]
) -> dict[str, Array]:
    """Feeds whose floats are standard normal, moved to the example's mean and deviation."""
    return {
        spec.name: moments[spec.name].applied(feeds[spec.name], spec.dtype)
        if spec.name in moments
        else feeds[spec.name]
        for spec in inputs
    }
