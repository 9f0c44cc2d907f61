"""Operators that onnx's reference evaluator computes otherwise than ONNX says, computed as ONNX says.

Each is here because a real file met it, with the place in the standard that decides. They are written with numpy
alone, like the evaluator's own.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import defs
from onnx.reference.op_run import OpRun
from onnx.reference.ops.aionnxml import op_tree_ensemble_classifier, op_tree_ensemble_regressor

from paritygate.converter.types import Array

_FLATTENS_BEFORE = 13
"""Before this opset, Softmax and its kin took all axes from `axis` on as one. The evaluator knows only the later
meaning. Source: onnx/docs/Changelog.md, Softmax-11 and Softmax-13."""


class _OverAxes(OpRun):
    """Softmax and its kin in the meaning of the opset that the graph is written in."""

    op_domain = ""

    def _run(self, x: Array, axis: int | None = None) -> tuple[Array]:
        old = self.run_params["opsets"].get("", defs.onnx_opset_version()) < _FLATTENS_BEFORE
        given = {attribute.name: attribute.i for attribute in self.onnx_node.attribute}.get("axis")
        chosen = given if given is not None else (1 if old else -1)
        if x.size == 0:
            return (x,)
        if not old:
            return (self._over(x, chosen),)
        first = chosen + x.ndim if chosen < 0 else chosen
        rows = x.reshape(int(np.prod(x.shape[:first], dtype=np.int64)), -1)
        return (self._over(rows, 1).reshape(x.shape),)

    def _over(self, x: Array, axis: int) -> Array:
        raise NotImplementedError


class Softmax(_OverAxes):
    """exp(x) over its own sum."""

    def _over(self, x: Array, axis: int) -> Array:
        grown = np.exp(x - x.max(axis=axis, keepdims=True))
        return np.asarray(grown / grown.sum(axis=axis, keepdims=True)).astype(x.dtype)


class LogSoftmax(_OverAxes):
    """The logarithm of Softmax."""

    def _over(self, x: Array, axis: int) -> Array:
        moved = x - x.max(axis=axis, keepdims=True)
        return np.asarray(moved - np.log(np.exp(moved).sum(axis=axis, keepdims=True))).astype(x.dtype)


class Hardmax(_OverAxes):
    """One for the first of the largest values, else zero."""

    def _over(self, x: Array, axis: int) -> Array:
        picked = np.zeros_like(x)
        np.put_along_axis(picked, np.expand_dims(x.argmax(axis=axis), axis), x.dtype.type(1), axis=axis)
        return picked


class GlobalMaxPool(OpRun):
    """The largest value over all axes after the first two.

    The evaluator takes the last two axes instead, which is the same for pictures only. Source:
    onnx/docs/Operators.md, GlobalMaxPool.
    """

    op_domain = ""

    def _run(self, x: Array) -> tuple[Array]:
        return (np.asarray(x.max(axis=tuple(range(2, x.ndim)), keepdims=True)),)


class BatchNormalization(OpRun):
    """Normalises with the running statistics, or in training mode with those of the batch.

    The evaluator takes the batch's own statistics for every graph of opset 9 to 13. There, a node trains only if
    it has more than one output; from opset 14 on an attribute says so. Source: onnx/docs/Changelog.md,
    BatchNormalization-9 and BatchNormalization-14.
    """

    op_domain = ""

    def _run(self, x: Array, scale: Array, bias: Array, mean: Array, var: Array, **_defaults: object) -> Any:
        given = {attribute.name: attribute for attribute in self.onnx_node.attribute}
        epsilon = given["epsilon"].f if "epsilon" in given else 1e-5
        momentum = given["momentum"].f if "momentum" in given else 0.9
        said = "training_mode" in given and given["training_mode"].i == 1
        trains = said or (self.run_params["opsets"].get("", 0) < 14 and len(self.onnx_node.output) > 1)
        if "spatial" in given and given["spatial"].i == 0:
            raise NotImplementedError(
                "BatchNormalization of each activation (spatial=0, opset 7) is not known"
            )
        if not trains:
            return (_normalised(x, scale, bias, mean, var, epsilon),)
        axes = tuple(axis for axis in range(x.ndim) if axis != 1)
        own_mean, own_var = x.mean(axis=axes), x.var(axis=axes)
        kept = [old * momentum + own * (1 - momentum) for old, own in ((mean, own_mean), (var, own_var))]
        y = _normalised(x, scale, bias, own_mean, own_var, epsilon)
        old_form = self.run_params["opsets"].get("", 0) < 14
        rest = [*kept, own_mean, own_var] if old_form else kept
        return tuple(np.asarray(array).astype(x.dtype) for array in (y, *rest)[: len(self.onnx_node.output)])


class TreeEnsembleRegressor(op_tree_ensemble_regressor.TreeEnsembleRegressor):
    """Sums over trees whose numbers may stand in tensors, which is how those in double are written.

    The evaluator does not look into the tensors, and gives a double for a double. Source:
    onnx/docs/Operators-ml.md, TreeEnsembleRegressor: `nodes_values_as_tensor` and its kin, output `Y` of float.
    """

    op_domain = "ai.onnx.ml"

    def _run(self, x: Array, **given: Any) -> tuple[Array]:  # type: ignore[override]  # names are the file's
        (sums,) = super()._run(x, **_out_of_tensors(given))  # type: ignore[no-untyped-call]
        return (sums.astype(np.float32),)


class TreeEnsembleClassifier(op_tree_ensemble_classifier.TreeEnsembleClassifier):
    """Votes of trees whose numbers may stand in tensors. Source: as `TreeEnsembleRegressor`."""

    op_domain = "ai.onnx.ml"

    def _run(self, x: Array, **given: Any) -> Any:  # type: ignore[override]  # names are the file's
        return super()._run(x, **_out_of_tensors(given))  # type: ignore[no-untyped-call]


def _out_of_tensors(given: dict[str, Any]) -> dict[str, Any]:
    """Attributes without `_as_tensor`, those in tensors under their plain names."""
    plain = {name: value for name, value in given.items() if not name.endswith("_as_tensor")}
    tensors = {
        name.removesuffix("_as_tensor"): value
        for name, value in given.items()
        if name.endswith("_as_tensor") and value is not None
    }
    return plain | tensors | dict.fromkeys(name for name in given if name.endswith("_as_tensor"))


def _normalised(x: Array, scale: Array, bias: Array, mean: Array, var: Array, epsilon: float) -> Array:
    by_channel = (1, -1, *(1,) * (x.ndim - 2))
    s, b, m, v = (array.reshape(by_channel) for array in (scale, bias, mean, var))
    return np.asarray(s * (x - m) / np.sqrt(v + np.asarray(epsilon, v.dtype)) + b).astype(x.dtype)


CORRECTIONS: list[type[OpRun]] = [
    Softmax,
    LogSoftmax,
    Hardmax,
    GlobalMaxPool,
    BatchNormalization,
    TreeEnsembleRegressor,
    TreeEnsembleClassifier,
]
