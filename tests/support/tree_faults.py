"""Faults that a converter of trees makes: a threshold one step off, a missing value sent the other way."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
from onnx import numpy_helper

Fault = Callable[[Path], None]


def splits(path: Path) -> list[int]:
    """Places, in the attributes of the trees, of the nodes that compare."""
    modes = _attribute(_trees(onnx.load(path)), "nodes_modes").strings
    return [k for k, mode in enumerate(modes) if mode in (b"BRANCH_LEQ", b"BRANCH_LT")]


def threshold_one_step_up(which: int) -> Fault:
    """The threshold of one decision at the next float32: what rounding to the nearest float32 does."""

    def spoil(path: Path) -> None:
        model = onnx.load(path)
        node = _trees(model)
        place = splits(path)[which]
        strict = _attribute(node, "nodes_modes").strings[place] == b"BRANCH_LT"
        attribute = _attribute(node, "nodes_values_as_tensor")
        values = numpy_helper.to_array(attribute.t).copy()
        values[place] = _above(values[place], strict=strict)
        attribute.t.CopyFrom(numpy_helper.from_array(values, attribute.t.name))
        onnx.save(model, path)

    return spoil


def missing_sent_the_other_way(which: int) -> Fault:
    """The default direction of one decision that a missing value can reach turned round."""

    def spoil(path: Path) -> None:
        model = onnx.load(path)
        directions = _attribute(_trees(model), "nodes_missing_value_tracks_true")
        place = [k for k in splits(path) if _is_reached_by_missing(_trees(model), k)][which]
        directions.ints[place] = 1 - directions.ints[place]
        onnx.save(model, path)

    return spoil


def _is_reached_by_missing(node: onnx.NodeProto, place: int) -> bool:
    """Whether the decisions above that ask the same feature let a missing value through to this one."""
    names = ("treeids", "nodeids", "featureids", "truenodeids", "falsenodeids", "missing_value_tracks_true")
    tree, own, feature, yes, no, missing_is_yes = (list(_attribute(node, f"nodes_{n}").ints) for n in names)
    split = [mode != b"LEAF" for mode in _attribute(node, "nodes_modes").strings]
    above = {}
    for k in range(len(own)):
        if split[k] and tree[k] == tree[place]:
            above[yes[k]] = above[no[k]] = k
    at = place
    while own[at] != 0:
        parent = above[own[at]]
        goes_to = yes[parent] if missing_is_yes[parent] else no[parent]
        if feature[parent] == feature[place] and goes_to != own[at]:
            return False
        at = parent
    return True


def _above(threshold: float, *, strict: bool) -> float:
    """The smallest change that lets one more float32 take the branch."""
    nearest = np.float32(threshold)
    while np.float64(nearest) < threshold or (not strict and np.float64(nearest) == threshold):
        nearest = np.nextafter(nearest, np.float32(np.inf))
    while np.float64(np.nextafter(nearest, np.float32(-np.inf))) > threshold:
        nearest = np.nextafter(nearest, np.float32(-np.inf))
    return float(np.nextafter(nearest, np.float32(np.inf)) if strict else nearest)


def _trees(model: onnx.ModelProto) -> onnx.NodeProto:
    return next(node for node in model.graph.node if node.op_type == "TreeEnsembleRegressor")


def _attribute(node: onnx.NodeProto, name: str) -> onnx.AttributeProto:
    return next(attribute for attribute in node.attribute if attribute.name == name)
