"""What a LightGBM model text says, as a forest.

Source: https://github.com/microsoft/LightGBM, src/boosting/gbdt_model_text.cpp (the text), include/LightGBM/tree.h
(decisions: `x <= threshold` in float64; missing by type; members of a category set go left) and src/c_api.cpp (a
value within 1e-35 of zero is taken for zero before any decision).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from paritygate.converter.errors import ExportError, UnsupportedOperator
from paritygate.converter.exporters._trees.ensemble import Preparation
from paritygate.converter.exporters._trees.forest import LEAF, Forest, Tree, check_trees
from paritygate.converter.exporters._trees.links import (
    Exponential,
    Identity,
    Link,
    Sigmoid,
    SignedSquare,
    Softmax,
    Softplus,
)
from paritygate.converter.types import Array

END = "end of trees"

_PLAIN = (
    "regression", "regression_l1", "huber", "fair", "quantile", "mape", "lambdarank", "rank_xendcg",
    "custom", "none",
)  # fmt: skip
_EXPONENTIAL = ("poisson", "gamma", "tweedie")
SHARES = ("binary", "multiclass", "multiclassova", "cross_entropy")
"""Objectives whose answers are probabilities."""

RANKING = ("lambdarank", "rank_xendcg")

_CATEGORICAL, _DEFAULT_LEFT = 1, 2
_MISSING_NONE, _MISSING_ZERO = 0, 1

_ZERO = float(np.float32(1e-35))
"""Values up to here are zeros to LightGBM (kZeroThreshold in include/LightGBM/meta.h)."""


@dataclass(frozen=True)
class ModelText:
    """A model's text, taken apart.

    Attributes:
        header: Lines before the first tree, by key; a line without a value has the value `""`.
        trees: The same for each tree.
    """

    header: Mapping[str, str]
    trees: Sequence[Mapping[str, str]]

    @classmethod
    def parse(cls, text: str) -> ModelText:
        """Take a text apart.

        Raises:
            ExportError: If it is not whole.
        """
        body, end, _ = text.partition(f"\n{END}")
        if not end:
            raise ExportError(f"the model's text is cut off: it has no line {END!r}.")
        head, *parts = re.split(r"^Tree=\d+\n", body, flags=re.MULTILINE)
        model = cls(_entries(head), [_entries(part) for part in parts])
        promised = len(model.header.get("tree_sizes", "").split())
        if promised != len(parts):
            raise ExportError(f"the model's text promises {promised} trees and holds {len(parts)}.")
        return model

    @property
    def num_features(self) -> int:
        """Features of a sample."""
        return _number(self.header, "max_feature_idx") + 1

    @property
    def num_outputs(self) -> int:
        """Sums of a sample."""
        return _number(self.header, "num_tree_per_iteration")

    @property
    def feature_names(self) -> list[str]:
        """Names of the features; empty where they are LightGBM's own (`Column_0`)."""
        names = self.header.get("feature_names", "").split()
        return [] if all(name == f"Column_{k}" for k, name in enumerate(names)) else names

    @property
    def objective(self) -> str:
        """Its name; `none` for a function of the user's."""
        return (self.header.get("objective", "").split() or ["none"])[0]

    @property
    def link(self) -> Link:
        """What `predict` makes of the sums.

        Raises:
            UnsupportedOperator: If the objective is not known here.
            ExportError: If its slope is no number.
        """
        name, *settings = self.header.get("objective", "").split() or ["none"]
        slope = _slope(settings)
        if name in _PLAIN:
            return SignedSquare() if "sqrt" in settings else Identity()
        if name in _EXPONENTIAL:
            return Exponential()
        known = {
            "binary": Sigmoid(slope), "multiclassova": Sigmoid(slope), "multiclass": Softmax(),
            "cross_entropy": Sigmoid(), "cross_entropy_lambda": Softplus(),
        }  # fmt: skip
        if name not in known:
            raise UnsupportedOperator(f"the objective {name!r} has no ONNX form here.", operator=name)
        return known[name]

    def forest(self) -> Forest:
        """Its trees.

        Raises:
            ExportError: If the text is damaged.
            UnsupportedOperator: If leaves hold linear models.
        """
        if not self.trees:
            raise ExportError("the model has no trees: train it for a round at least.")
        outputs = self.num_outputs
        rounds = len(self.trees) // outputs if outputs else 0
        if rounds * outputs != len(self.trees):
            raise ExportError(f"the model has {len(self.trees)} trees for {outputs} outputs.")
        share = 1.0 / rounds if "average_output" in self.header else 1.0
        trees = tuple(_tree(k, entry, k % outputs, share) for k, entry in enumerate(self.trees))
        check_trees(trees, self.num_features, outputs)
        return Forest(trees, self.num_features, outputs, np.zeros(outputs), strict=False)

    def preparation(self) -> Preparation:
        """Features in which zeros are missing, and features that are categories.

        Raises:
            UnsupportedOperator: If trees do not agree on what is missing in a feature.
        """
        kinds: dict[int, set[int]] = {}
        for entry in self.trees:
            decisions, features = _integers(entry, "decision_type"), _integers(entry, "split_feature")
            for feature, decision in zip(features.tolist(), decisions.tolist(), strict=True):
                kind = -1 if decision & _CATEGORICAL else decision >> 2 & 3
                kinds.setdefault(feature, set()).add(kind)
        for feature, found in kinds.items():
            if len(found) > 1 and found & {-1, _MISSING_ZERO}:
                raise UnsupportedOperator(
                    f"the trees do not agree on what is missing in feature {feature}, or whether it is a "
                    "category: they come from different trainings. Train the model in one go.",
                    operator="decision_type",
                )
        return Preparation(
            zero_is_missing=tuple(sorted(f for f, found in kinds.items() if _MISSING_ZERO in found)),
            truncated=tuple(sorted(f for f, found in kinds.items() if -1 in found)),
        )


def _slope(settings: Sequence[str]) -> float:
    """What a sigmoid multiplies sums by."""
    given = next((setting for setting in settings if setting.startswith("sigmoid:")), "sigmoid:1")
    try:
        return float(given.partition(":")[2])
    except ValueError as error:
        raise ExportError(f"the model's objective has {given!r} where a number is expected.") from error


def without_the_rest(text: str) -> str:
    """A text with what LightGBM needs to predict, and nothing that it reads without looking.

    Its parser takes `tree_sizes` for places to jump to, in threads where an error ends the process; without that
    line it reads tree after tree and reports what is wrong. The parameters of the training, which it takes apart
    without counting, play no part in a prediction.
    """
    body = text.partition(f"\n{END}")[0]
    return re.sub(r"^tree_sizes=.*\n", "", body, flags=re.MULTILINE) + f"\n{END}\n"


def _entries(text: str) -> dict[str, str]:
    pairs = (line.partition("=") for line in text.splitlines() if line.strip())
    return {key.strip(): value.strip() for key, _, value in pairs}


def _number(entries: Mapping[str, str], key: str) -> int:
    try:
        return int(entries[key])
    except (KeyError, ValueError) as error:
        raise ExportError(f"the model's text has no number {key!r}.") from error


def _integers(entries: Mapping[str, str], key: str) -> Array:
    return _numbers(entries, key, np.int64)


def _numbers(entries: Mapping[str, str], key: str, dtype: type) -> Array:
    try:
        return np.array(entries.get(key, "").split(), dtype=dtype)
    except (ValueError, OverflowError) as error:
        raise ExportError(f"the model's text has something else than numbers under {key!r}.") from error


def _tree(index: int, entry: Mapping[str, str], target: int, share: float) -> Tree:
    """One tree; questions come first, leaves after them."""
    if entry.get("is_linear", "0") != "0":
        raise UnsupportedOperator(
            f"tree {index} has linear models in its leaves (linear_tree), which ai.onnx.ml has no operator for. "
            "Train with linear_tree=false.",
            operator="linear_tree",
        )
    leaves = _number(entry, "num_leaves")
    values = _numbers(entry, "leaf_value", np.float64)
    decisions, features = _integers(entry, "decision_type"), _integers(entry, "split_feature")
    thresholds = _numbers(entry, "threshold", np.float64)
    left, right = _integers(entry, "left_child"), _integers(entry, "right_child")
    sizes = {array.size for array in (decisions, features, thresholds, left, right)}
    if values.size != leaves or sizes != {leaves - 1}:
        raise ExportError(f"tree {index} of the model is damaged: its lines are of different lengths.")
    sets = _categories(index, entry, decisions, thresholds)
    is_set = (decisions & _CATEGORICAL) != 0
    cuts = np.where(is_set, -np.inf, _beside_zero(thresholds))
    padding = np.zeros(leaves, np.int64)
    return Tree(
        feature=np.concatenate([features, padding + LEAF]),
        threshold=np.concatenate([cuts, padding]),
        yes=np.concatenate([_places(left, leaves), padding]),
        no=np.concatenate([_places(right, leaves), padding]),
        missing_is_yes=np.concatenate([_missing(decisions, cuts) & ~is_set, padding == 1]),
        values=np.concatenate([np.zeros(leaves - 1), values * share])[:, None],
        target=target,
        categories=sets,
    )


def _beside_zero(thresholds: Array) -> Array:
    """Thresholds that decide about small values as about zero, which is what LightGBM takes them for."""
    inside = np.abs(thresholds) <= _ZERO
    return np.where(inside, np.where(thresholds >= 0, _ZERO, np.nextafter(-_ZERO, -np.inf)), thresholds)


def _places(children: Array, leaves: int) -> Array:
    """Numbers in one row: a negative child is a leaf, counted from -1."""
    return np.where(children >= 0, children, leaves - 2 - children)


def _missing(decisions: Array, thresholds: Array) -> Array:
    """Where a NaN goes: in the default direction, or where 0 goes if nothing counts as missing."""
    kind = decisions >> 2 & 3
    default = (decisions & _DEFAULT_LEFT) != 0
    going: Array = np.where(kind == _MISSING_NONE, thresholds >= 0.0, default)
    return going


def _categories(
    index: int, entry: Mapping[str, str], decisions: Array, thresholds: Array
) -> dict[int, tuple[int, ...]]:
    """The set of each question that has one: bits in 32-bit words, the place of which its threshold tells."""
    nodes = np.flatnonzero(decisions & _CATEGORICAL)
    if not nodes.size:
        return {}
    ends, words = _integers(entry, "cat_boundaries"), _integers(entry, "cat_threshold")
    found = {}
    for node in nodes.tolist():
        place = int(thresholds[node]) if np.isfinite(thresholds[node]) else -1
        if not 0 <= place < ends.size - 1 or not 0 <= ends[place] <= ends[place + 1] <= words.size:
            raise ExportError(f"tree {index} of the model is damaged: a set of categories is not there.")
        part = words[ends[place] : ends[place + 1]]
        bits = [32 * k + bit for k, word in enumerate(part.tolist()) for bit in range(32) if word >> bit & 1]
        if bits:
            found[node] = tuple(bits)
    return found
