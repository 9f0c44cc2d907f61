"""Samples that ask what an estimator has learnt: its categories, its words, the thresholds of its trees.

A random text is in no vocabulary and in no list of categories, so a graph that forgot them all would agree.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from paritygate.converter.exporters._sklearn.known import Pools, known_by_input
from paritygate.converter.exporters._sklearn.scales import Scale
from paritygate.converter.exporters._sklearn.texts import takes_texts
from paritygate.converter.exporters.base import SourceInput
from paritygate.converter.types import Array, DType, Feeds

NUM_ROWS = 4096
"""Samples of what is known at most."""

_EXAMPLE_ROWS = 5

_UNKNOWN = "never seen"


def learnt_rows(
    estimator: Any, inputs: Sequence[SourceInput], example: Feeds | None
) -> dict[str, dict[str, Array]]:
    """Rows that hold every known text or category of every input, `known`, and values that are none, `unknown`.

    Apart from each other, since an encoder may refuse what it does not know.

    Args:
        estimator: The fitted estimator.
        inputs: Its inputs.
        example: The user's own example, whose scale the numbers get; none of its rows is taken.
    """
    pools = known_by_input(estimator, inputs)
    rows = min(NUM_ROWS, max((len(pool) for columns in pools.values() for pool in columns), default=0))
    if rows == 0 or any(len(spec.shape) != 2 for spec in inputs):
        return {}
    unknown = {name: [[_beyond(pool)] if pool else [] for pool in columns] for name, columns in pools.items()}
    return {
        "known": _rows(inputs, pools, rows, example),
        "unknown": _rows(inputs, unknown, 3, example),
    }


def acceptable(estimator: Any, inputs: Sequence[SourceInput], feeds: Feeds) -> dict[str, Array]:
    """Random feeds whose texts are known categories, and whose numbers are where anything else is refused.

    Where an encoder takes any number, some floats become categories, which random ones would never meet.
    """
    if takes_texts(estimator):
        return dict(feeds)
    known, required = known_by_input(estimator, inputs), known_by_input(estimator, inputs, strictly=True)
    given = {}
    for spec in inputs:
        insisted = known[spec.name] if spec.dtype is DType.STRING else required[spec.name]
        array = feeds[spec.name].copy()
        for column, (pool, only) in enumerate(zip(known[spec.name], insisted, strict=True)):
            if array.ndim != 2:
                continue
            if only:
                array[:, column] = _all_known(array[:, column], only)
            elif pool and spec.dtype.is_floating:
                array[:, column] = _some_known(array[:, column], pool)
        given[spec.name] = array
    return given


def _all_known(values: Array, pool: Sequence[Any]) -> Array:
    """A member of the pool in the place of each value, always the same for the same value."""
    return np.array(pool, dtype=values.dtype)[[draw % len(pool) for draw in _draws(values)]]


def _some_known(values: Array, pool: Sequence[Any]) -> Array:
    """Half of the values become members of the pool, a quarter a whole number that is none; the rest stays."""
    quarter = np.array([draw // len(pool) % 4 for draw in _draws(values)])
    beyond = np.array(_beyond(pool), values.dtype)
    return np.where(quarter < 2, _all_known(values, pool), np.where(quarter == 2, beyond, values))


def _draws(values: Array) -> list[int]:
    return [zlib.crc32(str(value).encode()) for value in values.tolist()]


def first_example(
    estimator: Any, inputs: Sequence[SourceInput], scales: Mapping[str, Scale]
) -> dict[str, Array] | None:
    """Rows to begin with where the estimator tells more than random ones do.

    That is the scale on which it was fitted, and the categories beside which an encoder takes nothing.
    """
    required = known_by_input(estimator, inputs, strictly=True)
    insists = any(pool for columns in required.values() for pool in columns)
    if takes_texts(estimator) or not (insists or any(scale.is_known for scale in scales.values())):
        return None
    return _rows(inputs, known_by_input(estimator, inputs), _EXAMPLE_ROWS, None, scales)


def _rows(
    inputs: Sequence[SourceInput],
    pools: Pools,
    rows: int,
    example: Feeds | None,
    scales: Mapping[str, Scale] | None = None,
) -> dict[str, Array]:
    generator = np.random.default_rng(0)
    shown, known = example or {}, scales or {}
    found: dict[str, Array] = {}
    for spec in inputs:
        matrix = _usual(spec, rows, len(pools[spec.name]), shown.get(spec.name), generator)
        if spec.name in known:
            matrix = _on_scale(spec, matrix, known[spec.name])
        found[spec.name] = _with_known(spec, matrix, pools[spec.name])
    return found


def _on_scale(spec: SourceInput, matrix: Array, scale: Scale) -> Array:
    """A matrix whose columns of which the scale is known lie on it."""
    rows = scale.rows(len(matrix))
    with np.errstate(over="ignore"):
        moved = (np.rint(rows) if spec.dtype.is_integer else rows).astype(spec.dtype.numpy)
    fits = np.isfinite(scale.center) & np.isfinite(moved.astype(np.float64)).all(axis=0)
    return np.where(fits, moved, matrix)


def _beyond(pool: Sequence[Any]) -> Any:
    """A value that is not in a pool."""
    return _UNKNOWN if isinstance(pool[0], str) else max(pool) + 1


def _with_known(spec: SourceInput, matrix: Array, pools: Sequence[Sequence[Any]]) -> Array:
    """One input; columns of which nothing is known hold what is usual there."""
    for column, pool in enumerate(pools):
        if pool:
            # Each column begins elsewhere, so that not the first category of all columns comes together.
            places = (np.arange(len(matrix)) + column + len(spec.name)) % len(pool)
            matrix[:, column] = np.array(pool, dtype=spec.dtype.numpy)[places]
    return matrix


def _usual(
    spec: SourceInput, rows: int, width: int, example: Array | None, generator: np.random.Generator
) -> Array:
    if spec.dtype is DType.STRING:
        return np.full((rows, width), _UNKNOWN, dtype=object)
    if not spec.dtype.is_floating:
        low, high = (0, 1) if example is None else (int(example.min()), int(example.max()))
        return generator.integers(low, high, (rows, width), endpoint=True).astype(spec.dtype.numpy)
    return _numbers(rows, width, example, generator).astype(spec.dtype.numpy)


def _numbers(rows: int, width: int, example: Array | None, generator: np.random.Generator) -> Array:
    normal = generator.standard_normal((rows, width))
    if example is None:
        return normal
    finite = np.where(np.isfinite(example), example, np.nan).astype(np.float64)
    known = ~np.isnan(finite).all(axis=0)
    mean, deviation = np.zeros(width), np.ones(width)
    mean[known], deviation[known] = np.nanmean(finite[:, known], axis=0), np.nanstd(finite[:, known], axis=0)
    values: Array = normal * deviation + mean
    if np.isnan(example).any():
        values[generator.random(values.shape) < 0.1] = np.nan
    return values
