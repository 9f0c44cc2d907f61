"""Samples at the thresholds of transformers that part numbers into two or more kinds, to the last bit.

Trees have their own (`_trees/edges.py`). A random sample never lies at a threshold, where `<` and `<=` differ and
where one that was rounded to float32 is another number.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from paritygate.converter.types import Array

NUM_ROWS = 2048
"""Samples at most; more thresholds are asked at evenly spread ones."""


def threshold_rows(estimator: Any, usual: Array) -> Array | None:
    """Samples whose one feature is a threshold, the next number below it, or the next above; None without any.

    Args:
        estimator: The fitted estimator, or a pipeline or union whose first transformers read the given features.
        usual: [feature], what the other features are.
    """
    found = sorted(set(_thresholds(estimator, usual.size)))
    if not found:
        return None
    most = NUM_ROWS // 3
    chosen = (
        found if len(found) <= most else [found[k] for k in np.linspace(0, len(found) - 1, most).astype(int)]
    )
    kind = usual.dtype.type
    rows = np.repeat(usual[None, :], 3 * len(chosen), axis=0)
    for place, (feature, threshold) in enumerate(chosen):
        at = kind(threshold)
        rows[3 * place : 3 * place + 3, feature] = (
            np.nextafter(at, -kind(np.inf)),
            at,
            np.nextafter(at, kind(np.inf)),
        )
    return rows


def _thresholds(estimator: Any, width: int) -> Iterator[tuple[int, float]]:
    """Feature and value of each threshold that the features meet as they are given."""
    name = type(estimator).__name__
    if name == "Binarizer":
        yield from ((feature, float(estimator.threshold)) for feature in range(width))
    elif name == "KBinsDiscretizer":
        for feature, edges in enumerate(estimator.bin_edges_):
            yield from ((feature, float(edge)) for edge in edges)
    elif name == "Pipeline":
        steps = [step for _, step in estimator.steps if step not in (None, "passthrough")]
        if steps:
            yield from _thresholds(steps[0], width)
    elif name == "FeatureUnion":
        for _, part in estimator.transformer_list:
            if not isinstance(part, str):
                yield from _thresholds(part, width)
    elif name == "ColumnTransformer":
        for _, part, columns in estimator.transformers_:
            features = _features(columns, estimator, width)
            if not isinstance(part, str):
                yield from ((features[k], value) for k, value in _thresholds(part, len(features)))


def _features(columns: Any, estimator: Any, width: int) -> list[int]:
    """The features that a part of a `ColumnTransformer` reads, by number."""
    chosen: Any = [columns] if isinstance(columns, str | int) else columns
    if not isinstance(chosen, slice) and len(chosen) and all(isinstance(each, str) for each in chosen):
        names = list(estimator.feature_names_in_)
        return [names.index(each) for each in chosen]
    return [int(each) for each in np.arange(width)[chosen]]


def missing_rows(usual: Array) -> Array:
    """One sample without each feature, for the first `NUM_ROWS` of them, and one without any."""
    count = min(usual.size, NUM_ROWS)
    rows = np.repeat(usual[None, :], count + 1, axis=0)
    rows[np.arange(count), np.arange(count)] = np.nan
    rows[-1] = np.nan
    return rows
