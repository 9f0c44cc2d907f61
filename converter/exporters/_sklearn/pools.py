"""Samples that ask what an estimator has learnt: its categories, its words, the thresholds of its trees.

A random text is in no vocabulary and in no list of categories, so a graph that forgot them all would agree.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from paritygate.converter.exporters._sklearn.conversion import parts
from paritygate.converter.exporters._sklearn.scales import Scale
from paritygate.converter.exporters._sklearn.texts import is_vectorizer, known_texts, takes_texts
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
    pools = _pools(estimator, inputs)
    rows = min(NUM_ROWS, max((len(pool) for columns in pools.values() for pool in columns), default=0))
    if rows == 0 or any(len(spec.shape) != 2 for spec in inputs):
        return {}
    unknown = {name: [[_beyond(pool)] if pool else [] for pool in columns] for name, columns in pools.items()}
    return {
        "known": _rows(inputs, pools, rows, example),
        "unknown": _rows(inputs, unknown, 3, example),
    }


def acceptable(estimator: Any, inputs: Sequence[SourceInput], feeds: Feeds) -> dict[str, Array]:
    """Random feeds whose texts are known categories, and whose numbers are where anything else is refused."""
    if takes_texts(estimator):
        return dict(feeds)
    known, required = _pools(estimator, inputs), _pools(estimator, inputs, strictly=True)
    given = {}
    for spec in inputs:
        pools = known[spec.name] if spec.dtype is DType.STRING else required[spec.name]
        array = feeds[spec.name].copy()
        for column, pool in enumerate(pools):
            if pool and array.ndim == 2:
                places = [zlib.crc32(str(value).encode()) % len(pool) for value in array[:, column].tolist()]
                array[:, column] = np.array(pool, dtype=spec.dtype.numpy)[places]
        given[spec.name] = array
    return given


def first_example(
    estimator: Any, inputs: Sequence[SourceInput], scales: Mapping[str, Scale]
) -> dict[str, Array] | None:
    """Rows to begin with where the estimator tells more than random ones do.

    That is the scale on which it was fitted, and the categories beside which an encoder takes nothing.
    """
    required = _pools(estimator, inputs, strictly=True)
    insists = any(pool for columns in required.values() for pool in columns)
    if takes_texts(estimator) or not (insists or any(scale.is_known for scale in scales.values())):
        return None
    return _rows(inputs, _pools(estimator, inputs), _EXAMPLE_ROWS, None, scales)


_Pools: TypeAlias = "Mapping[str, list[list[Any]]]"
"""By input, what is known of each of its columns."""


def _rows(
    inputs: Sequence[SourceInput],
    pools: _Pools,
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


def _pools(estimator: Any, inputs: Sequence[SourceInput], *, strictly: bool = False) -> _Pools:
    alone = len(inputs) == 1
    if alone and inputs[0].dtype is DType.STRING and takes_texts(estimator):
        vectorizers = [part for _, part in parts(estimator) if is_vectorizer(part)]
        return {inputs[0].name: [[text for part in vectorizers for text in known_texts(part)]]}
    known = known_by_column(estimator, strictly)
    names = [str(name) for name in getattr(estimator, "feature_names_in_", ())]
    pools: dict[str, list[list[Any]]] = {}
    place = 0
    for spec in inputs:
        width = int(spec.shape[1] or 1) if len(spec.shape) == 2 else 1
        pools[spec.name] = []
        for _ in range(width):
            name = names[place] if alone and place < len(names) else spec.name
            pools[spec.name].append(_of_type([*known.get(place, ()), *known.get(name, ())], spec.dtype))
            place += 1
    return pools


def known_by_column(estimator: Any, strictly: bool) -> dict[int | str, list[Any]]:
    """What is known of each column that anybody knows something of, by its name or place."""
    known: dict[int | str, list[Any]] = {}
    for user, columns in column_users(estimator):
        for place, column in enumerate(columns):
            found = _known_to(user, place, strictly)
            if found:
                known.setdefault(column, []).extend(found)
    return known


def _of_type(values: Sequence[Any], dtype: DType) -> list[Any]:
    if dtype is DType.STRING:
        return list(dict.fromkeys(value for value in values if isinstance(value, str)))
    if dtype is DType.BOOL:
        return []
    numbers = [value for value in values if isinstance(value, int | float | np.number) and not _is_nan(value)]
    return list(dict.fromkeys(v for v in numbers if dtype.is_floating or float(v).is_integer()))


def _is_nan(value: Any) -> bool:
    return bool(value != value)


def column_users(estimator: Any) -> list[tuple[Any, list[int | str]]]:
    """Whoever is given columns of the input as they are, with their names or places."""
    users: list[tuple[Any, list[int | str]]] = []
    first = estimator
    while getattr(first, "steps", None) or hasattr(first, "best_estimator_"):
        best = getattr(first, "best_estimator_", None)
        first = best if best is not None else first.steps[0][1]
    width = int(getattr(first, "n_features_in_", 0) or 0)
    if not hasattr(first, "transformers_"):
        return [(first, list(range(width)))]
    for _, transformer, columns in first.transformers_:
        if not isinstance(transformer, str):
            users.append((transformer, _places(columns, width)))
    return users


def _places(columns: Any, width: int) -> list[int | str]:
    """The columns that an entry of a column transformer picks: names, places, a slice or a mask."""
    if isinstance(columns, str | int):
        return [columns]
    if isinstance(columns, slice):
        by_place = not isinstance(columns.start, str) and not isinstance(columns.stop, str)
        return list(range(*columns.indices(width))) if by_place else []
    chosen = np.asarray(columns)
    if chosen.dtype == np.bool_:
        chosen = np.flatnonzero(chosen)
    return [value if isinstance(value, str) else int(value) for value in chosen.tolist()]


def _known_to(transformer: Any, place: int, strictly: bool) -> list[Any]:
    """Categories or words of the column at a place, asked of each step in turn; `strictly` of those who insist."""
    for _, step in [*getattr(transformer, "steps", ()), ("", transformer)]:
        if type(step).__name__ == "CategoricalNB":
            return list(range(int(step.n_categories_[place])))
        if strictly and getattr(step, "handle_unknown", None) != "error":
            continue
        categories = getattr(step, "categories_", None)
        if isinstance(categories, list) and place < len(categories):
            return list(categories[place].tolist())
        if is_vectorizer(step):
            return list(known_texts(step))
    return []
