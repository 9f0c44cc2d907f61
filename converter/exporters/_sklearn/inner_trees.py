"""Trees anywhere in an estimator that read the features as they are given, for samples at their decisions.

Voting, stacking, bagging, calibration and the like hand the features on; a scaler does not, and behind it a
float32 graph may honestly fall on the other side of a threshold.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from paritygate.converter.errors import ExportError
from paritygate.converter.exporters._sklearn.trees import ensemble_of
from paritygate.converter.exporters._trees.forest import LEAF, Forest, Tree
from paritygate.converter.types import Array


def inner_forests(estimator: Any) -> list[Forest]:
    """The trees that read the given features, those that ask `<` apart from those that ask `<=`.

    What their leaves add up to means nothing: only their decisions are of use.
    """
    width = int(getattr(estimator, "n_features_in_", 0) or 0)
    found: dict[bool, list[Tree]] = {False: [], True: []}
    for forest, columns in _forests(estimator, np.arange(width)):
        found[forest.strict] += [_moved(tree, columns) for tree in forest.trees]
    return [
        Forest(tuple(trees), width, 1, np.zeros(1), strict=strict) for strict, trees in found.items() if trees
    ]


def _forests(estimator: Any, columns: Array) -> Iterator[tuple[Forest, Array]]:
    try:
        ensemble = ensemble_of(estimator)
    except ExportError:  # it could not be converted either, unless skl2onnx has a way of its own
        return
    if ensemble is not None:
        if isinstance(ensemble.sums, Forest):
            yield ensemble.sums, columns
        return
    for member, chosen in _members(estimator):
        yield from _forests(member, columns if chosen is None else columns[chosen])


def _members(estimator: Any) -> Iterator[tuple[Any, Array | None]]:
    """What an estimator asks with the features that it is given, and with which of them; None for all."""
    steps = getattr(estimator, "steps", None)
    if steps:
        if all(step in ("passthrough", None) for _, step in steps[:-1]):
            yield steps[-1][1], None
        return
    for entry in getattr(estimator, "calibrated_classifiers_", ()):
        yield entry.estimator, None
    members = getattr(estimator, "estimators_", None)
    if members is None:  # beside them, `estimator_` is what they were made from, and not fitted
        wrapped = getattr(estimator, "estimator_", None)
        members = [] if wrapped is None else [wrapped]
    chosen = getattr(estimator, "estimators_features_", None)
    for place, member in enumerate(np.asarray(members, dtype=object).ravel().tolist()):
        yield member, None if chosen is None else np.asarray(chosen[place], np.int64)


def _moved(tree: Tree, columns: Array) -> Tree:
    if np.array_equal(columns, np.arange(columns.size)):
        return tree
    return replace(tree, feature=np.where(tree.is_split, columns[tree.feature], LEAF))
