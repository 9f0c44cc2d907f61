"""The comparator proves itself in each run: the source equals itself, wrong copies are caught."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from paritygate.converter.errors import ParityError
from paritygate.converter.parity.compare import Context, compare_outputs
from paritygate.converter.parity.report import Figure, SelfTest
from paritygate.converter.parity.tolerance import ToleranceConfig
from paritygate.converter.types import Array, DType, Feeds

PERTURBATION = 8.0
"""How far a value is moved, in multiples of itself plus its scale: beyond every rung, budget and noise cap."""


def self_test(
    reference: Feeds, contexts: Mapping[str, Context], tolerance: ToleranceConfig, weights: DType | None
) -> SelfTest:
    """Try the comparator on this bundle's own outputs.

    Args:
        reference: The source's outputs of the base case.
        contexts: As the real comparison gets them.
        tolerance: As the real comparison gets it.
        weights: As the real comparison gets it.

    Raises:
        ParityError: If the source differs from itself, or a wrong copy passes: no verdict can then be trusted.
    """

    def figures(candidate: Feeds, optimized: bool) -> list[Figure]:
        return compare_outputs(
            reference, candidate, tolerance=tolerance, weights=weights, optimized=optimized, contexts=contexts
        )

    copy = {name: array.copy() for name, array in reference.items()}
    itself = [figure for optimized in (False, True) for figure in figures(copy, optimized)]
    largest = max(float(figure.max_abs_diff) for figure in itself)
    wrong = list(_wrong_copies(reference, contexts))
    caught = sum(
        all(
            any(figure.verdict == "fail" for figure in figures(feeds, optimized))
            for optimized in (False, True)
        )
        for feeds in wrong
    )
    result = SelfTest(len(reference), largest, len(wrong), caught)
    if not result.ok or any(figure.verdict != "pass" for figure in itself):
        raise ParityError(
            f"the comparator does not tell right from wrong: the source against itself gave {largest:g}, "
            f"and {caught} of {len(wrong)} wrong copies were caught. Tighten the tolerances."
        )
    return result


def _wrong_copies(reference: Feeds, contexts: Mapping[str, Context]) -> Iterator[Feeds]:
    for name, array in reference.items():
        for wrong in _wrong_arrays(array, contexts[name]):
            yield dict(reference) | {name: wrong}
        yield {other: values for other, values in reference.items() if other != name}


def _wrong_arrays(array: Array, context: Context) -> Iterator[Array]:
    yield array.reshape((*array.shape, 1))
    yield np.full(array.shape, "x", dtype=object) if array.dtype != object else np.zeros(array.shape)
    if not array.size:
        return
    last = np.unravel_index(array.size - 1, array.shape)
    dtype = DType.from_numpy(array.dtype)
    if not dtype.is_floating:
        yield _changed(array, last, _other(array[last]))
        return
    scale = float(np.broadcast_to(context.scale, array.shape)[last])
    value = float(array[last])
    yield _changed(array, last, value + PERTURBATION * (abs(value) + scale) if np.isfinite(value) else 0.0)
    yield _changed(array, last, 0.0 if np.isnan(value) else np.nan)


def _changed(array: Array, index: tuple[np.intp, ...], value: object) -> Array:
    copy = array.copy()
    with np.errstate(over="ignore"):
        copy[index] = value
    return copy


def _other(value: object) -> object:
    if isinstance(value, str):
        return value + "x"
    if isinstance(value, (bool, np.bool_)):
        return not value
    assert isinstance(value, np.integer)
    return value ^ type(value)(1)
