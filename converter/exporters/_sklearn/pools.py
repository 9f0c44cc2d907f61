"""Samples that ask what an estimator has learnt: its categories, its words, the thresholds of its trees.

A random text is in no vocabulary and in no list of categories, so a graph that forgot them all would agree.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from paritygate.converter.exporters._sklearn.conversion import parts
from paritygate.converter.exporters._sklearn.texts import is_vectorizer, known_texts, takes_texts
from paritygate.converter.exporters.base import SourceInput
from paritygate.converter.types import Array, DType, Feeds

NUM_ROWS = 4096
"""Samples of what is known at most."""

_UNKNOWN = "never seen"


def known_rows(estimator: Any, inputs: Sequence[SourceInput], example: Feeds | None) -> dict[str, Array]:
    """Rows in which every known text or category of every input stands; empty where there are none.

    Args:
        estimator: The fitted estimator.
        inputs: Its inputs.
        example: The user's own example, whose scale the numbers get; none of its rows is taken.
    """
    pools = {spec.name: _pool(estimator, spec, alone=len(inputs) == 1) for spec in inputs}
    rows = min(NUM_ROWS, max((len(pool) for pool in pools.values()), default=0))
    if rows == 0 or any(len(spec.shape) != 2 for spec in inputs):
        return {}
    generator = np.random.default_rng(0)
    return {
        spec.name: _column(
            spec, pools[spec.name], rows, None if example is None else example[spec.name], generator
        )
        for spec in inputs
    }


def _column(
    spec: SourceInput, pool: Sequence[Any], rows: int, example: Array | None, generator: np.random.Generator
) -> Array:
    width = int(spec.shape[1] or 1)
    if pool:
        # Each column begins elsewhere, so that not the first category of all columns comes together.
        places = (np.arange(rows)[:, None] + np.arange(width) + len(spec.name)) % len(pool)
        values: Array = np.array(pool, dtype=spec.dtype.numpy)[places]
        return values
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


def _pool(estimator: Any, spec: SourceInput, *, alone: bool) -> list[Any]:
    """What the estimator knows of one input; a value that it does not know comes last."""
    if alone and spec.dtype is DType.STRING and takes_texts(estimator):
        vectorizers = [part for _, part in parts(estimator) if is_vectorizer(part)]
        return [text for part in vectorizers for text in known_texts(part)]
    found: list[Any] = []
    for part, columns in _column_users(estimator):
        if spec.name in columns:
            found += _known_to(part, columns.index(spec.name))
    return _of_type(found, spec.dtype)


def _of_type(values: Sequence[Any], dtype: DType) -> list[Any]:
    if dtype is DType.STRING:
        texts = [value for value in values if isinstance(value, str)]
        return list(dict.fromkeys([*texts, _UNKNOWN])) if texts else []
    numbers = [value for value in values if isinstance(value, int | float | np.number) and not _is_nan(value)]
    if not numbers or dtype is DType.BOOL:
        return []
    whole = [value for value in numbers if dtype.is_floating or float(value).is_integer()]
    return list(dict.fromkeys([*whole, max(whole) + 1])) if whole else []


def _is_nan(value: Any) -> bool:
    return bool(value != value)


def _column_users(estimator: Any) -> list[tuple[Any, list[str]]]:
    """The parts of column transformers with the names of the columns that they are given."""
    users = []
    for _, part in parts(estimator):
        for entry in getattr(part, "transformers_", ()):
            _, transformer, columns = entry[:3]
            if isinstance(columns, str):
                columns = [columns]
            if not isinstance(transformer, str) and all(isinstance(name, str) for name in columns):
                users.append((transformer, [str(name) for name in columns]))
    return users


def _known_to(transformer: Any, place: int) -> list[Any]:
    """Categories or words of the column at a place, asked of each step in turn."""
    for _, step in [*getattr(transformer, "steps", ()), ("", transformer)]:
        categories = getattr(step, "categories_", None)
        if isinstance(categories, list) and place < len(categories):
            return list(categories[place].tolist())
        if is_vectorizer(step):
            return list(known_texts(step))
    return []
