"""Trees as arrays, in float64: no decision and no leaf of any framework is rounded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from paritygate.converter.errors import ExportError
from paritygate.converter.types import Array

LEAF = -1
"""The feature of a node that is a leaf."""


@dataclass(frozen=True)
class Tree:
    """One tree; node 0 is its root.

    Attributes:
        feature: int64[node], the feature that a node asks for, `LEAF` for a leaf.
        threshold: float64[node], what the feature is compared with.
        yes: int64[node], the child where the comparison holds, or where x is one of the node's categories.
        no: int64[node], the other child.
        missing_is_yes: bool[node], where a NaN goes.
        values: float64[node, output], what a leaf adds; what stands at other nodes is not read.
        target: The output that the first column of `values` is added to.
        categories: Nodes that ask whether x is one of these numbers, instead of comparing.
    """

    feature: Array
    threshold: Array
    yes: Array
    no: Array
    missing_is_yes: Array
    values: Array
    target: int = 0
    categories: Mapping[int, tuple[float, ...]] = field(default_factory=dict)

    @property
    def is_split(self) -> Array:
        """bool[node], whether a node asks anything."""
        split: Array = self.feature != LEAF
        return split

    def depths(self) -> Array:
        """int64[node], the decisions above each node of a tree that `check_trees` has passed."""
        depths, splits = np.zeros(self.feature.size, np.int64), self.is_split
        level, depth = np.array([0]), 0
        while level.size:
            depths[level] = depth
            asking = level[splits[level]]
            level, depth = np.concatenate([self.yes[asking], self.no[asking]]), depth + 1
        return depths


@dataclass(frozen=True)
class Forest:
    """Trees whose leaves are added up.

    Attributes:
        trees: At least one.
        num_features: Features of a sample.
        num_outputs: Sums that there are.
        base: float64[output], what the sums begin with.
        strict: True if nodes ask `x < threshold`, False for `x <= threshold`.
    """

    trees: tuple[Tree, ...]
    num_features: int
    num_outputs: int
    base: Array
    strict: bool

    def cuts(self, tree: Tree, kind: type = np.float32) -> Array:
        """float[node], the largest values of a float type for which the answer is yes."""
        with np.errstate(over="ignore"):
            nearest: Array = tree.threshold.astype(kind)
        wide = nearest.astype(np.float64)
        over = wide >= tree.threshold if self.strict else wide > tree.threshold
        return np.where(over, np.nextafter(nearest, kind(-np.inf)), nearest)

    @property
    def is_exact(self) -> bool:
        """Whether sums are the same in any order: of votes and other whole numbers, which float64 adds exactly."""
        leaves = [self.base, *(tree.values[~tree.is_split] for tree in self.trees)]
        return all(
            bool((part == np.rint(part)).all()) and bool((np.abs(part) < 2**32).all()) for part in leaves
        )

    @property
    def num_splits(self) -> int:
        """Decisions in all trees together."""
        return int(sum(np.count_nonzero(tree.is_split) for tree in self.trees))


def check_trees(trees: Sequence[Tree], num_features: int, num_outputs: int) -> None:
    """Refuse trees that are none: a file may say anything.

    Raises:
        ExportError: If a child does not exist or has two parents, a node cannot be reached, or a feature, output
            or value is out of range.
    """
    for index, tree in enumerate(trees):
        fault = _fault(tree, num_features, num_outputs)
        if fault is not None:
            raise ExportError(f"tree {index} of the model is damaged: {fault}. Save the model again.")


def _fault(tree: Tree, num_features: int, num_outputs: int) -> str | None:
    count, split = tree.feature.size, tree.is_split
    if count == 0:
        return "it has no node"
    children = np.concatenate([tree.yes[split], tree.no[split]])
    if children.size and (children.min() < 1 or children.max() >= count):
        return "a child lies outside the tree"
    if np.unique(children).size != children.size:
        return "a node has two parents"
    # Every child is a node after the root and none has two parents: with one less child than nodes, nothing is
    # left over, and a cycle would have cut itself off from the root.
    if children.size != count - 1 or not _reaches_all(tree):
        return "some nodes cannot be reached from the root"
    if split.any() and (tree.feature[split].min() < 0 or tree.feature[split].max() >= num_features):
        return f"a node asks for a feature outside 0 to {num_features - 1}"
    if tree.target < 0 or tree.target + tree.values.shape[1] > num_outputs:
        return f"a leaf adds to an output outside 0 to {num_outputs - 1}"
    if not np.isfinite(tree.values[~split]).all():
        return "a leaf holds no finite number"
    return None


def _reaches_all(tree: Tree) -> bool:
    level, reached = np.array([0]), 0
    while level.size and reached <= tree.feature.size:
        reached += level.size
        asking = level[tree.feature[level] != LEAF]
        level = np.concatenate([tree.yes[asking], tree.no[asking]])
    return bool(reached == tree.feature.size)
