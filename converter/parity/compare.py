"""Compare what a candidate computed with what the source computed: one figure for every output, none left out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from paritygate.converter.errors import ParityError
from paritygate.converter.parity import metrics
from paritygate.converter.parity.report import Figure, Worst
from paritygate.converter.parity.tolerance import (
    EXACT,
    NOISE_PER_ELEMENT,
    PEAKS_PER_ELEMENT,
    Tolerance,
    ToleranceConfig,
    rung_of,
)
from paritygate.converter.types import Array, DType, Feeds

BUDGET_EXCESS = 10.0
"""How many times its bound an element may be off when a budget, or the float64 form, excuses it."""


@dataclass(frozen=True)
class Context:
    """What is known of one output beside its values.

    Attributes:
        scale: Size of each channel, broadcasting against the output (`metrics.channel_scale`).
        noise: Root mean square of the model's own rounding noise, relative to scale; None if it was not measured.
        peaks: Largest move of each channel by rounding, relative to scale; broadcasts against the output.
        float64: The source's output in float64, or None.
    """

    scale: Array
    noise: float | None = None
    peaks: Array = field(default_factory=lambda: np.zeros(()))
    float64: Array | None = None


def compare_outputs(
    reference: Feeds,
    candidate: Feeds,
    *,
    tolerance: ToleranceConfig | None = None,
    weights: DType | None = None,
    optimized: bool = False,
    contexts: Mapping[str, Context] | None = None,
    case: str = "",
) -> list[Figure]:
    """Compare all outputs of one case.

    Args:
        reference: The source framework's outputs.
        candidate: The exported model's outputs.
        tolerance: What is allowed; the table in docs/parity.md by default.
        weights: The model's working precision (`graph.precision.working_precision`).
        optimized: Whether the candidate ran with graph optimisations.
        contexts: Scale, noise and float64 form by output; without one the scale is the reference's own.
        case: Its name, for the figures.

    Returns:
        One figure for every output of the reference, in its order, then one for every output that only the
        candidate has: that too is a fault.

    Raises:
        ParityError: If there is no output to compare, which is never a pass.
    """
    if not reference:
        raise ParityError("there is no output to compare; nothing is proven by comparing nothing.")
    config = tolerance or ToleranceConfig()
    figures = []
    for name, expected in reference.items():
        rung = rung_of(DType.from_numpy(expected.dtype), weights, optimized=optimized)
        context = (contexts or {}).get(name) or Context(_own_scale(expected))
        figures.append(
            _Comparison(name, case, rung, optimized, config).figure(expected, candidate.get(name), context)
        )
    for name in candidate.keys() - reference.keys():
        comparison = _Comparison(name, case, EXACT, optimized, config)
        figures.append(comparison.refused("the candidate gives an output that the source does not have", 0))
    return figures


@dataclass(frozen=True)
class _Comparison:
    """One output of one case under one session."""

    name: str
    case: str
    rung: str
    optimized: bool
    config: ToleranceConfig

    def figure(self, reference: Array, candidate: Array | None, context: Context) -> Figure:
        if candidate is None:
            return self.refused("the candidate does not give this output", reference.size)
        if candidate.dtype != reference.dtype:
            return self.refused(
                f"dtype is {candidate.dtype}, the source has {reference.dtype}", reference.size
            )
        if candidate.shape != reference.shape:
            found, expected = list(candidate.shape), list(reference.shape)
            return self.refused(f"shape is {found}, the source has {expected}", reference.size, "shape")
        dtype = DType.from_numpy(reference.dtype)
        if dtype is DType.STRING:
            return self._strings(reference, candidate)
        if not dtype.is_floating:
            return self._whole(reference, candidate)
        return self._floats(reference, candidate, context)

    def refused(self, reason: str, elements: int, fault: str = "form") -> Figure:
        """A comparison that fails before any number is looked at."""
        return Figure(
            output=self.name,
            case=self.case,
            optimized=self.optimized,
            rung=self.rung,
            verdict="fail",
            fault=fault,
            reason=reason,
            elements=elements,
            mismatches=elements,
            max_abs_diff=float("inf"),
            max_rel_diff=float("inf"),
            scaled_error=float("inf"),
        )

    def _strings(self, reference: Array, candidate: Array) -> Figure:
        differing = np.fromiter(
            (left != right for left, right in zip(reference.flat, candidate.flat, strict=True)),
            dtype=np.bool_,
            count=reference.size,
        ).reshape(reference.shape)
        distance = np.where(differing, np.inf, 0.0)
        return self._exact(reference, candidate, distance, float(distance.max(initial=0.0)), 0.0)

    def _whole(self, reference: Array, candidate: Array) -> Figure:
        distance = metrics.integer_distance(reference, candidate)
        relative = metrics.max_rel_diff(reference, candidate)
        return self._exact(
            reference, candidate, distance, metrics.max_abs_diff(reference, candidate), relative
        )

    def _exact(
        self, reference: Array, candidate: Array, distance: Array, largest: float | int, relative: float
    ) -> Figure:
        mismatches = int(np.count_nonzero(distance))
        reason = (
            f"{mismatches} of {reference.size} values differ, which must be equal" if mismatches else None
        )
        return Figure(
            output=self.name,
            case=self.case,
            optimized=self.optimized,
            rung=self.rung,
            verdict="fail" if mismatches else "pass",
            fault="numbers" if mismatches else None,
            reason=reason,
            elements=reference.size,
            mismatches=mismatches,
            max_abs_diff=largest,
            max_rel_diff=relative if relative or not mismatches else float("inf"),
            scaled_error=float("inf") if mismatches else 0.0,
            worst=_worst(reference, candidate, distance),
        )

    def _floats(self, reference: Array, candidate: Array, context: Context) -> Figure:
        tolerance = self.config.table[self.rung]
        specials = metrics.specials(reference, candidate)
        scaled = _scaled(reference, candidate, context, tolerance)
        over = int(np.count_nonzero(~(scaled <= 1.0)))
        scaled_error = float(scaled.max(initial=0.0))
        noise_error = self._noise_error(reference, candidate, context, tolerance)
        reason = self._float_fault(specials, scaled_error, over, reference.size, noise_error, tolerance)
        return Figure(
            output=self.name,
            case=self.case,
            optimized=self.optimized,
            rung=self.rung,
            verdict="fail" if reason else "pass",
            fault="numbers" if reason else None,
            reason=reason,
            elements=reference.size,
            mismatches=over,
            max_abs_diff=metrics.max_abs_diff(reference, candidate) if reference.size else 0.0,
            max_rel_diff=metrics.max_rel_diff(reference, candidate),
            scaled_error=scaled_error,
            rmse=metrics.rmse(reference, candidate),
            noise=context.noise,
            peak_noise=None if context.noise is None else float(context.peaks.max(initial=0.0)),
            noise_error=noise_error,
            specials=specials,
            worst=_worst(reference, candidate, scaled),
        )

    def _float_fault(
        self,
        specials: metrics.Specials,
        scaled_error: float,
        over: int,
        elements: int,
        noise_error: float | None,
        tolerance: Tolerance,
    ) -> str | None:
        """Why the numbers do not agree, or None; the gravest reason is the one that is told."""
        if specials.differing:
            return f"{specials.differing} of {elements} values are NaN or infinite on one side only"
        if over > tolerance.budget * elements or not scaled_error <= (BUDGET_EXCESS if over else 1.0):
            return f"{over} of {elements} values are further off than allowed, the worst {scaled_error:.3g} times"
        if noise_error is not None and not noise_error <= 1.0:
            return f"the error over all values is {noise_error:.3g} times what rounding explains"
        return None

    def _noise_error(
        self, reference: Array, candidate: Array, context: Context, tolerance: Tolerance
    ) -> float | None:
        """The noise key as a ratio to what is allowed; None where no noise could be measured."""
        if context.noise is None or not reference.size:
            return None
        factor = tolerance.noise_factor
        truth = reference if context.float64 is None else context.float64
        if context.float64 is None:
            factor += 1.0  # the source's own noise is then part of the difference
        error = metrics.rmse(truth, candidate, context.scale)
        floor = tolerance.atol if _is_rounded(reference, context.float64) else tolerance.noise_floor
        allowed = factor * min(context.noise, tolerance.noise_cap) + floor
        return error / allowed


def _is_rounded(reference: Array, wide: Array | None) -> bool:
    """Whether the source computed in float64 and only its answer was rounded (scikit-learn does).

    It then shows nothing of how the model rounds in the graph's precision, and as where there is no float64 form
    the floor is the whole atol (docs/parity.md, "The noise key").
    """
    if wide is None:
        return False
    with np.errstate(over="ignore"):
        return np.array_equal(wide.astype(reference.dtype), reference, equal_nan=True)


def _scaled(reference: Array, candidate: Array, context: Context, tolerance: Tolerance) -> metrics.Float64:
    """Each element's distance as a multiple of what it may be; infinite where only one side is NaN or infinite.

    The source's own answer may be the one that rounded badly. An element a few bounds off it is therefore measured
    from the float64 form as well, and the nearer counts; beyond `BUDGET_EXCESS` bounds nothing excuses it.
    """
    distance = metrics.float_distance(reference, candidate)
    ratio = _in_bounds(reference, distance, context, tolerance)
    if context.float64 is None or not (ratio > 1.0).any():
        return ratio
    other = _in_bounds(reference, metrics.float_distance(context.float64, candidate), context, tolerance)
    nearer: metrics.Float64 = np.where(ratio <= BUDGET_EXCESS, np.minimum(ratio, other), ratio)
    return nearer


def _in_bounds(reference: Array, distance: Array, context: Context, tolerance: Tolerance) -> metrics.Float64:
    size = np.abs(metrics.to_float64(reference))
    noise = np.minimum(
        np.maximum(NOISE_PER_ELEMENT * (context.noise or 0.0), PEAKS_PER_ELEMENT * context.peaks),
        NOISE_PER_ELEMENT * tolerance.noise_cap,
    )
    with np.errstate(over="ignore", invalid="ignore"):
        bound = (tolerance.atol + noise) * context.scale + tolerance.rtol * np.where(
            np.isfinite(size), size, 0.0
        )
        ratio: metrics.Float64 = np.where(
            distance == 0.0, 0.0, distance / np.maximum(bound, np.finfo(np.float64).tiny)
        )
    return ratio


def _own_scale(array: Array) -> Array:
    if not DType.from_numpy(array.dtype).is_floating:
        return np.ones(())
    return metrics.channel_scale([array], array.ndim - 1 if array.ndim > 1 else None)


def _worst(reference: Array, candidate: Array, badness: Array) -> Worst | None:
    """The element that is furthest off, with its index and both values; None in an empty output."""
    if not reference.size:
        return None
    index = np.unravel_index(int(np.argmax(badness)), reference.shape)
    return Worst(tuple(int(k) for k in index), _spell(reference[index]), _spell(candidate[index]))


def _spell(value: object) -> str:
    """A value as text that loses nothing: whole numbers beyond 2^53 and the shortest exact decimal of floats."""
    if isinstance(value, str):
        return value if len(value) <= 80 else value[:77] + "..."
    if isinstance(value, (bool, np.bool_)):
        return str(bool(value)).lower()
    if isinstance(value, np.integer):
        return str(int(value))
    return str(value)
