"""What an XGBoost model document (JSON, or UBJSON once decoded) says, as an `Ensemble`.

Source: https://github.com/dmlc/xgboost, doc/model.schema and doc/tutorials/saving_model.rst; the decisions are
those of src/predictor/cpu_predictor.cc (`x < split_condition`, NaN in the node's default direction) and
src/common/categorical.h (members of the set go right, a value below 0 is in no set).
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from paritygate.converter.errors import ExportError, UnsupportedOperator
from paritygate.converter.exporters._trees.ensemble import Linear
from paritygate.converter.exporters._trees.forest import LEAF, Forest, Tree, check_trees
from paritygate.converter.exporters._trees.links import (
    Exponential,
    Identity,
    LargestIndex,
    Link,
    Positive,
    Sigmoid,
    Softmax,
)
from paritygate.converter.types import Array


def _as_logit(share: float) -> float:
    return -math.log(1.0 / share - 1.0) if 0.0 < share < 1.0 else math.nan


def _as_logarithm(value: float) -> float:
    return math.log(value) if value > 0 else math.nan


_LOGISTIC = (Sigmoid(), _as_logit)
_LOGARITHMIC = (Exponential(), _as_logarithm)
_PLAIN: tuple[Link, Callable[[float], float]] = (Identity(), float)

OBJECTIVES: dict[str, tuple[Link, Callable[[float], float]]] = {
    "binary:logistic": _LOGISTIC, "reg:logistic": _LOGISTIC, "binary:logitraw": _PLAIN,
    "binary:hinge": (Positive(), float), "multi:softmax": (LargestIndex(), float),
    "multi:softprob": (Softmax(), float), "count:poisson": _LOGARITHMIC, "reg:gamma": _LOGARITHMIC,
    "reg:tweedie": _LOGARITHMIC, "survival:cox": _LOGARITHMIC, "survival:aft": _LOGARITHMIC,
    "reg:squarederror": _PLAIN, "reg:linear": _PLAIN, "reg:squaredlogerror": _PLAIN,
    "reg:pseudohubererror": _PLAIN,
    "reg:absoluteerror": _PLAIN, "reg:quantileerror": _PLAIN, "reg:expectileerror": _PLAIN,
    "rank:ndcg": _PLAIN, "rank:pairwise": _PLAIN, "rank:map": _PLAIN,
}  # fmt: skip
"""Name of an objective -> what `predict` makes of the sums, and what the sums begin with for a base score."""


_MOST_OUTPUTS = 2**16
"""Outputs that a model may have without as many trees."""

_MOST_CATEGORIES = 2**24
"""XGBoost's own bound of a category (src/common/categorical.h: OutOfRangeCat)."""


@dataclass(frozen=True)
class BoosterDocument:
    """A booster's own document.

    Attributes:
        learner: The part called `learner`.
    """

    learner: Mapping[str, Any]

    @classmethod
    def from_json(cls, text: bytes | bytearray) -> BoosterDocument:
        """Read what `Booster.save_raw("json")` gives."""
        return cls(json.loads(text)["learner"])

    @property
    def objective(self) -> str:
        """Its name, such as `binary:logistic`."""
        return str(self.learner["objective"]["name"])

    @property
    def link(self) -> Link:
        """What `predict` makes of the sums.

        Raises:
            UnsupportedOperator: If the objective is not known here.
        """
        return self._of_objective()[0]

    @property
    def num_features(self) -> int:
        """Features of a sample."""
        return int(self._parameters["num_feature"])

    @property
    def num_outputs(self) -> int:
        """Sums of a sample: one for each class or target."""
        return max(1, int(self._parameters["num_class"]), int(self._parameters["num_target"]))

    @property
    def feature_names(self) -> list[str]:
        """Names of the features in order; empty if it has none."""
        return [str(name) for name in self.learner.get("feature_names", ())]

    @property
    def categorical(self) -> tuple[int, ...]:
        """Features that hold categories."""
        kinds = self.learner.get("feature_types", ())
        return tuple(index for index, kind in enumerate(kinds) if kind == "c")

    @property
    def num_rounds(self) -> int:
        """Boosting rounds."""
        booster = self._trees_part
        return max(0, len(booster["model"]["iteration_indptr"]) - 1) if "model" in booster else 0

    @property
    def best_iteration(self) -> int | None:
        """The best round that early stopping found, counted from 0."""
        found = self.learner.get("attributes", {}).get("best_iteration")
        return None if found is None else int(found)

    @property
    def base(self) -> Array:
        """float64[output]: what the sums begin with.

        Raises:
            ExportError: If the base score has no such sum.
        """
        text = str(self._parameters["base_score"]).strip("[] ")
        given = np.array([np.float32(part) for part in text.split(",")], np.float64)
        to_sum = self._of_objective()[1]
        sums = np.array([np.float32(to_sum(float(value))) for value in given], np.float64)
        if not np.isfinite(sums).all():
            raise ExportError(f"base_score {text} cannot be for the objective {self.objective}.")
        return np.broadcast_to(sums, (self.num_outputs,)).copy()

    def sums(self, rounds: int | None = None) -> Forest | Linear:
        """The forest of the first rounds, or of all; the linear model of a `gblinear` booster.

        Raises:
            ExportError: If the document is damaged.
            UnsupportedOperator: If the booster is of a kind that is not known here.
        """
        booster = self.learner["gradient_booster"]
        if booster["name"] != "gblinear" and not self.num_rounds:
            raise ExportError("the booster has no trees: train it for a round at least.")
        if booster["name"] == "gblinear":
            weights = np.array(booster["model"]["weights"], np.float64)
            by_feature = weights.reshape(self.num_features + 1, self.num_outputs)
            # gblinear adds the first base score to every output (src/gbm/gblinear.cc: base_score(0)).
            return Linear(by_feature[:-1], self.base[0] + by_feature[-1])
        if booster["name"] not in ("gbtree", "dart"):
            raise UnsupportedOperator(
                f"the booster {booster['name']!r} has no ONNX form here; known are gbtree, dart and gblinear.",
                operator=str(booster["name"]),
            )
        return self._forest(rounds)

    @cached_property
    def leaf_values(self) -> list[Array]:
        """float64[node, output] of each tree, by the booster's own numbers of the nodes."""
        entries = self._trees_part["model"]["trees"]
        weights = self.learner["gradient_booster"].get("weight_drop") or [1.0] * len(entries)
        return [
            _leaf_values(entry) * np.float64(np.float32(weight))
            for entry, weight in zip(entries, weights, strict=True)
        ]

    def check(self) -> None:
        """Hold a document from outside to what XGBoost's own reader takes for granted.

        Raises:
            ExportError: If a tree is none.
            LookupError, TypeError, ValueError: If a part is missing or of another kind.
        """
        booster = self.learner["gradient_booster"]
        if booster["name"] == "gblinear":
            np.array(booster["model"]["weights"], np.float64).reshape(self.num_features + 1, self.num_outputs)
            return
        entries = self._trees_part["model"]["trees"]
        self._check_settings(entries)
        for entry in entries:
            left, right = _integers(entry["left_children"]), _integers(entry["right_children"])
            asked, values = (
                _integers(entry["split_indices"]),
                np.asarray(entry["split_conditions"], np.float64),
            )
            if not left.size or {left.size} != {right.size, asked.size, values.size}:
                raise ExportError("a tree of the model is damaged: its arrays are of different sizes.")
            split = left != -1
            if asked[split].size and not 0 <= asked[split].min() <= asked[split].max() < self.num_features:
                raise ExportError("a tree of the model is damaged: it asks for a feature that is not there.")
            _check_parents(_integers(entry["parents"]), left, right, _reachable(left, right))
            _check_categories(entry, left.size)

    @property
    def saved_estimator(self) -> Mapping[str, Any] | None:
        """What the estimator around the booster noted of itself; None where a booster was saved alone.

        Raises:
            ExportError: If it cannot be read.
        """
        attributes = self.learner.get("attributes", {})
        if "scikit_learn" not in attributes:
            return None
        try:
            saved = json.loads(attributes["scikit_learn"])
        except (ValueError, TypeError, RecursionError):
            saved = None
        if not isinstance(saved, dict):
            raise ExportError("what the estimator noted of itself in the model cannot be read.")
        return saved

    def _check_settings(self, entries: Sequence[Any]) -> None:
        """What XGBoost would take memory for, or stumble over once the file is loaded."""
        widths = {int(entry["tree_param"]["size_leaf_vector"]) for entry in entries}
        if any(width not in (0, 1, self.num_outputs) for width in widths):
            raise ExportError("a tree of the model is damaged: its leaves are not as wide as the answers.")
        if self.num_outputs > max(len(entries), _MOST_OUTPUTS, *widths):
            raise ExportError(
                f"the model says that it has {self.num_outputs} outputs for {len(entries)} trees."
            )
        dropped = self.learner["gradient_booster"].get("weight_drop")
        if dropped is not None and len(dropped) not in (0, len(entries)):
            raise ExportError(f"the model has {len(entries)} trees, and weights for {len(dropped)}.")
        if self.objective in OBJECTIVES:
            _ = self.base
        _ = self.best_iteration, self.saved_estimator

    def _forest(self, rounds: int | None) -> Forest:
        model = self._trees_part["model"]
        ends = model["iteration_indptr"]
        last = int(ends[min(self.num_rounds if rounds is None else rounds, len(ends) - 1)])
        trees = tuple(
            _tree(entry, int(target), values)
            for entry, target, values in zip(
                model["trees"][:last], model["tree_info"][:last], self.leaf_values[:last], strict=True
            )
        )
        check_trees(trees, self.num_features, self.num_outputs)
        return Forest(trees, self.num_features, self.num_outputs, self.base, strict=True)

    @property
    def _trees_part(self) -> Mapping[str, Any]:
        booster: Mapping[str, Any] = self.learner["gradient_booster"]
        inner: Mapping[str, Any] = booster.get("gbtree", booster)
        return inner if booster["name"] != "gblinear" else {}

    @property
    def _parameters(self) -> Mapping[str, Any]:
        parameters: Mapping[str, Any] = self.learner["learner_model_param"]
        return parameters

    def _of_objective(self) -> tuple[Link, Callable[[float], float]]:
        if self.objective not in OBJECTIVES:
            raise UnsupportedOperator(
                f"the objective {self.objective!r} has no ONNX form here; known are {', '.join(OBJECTIVES)}.",
                operator=self.objective,
            )
        return OBJECTIVES[self.objective]


def _check_parents(parents: Array, left: Array, right: Array, reached: Array) -> None:
    """XGBoost walks up as well as down; what pruning left behind is not walked."""
    asking = reached[left[reached] != -1]
    if parents.size != left.size or not (
        np.array_equal(parents[left[asking]], asking) and np.array_equal(parents[right[asking]], asking)
    ):
        raise ExportError("a tree of the model is damaged: a node does not know its parent.")


def _check_categories(entry: Mapping[str, Any], nodes: int) -> None:
    """XGBoost takes every place and every member of a set as it stands."""
    asking, begins, sizes, members = (
        _integers(entry[key]) if len(entry[key]) else np.zeros(0, np.int64)
        for key in ("categories_nodes", "categories_segments", "categories_sizes", "categories")
    )
    if {asking.size, begins.size} != {sizes.size}:
        raise ExportError("a tree of the model is damaged: its sets of categories are not whole.")
    marked = np.flatnonzero(_integers(entry["split_type"]) == 1)
    if not np.array_equal(np.sort(asking), marked) or (asking.size and asking.max() >= nodes):
        raise ExportError("a tree of the model is damaged: its sets of categories are of other nodes.")
    inside = (begins >= 0) & (sizes > 0) & (begins <= members.size - sizes)
    if not inside.all() or (members.size and not 0 <= members.min() <= members.max() < _MOST_CATEGORIES):
        raise ExportError("a tree of the model is damaged: a category lies outside of what can be.")


def _integers(values: Any) -> Array:
    array = np.asarray(values)
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise ExportError("a tree of the model is damaged: its arrays hold something else than numbers.")
    return array.astype(np.int64)


def _tree(entry: Mapping[str, Any], target: int, values: Array) -> Tree:
    left = np.array(entry["left_children"], np.int64)
    right = np.array(entry["right_children"], np.int64)
    split = left != -1
    order = _reachable(left, right)
    place = np.zeros(left.size, np.int64)
    place[order] = np.arange(order.size)
    categories = _categories(entry)
    kept = set(order.tolist())
    members = {int(place[node]): sets for node, sets in categories.items() if sets and node in kept}
    compares = split.copy()
    compares[list(categories)] = False
    thresholds = np.where(compares, np.array(entry["split_conditions"], np.float32), -np.inf).astype(
        np.float64
    )
    # A member of the set goes right, everything else left: in the words of `Tree`, right is yes.
    swapped = np.isin(np.arange(left.size), list(categories))
    default_left = np.array(entry["default_left"], np.int64) != 0
    yes = np.where(swapped, right, left)
    no = np.where(swapped, left, right)
    return Tree(
        feature=np.where(split, np.array(entry["split_indices"], np.int64), LEAF)[order],
        threshold=thresholds[order],
        yes=np.where(split, place[np.where(split, yes, 0)], 0)[order],
        no=np.where(split, place[np.where(split, no, 0)], 0)[order],
        missing_is_yes=(default_left != swapped)[order],
        values=values[order],
        target=0 if values.shape[1] > 1 else target,
        categories=members,
    )


def _leaf_values(entry: Mapping[str, Any]) -> Array:
    """float64[node, output]; a vector leaf keeps the number of its vector where others have the right child."""
    split = np.array(entry["left_children"], np.int64) != -1
    right = np.array(entry["right_children"], np.int64)
    width = int(entry["tree_param"]["size_leaf_vector"])
    if width <= 1:
        return np.where(split, 0.0, np.array(entry["split_conditions"], np.float32).astype(np.float64))[
            :, None
        ]
    vectors = np.array(entry["leaf_weights"], np.float32).astype(np.float64).reshape(-1, width)
    return np.where(split[:, None], 0.0, vectors[np.where(split, 0, right)])


def _reachable(left: Array, right: Array) -> Array:
    """Nodes in an order that begins with the root; pruning leaves others behind."""
    seen = np.zeros(left.size, np.bool_)
    level, order = np.array([0]), [np.array([0])]
    seen[0] = True
    while level.size:
        asking = level[left[level] != -1]
        level = np.concatenate([left[asking], right[asking]])
        if level.size and (level.min() < 0 or level.max() >= left.size):
            raise ExportError("a tree of the model is damaged: a child lies outside the tree.")
        if seen[level].any() or np.unique(level).size != level.size:
            raise ExportError("a tree of the model is damaged: a node has two parents.")
        seen[level] = True
        order.append(level)
    return np.concatenate(order)


def _categories(entry: Mapping[str, Any]) -> dict[int, tuple[int, ...]]:
    members = entry["categories"]
    return {
        int(node): tuple(int(value) for value in members[begin : begin + size])
        for node, begin, size in zip(
            entry["categories_nodes"], entry["categories_segments"], entry["categories_sizes"], strict=True
        )
    }
