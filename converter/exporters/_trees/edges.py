"""Samples that lie exactly at the decisions of a forest: what a random sample never asks.

For one decision, two samples tell its threshold to the last bit: the largest value that takes the branch, and the
next one, which does not. A third, with the feature missing, tells where a NaN goes. Each sample is led to the
decision: its other features are chosen so that it passes the decisions above.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from paritygate.converter.exporters._trees.forest import Forest, Tree
from paritygate.converter.types import Array

NUM_ROWS = 8192
"""Samples of one kind at most; a larger forest is asked at evenly spread decisions."""

NUM_BYTES = 4 * 2**20
"""Bytes of one kind of samples at most."""

NUM_STEPS = 300_000
"""Decisions passed on the way to those that are asked, in sum: a tree may be a chain of many thousands."""

TIE = 1e-5
"""Two shares nearer than this are a tie: their sums may differ by rounding alone."""


def edge_rows(
    forest: Forest, *, missing: Sequence[float] = (np.nan,), num_rows: int = NUM_ROWS, kind: type = np.float32
) -> dict[str, Array]:
    """Samples at decisions: float[row, feature] by what they ask, `thresholds` and `missing`.

    Args:
        forest: The trees.
        missing: Values that mean missing; empty where the source takes none.
        num_rows: Rows of each kind at most.
        kind: numpy's type of the input.
    """
    walker = _Walker(forest, kind)
    places = [(tree, int(node)) for tree in forest.trees for node in np.flatnonzero(tree.is_split)]
    if not places:
        return {}
    way = np.mean(np.concatenate([tree.depths()[tree.is_split] for tree in forest.trees]))
    fitting = 2 * NUM_STEPS // (int(way) + 1)
    limit = max(2, min(num_rows, NUM_BYTES // (4 * forest.num_features), fitting))
    rows = {"thresholds": walker.both_sides(_spread(places, limit // 2))}
    if missing:
        rows["missing"] = walker.with_values(_spread(places, limit // len(missing)), missing)
    return {kind: array for kind, array in rows.items() if array.size}


def is_clear(shares: Array) -> Array:
    """bool[row], whether one class is clearly likelier than all others.

    Which label a tie of rounded sums gets is the last bit of a sum, and so the order in which it was added up:
    neither side's answer is the right one. Ties of votes are exact, and asked: see `Forest.is_exact`.

    Args:
        shares: float[row, class], at least two classes, as the source answered.
    """
    ordered = np.sort(shares, axis=1)
    clear: Array = ordered[:, -1] - ordered[:, -2] > TIE
    return clear


def asked_note(forest: Forest, rows: dict[str, Array]) -> str | None:
    """What to say where not every decision is asked."""
    asked = len(rows.get("thresholds", ())) // 2
    if asked >= forest.num_splits:
        return None
    return f"The model has {forest.num_splits} decisions; the probes ask {asked} of them at their thresholds."


def _spread(places: list[tuple[Tree, int]], count: int) -> list[tuple[Tree, int]]:
    if len(places) <= count:
        return places
    return [places[k] for k in np.linspace(0, len(places) - 1, count).astype(int)]


@dataclass
class _Allowed:
    """What a feature may be on the way to a decision: an interval, both ends included, or categories."""

    low: float = -np.inf
    high: float = np.inf
    among: frozenset[float] | None = None
    outside: frozenset[float] = frozenset()

    def pick(self) -> float:
        if self.among is not None:
            return float(min(self.among - self.outside, default=0))
        if self.outside:
            return float(next(k for k in range(len(self.outside) + 1) if k not in self.outside))
        if np.isposinf(self.low):
            return float("nan")  # above infinity is nothing but what is missing
        if np.isneginf(self.low):
            return 0.0 if np.isinf(self.high) else self.high
        if np.isinf(self.high):
            return self.low
        return self.low / 2 + self.high / 2


class _Walker:
    def __init__(self, forest: Forest, kind: type) -> None:
        self._forest = forest
        self._kind = kind
        self._parents: dict[int, Array] = {}
        self._cuts: dict[int, Array] = {}
        self._usual = self._middle_values()

    def both_sides(self, places: Sequence[tuple[Tree, int]]) -> Array:
        """Two rows for each decision: the last value that takes the branch, the first that does not."""
        rows = []
        for tree, node in places:
            row = self._led_to(tree, node)
            for value in self._sides(tree, node):
                rows.append(row.copy())
                rows[-1][tree.feature[node]] = value
        return np.array(rows, self._kind)

    def with_values(self, places: Sequence[tuple[Tree, int]], values: Sequence[float]) -> Array:
        """One row for each decision and value."""
        rows = []
        for tree, node in places:
            row = self._led_to(tree, node)
            for value in values:
                rows.append(row.copy())
                rows[-1][tree.feature[node]] = value
        return np.array(rows, self._kind)

    def _sides(self, tree: Tree, node: int) -> tuple[float, float]:
        if node in tree.categories:
            members = tree.categories[node]
            return float(members[-1]), float(next(k for k in range(len(members) + 1) if k not in members))
        largest = np.finfo(
            self._kind
        ).max  # nobody takes an infinity; a threshold there parts off what is missing
        cut = np.clip(self._cut(tree)[node], -largest, largest)
        with np.errstate(over="ignore"):
            above = np.nextafter(cut, self._kind(np.inf))
        return float(cut), float(np.clip(above, -largest, largest))

    def _cut(self, tree: Tree) -> Array:
        if id(tree) not in self._cuts:
            self._cuts[id(tree)] = self._forest.cuts(tree, self._kind)
        return self._cuts[id(tree)]

    def _led_to(self, tree: Tree, node: int) -> Array:
        """A sample that passes all decisions above a node."""
        allowed: dict[int, _Allowed] = {}
        parents = self._parents_of(tree)
        while node != 0:
            above = int(parents[node])
            self._narrow(allowed, tree, above, yes=int(tree.yes[above]) == node)
            node = above
        row = self._usual.copy()
        for feature, bounds in allowed.items():
            row[feature] = bounds.pick()
        return row

    def _narrow(self, allowed: dict[int, _Allowed], tree: Tree, node: int, *, yes: bool) -> None:
        bounds = allowed.setdefault(int(tree.feature[node]), _Allowed())
        if node in tree.categories:
            members = frozenset(tree.categories[node])
            if not yes:
                bounds.outside |= members
            else:
                bounds.among = members if bounds.among is None else bounds.among & members
            return
        cut = self._cut(tree)[node]
        if yes:
            bounds.high = min(bounds.high, float(cut))
        else:
            with np.errstate(over="ignore"):
                bounds.low = max(bounds.low, float(np.nextafter(cut, self._kind(np.inf))))

    def _parents_of(self, tree: Tree) -> Array:
        if id(tree) not in self._parents:
            parents = np.zeros(tree.feature.size, np.int64)
            asking = np.flatnonzero(tree.is_split)
            parents[tree.yes[asking]] = asking
            parents[tree.no[asking]] = asking
            self._parents[id(tree)] = parents
        return self._parents[id(tree)]

    def _middle_values(self) -> Array:
        """float[feature]: the middle threshold of each feature, so that other trees are asked in their midst."""
        features = np.concatenate([tree.feature[tree.is_split] for tree in self._forest.trees])
        values = np.concatenate([tree.threshold[tree.is_split] for tree in self._forest.trees])
        usual: Array = np.zeros(self._forest.num_features, self._kind)
        for feature in np.unique(features):
            of_feature = np.sort(values[(features == feature) & np.isfinite(values)])
            usual[feature] = of_feature[of_feature.size // 2] if of_feature.size else 0
        return usual
