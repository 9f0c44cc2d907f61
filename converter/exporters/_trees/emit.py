"""A forest as one TreeEnsembleRegressor of ai.onnx.ml 3, with thresholds, leaves and sums in float64.

For a float64 input, onnxruntime keeps the operator's numbers and its sums in float64 and rounds once, to the
float32 output. So a decision is the framework's own, whatever precision it compares in, and a sum of a thousand
leaves is as exact as the framework's or better: in float32, the order of the sum alone moved answers by ten times
the framework's own error.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import onnx

from paritygate.converter.exporters._trees.forest import LEAF, Forest, Tree
from paritygate.converter.types import Array

ML_DOMAIN = "ai.onnx.ml"
ML_OPSET = 3

_MODES = np.array([b"LEAF", b"BRANCH_LEQ", b"BRANCH_LT", b"BRANCH_EQ"], dtype=object)
_LEAF, _LESS_EQUAL, _LESS, _EQUAL = range(4)


def ensemble_node(forest: Forest, given: str, sums: str) -> onnx.NodeProto:
    """The operator that adds up a forest.

    Args:
        forest: Trees and base.
        given: Name of the float64[batch, feature] tensor it reads.
        sums: Name of the float32[batch, output] tensor it gives.
    """
    node = onnx.helper.make_node(
        "TreeEnsembleRegressor", [given], [sums], name="trees", domain=ML_DOMAIN,
        n_targets=forest.num_outputs, aggregate_function="SUM", post_transform="NONE",
    )  # fmt: skip
    node.attribute.append(_doubles("base_values", forest.base))
    spelled = [_spelled_out(tree, strict=forest.strict) for tree in forest.trees]
    columns = [_columns(index, tree) for index, tree in enumerate(spelled)]
    for name in columns[0]:
        joined = np.concatenate([part[name] for part in columns])
        node.attribute.append(_attribute(name, joined))
    return node


def _attribute(name: str, values: Array) -> onnx.AttributeProto:
    if values.dtype == object:
        return _made(name, onnx.AttributeProto.STRINGS, strings=values.tolist())
    if values.dtype.kind == "f":
        return _doubles(name, values)
    return _made(name, onnx.AttributeProto.INTS, ints=values.tolist())


def _doubles(name: str, values: Array) -> onnx.AttributeProto:
    tensor = onnx.numpy_helper.from_array(values.astype(np.float64), name)
    return _made(f"{name}_as_tensor", onnx.AttributeProto.TENSOR, t=tensor)


def _made(name: str, kind: Any, **values: Any) -> onnx.AttributeProto:
    """An attribute made at once: onnx's helper looks at each of a million numbers on its own."""
    return onnx.AttributeProto(name=name, type=kind, **values)


def _columns(index: int, tree: _Modes) -> dict[str, Array]:
    """The operator's attributes for one tree."""
    split = tree.mode != _LEAF
    leaves = np.flatnonzero(~split)
    outputs = tree.values.shape[1]
    count = tree.mode.size
    return {
        "nodes_treeids": np.full(count, index),
        "nodes_nodeids": np.arange(count),
        "nodes_featureids": np.where(split, tree.feature, 0),
        "nodes_modes": _MODES[tree.mode],
        "nodes_values": np.where(split, tree.value, 0.0),
        "nodes_truenodeids": np.where(split, tree.yes, 0),
        "nodes_falsenodeids": np.where(split, tree.no, 0),
        "nodes_missing_value_tracks_true": (split & tree.missing_is_yes).astype(np.int64),
        "target_treeids": np.full(leaves.size * outputs, index),
        "target_nodeids": np.repeat(leaves, outputs),
        "target_ids": np.tile(tree.target + np.arange(outputs), leaves.size),
        "target_weights": tree.values[leaves].ravel(),
    }


class _Modes:
    """A tree with an operator's mode for each node; sets of categories are spelled out as chains of `==`."""

    def __init__(self, tree: Tree, *, strict: bool) -> None:
        self.mode: Array = np.where(tree.is_split, _LESS if strict else _LESS_EQUAL, _LEAF)
        self.feature, self.value = tree.feature, tree.threshold
        self.yes, self.no, self.missing_is_yes = tree.yes, tree.no, tree.missing_is_yes
        self.values, self.target = tree.values, tree.target


def _spelled_out(tree: Tree, *, strict: bool) -> _Modes:
    """One tree in the operator's own words."""
    if not tree.is_split.any():
        tree = _as_stump(tree)
    modes = _Modes(tree, strict=strict)
    for node, categories in tree.categories.items():
        _chain(modes, node, categories)
    return modes


def _as_stump(tree: Tree) -> Tree:
    """A lone leaf as a question with one answer: not every runtime takes a tree without a question."""
    return replace(
        tree,
        feature=np.array([0, LEAF, LEAF]),
        threshold=np.zeros(3),
        yes=np.array([1, 0, 0]),
        no=np.array([2, 0, 0]),
        missing_is_yes=np.array([True, False, False]),
        values=np.repeat(tree.values[:1], 3, axis=0),
    )


def _chain(modes: _Modes, node: int, categories: tuple[float, ...]) -> None:
    """`x in {a, b, c}` as a question for each member; all of them lead to the same child on yes.

    A shared child is what onnxruntime expects of set membership (tree_ensemble_common.h, AddNodes). A NaN equals
    no category; where it belongs with the members, the first question takes it there.
    """
    extra = len(categories) - 1
    first = modes.mode.size
    places = [node, *range(first, first + extra)]
    yes, no = int(modes.yes[node]), int(modes.no[node])
    missing_is_yes = bool(modes.missing_is_yes[node])

    def grown(array: Array, fill: Any) -> Array:
        return np.concatenate([array, np.full(extra, fill, array.dtype)])

    modes.mode = grown(modes.mode, _EQUAL)
    modes.feature = grown(modes.feature, modes.feature[node])
    modes.value = grown(modes.value, 0)
    modes.yes, modes.no = grown(modes.yes, yes), grown(modes.no, no)
    modes.missing_is_yes = grown(modes.missing_is_yes, missing_is_yes)
    modes.values = np.concatenate([modes.values, np.zeros((extra, modes.values.shape[1]))])
    for place, category, following in zip(places, categories, [*places[1:], no], strict=True):
        modes.mode[place], modes.value[place] = _EQUAL, category
        modes.yes[place], modes.no[place] = yes, following
