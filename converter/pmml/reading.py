"""A bundle's graph understood as one linear model or one set of trees.

The graph is followed node by node; whatever is not of this kind is refused by the name of its operator. What is
understood wrongly cannot get out: the file is scored on the bundle's probes before it is handed over.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np
import onnx
from onnx import helper, numpy_helper

from paritygate.converter.errors import UnsupportedOperator
from paritygate.converter.pmml.tabular import Columns, Labels, Rest, Scores, Tabular, TreeNode, Trees
from paritygate.converter.types import Array, DType, Signature

Value: TypeAlias = "Columns | Scores | Labels | Rest | Array"


def understand(model: onnx.ModelProto, signature: Signature) -> Tabular:
    """The linear model or the trees that a graph is.

    Raises:
        UnsupportedOperator: If it is neither; the text names the first operator that is not part of one.
    """
    values: dict[str, Value] = {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}
    fields = _take_inputs(signature, values)
    for node in model.graph.node:
        if node.op_type not in _READERS or node.domain not in ("", "ai.onnx.ml"):
            raise _foreign(node, "PMML is written of linear models and trees")
        if any(name not in values for name in node.input):
            raise _foreign(node, "it takes what was not followed, or leaves an input out")
        _READERS[node.op_type](node, values)
    return _outputs(model, values, fields, signature)


def _foreign(node: onnx.NodeProto, why: str) -> UnsupportedOperator:
    return UnsupportedOperator(
        f"operator {node.op_type} ({node.name or node.output[0]!r}) has no PMML form: {why}. Serve the bundle "
        "as it is, or export the linear model or the trees alone.",
        operator=node.op_type,
        module=node.name or None,
    )


_TYPES = {DType.FLOAT32: "float", DType.FLOAT64: "double", DType.INT64: "integer", DType.INT32: "integer"}


def _take_inputs(signature: Signature, values: dict[str, Value]) -> dict[str, str]:
    fields: dict[str, str] = {}
    for spec in signature.inputs:
        width = spec.shape[1] if len(spec.shape) == 2 else None
        if spec.dtype not in _TYPES or not isinstance(width, int):
            raise UnsupportedOperator(
                f"input {spec} has no PMML form; expected a matrix [rows, fields] or columns [rows, 1] of "
                "float32, float64, int32 or int64.",
                operator="input",
                module=spec.name,
            )
        names = (spec.name,) if width == 1 else tuple(f"{spec.name}_{k}" for k in range(width))
        twice = sorted(fields.keys() & set(names))
        if twice:
            raise UnsupportedOperator(
                f"two inputs would have the PMML field {twice[0]!r}; export the model with other names "
                "(input_names=).",
                operator="input",
                module=spec.name,
            )
        fields |= dict.fromkeys(names, _TYPES[spec.dtype])
        values[spec.name] = Columns(names, np.zeros(width), np.ones(width), spec.dtype is DType.FLOAT32)
    return fields


def _outputs(
    model: onnx.ModelProto, values: Mapping[str, Value], fields: dict[str, str], signature: Signature
) -> Tabular:
    found = {output.name: values.get(output.name) for output in model.graph.output}
    labels = {name: value for name, value in found.items() if isinstance(value, Labels)}
    scores = {name: value for name, value in found.items() if isinstance(value, Scores)}
    if not found or len(labels) > 1 or len(scores) > 1 or len(labels) + len(scores) != len(found):
        raise UnsupportedOperator(
            f"the outputs {list(found)} are no prediction, and no class with its probabilities; PMML is written "
            "of those. Export the model with these outputs alone.",
            operator="output",
        )
    seen = [*scores.values(), *(value.scores for value in labels.values())]
    fields = _rounded(fields, seen[0].columns)
    if not labels:
        ((name, value),) = scores.items()
        if value.link != "softmax" and not value.positive and not value.shares:
            return Tabular(fields, value, prediction=name)
        return Tabular(fields, value, _numbered(value), probabilities=name)
    ((label, told),) = labels.items()
    name, value = next(iter(scores.items())) if scores else ("", told.scores)
    whole = {spec.name: spec.dtype.is_integer for spec in signature.outputs}[label]
    return Tabular(fields, value, told.classes or _numbered(value), label, name, whole_labels=whole)


def _rounded(fields: dict[str, str], columns: Columns) -> dict[str, str]:
    """Fields that the graph rounds to single precision are of that type, so that PMML rounds them too."""
    return fields | (dict.fromkeys(columns.fields, "float") if columns.single else {})


def _numbered(scores: Scores) -> tuple[str, ...]:
    return tuple(str(k) for k in range(2 if scores.positive else scores.constant.size))


# --- operators ----------------------------------------------------------------------------------------------


def _attributes(node: onnx.NodeProto) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for attribute in node.attribute:
        value = helper.get_attribute_value(attribute)
        if isinstance(value, onnx.TensorProto):
            value = numpy_helper.to_array(value)
        found[attribute.name.removesuffix("_as_tensor")] = value
    return found


def _same(node: onnx.NodeProto, values: dict[str, Value]) -> None:
    values[node.output[0]] = values[node.input[0]]


def _cast(node: onnx.NodeProto, values: dict[str, Value]) -> None:
    value, kind = values[node.input[0]], _attributes(node)["to"]
    if not isinstance(value, Labels) and kind not in (onnx.TensorProto.FLOAT, onnx.TensorProto.DOUBLE):
        raise _foreign(node, "it makes whole numbers or texts of fields or scores")
    if isinstance(value, Columns) and kind == onnx.TensorProto.FLOAT:
        value = replace(value, single=True)
    values[node.output[0]] = value


def _columns(node: onnx.NodeProto, values: Mapping[str, Value]) -> Columns:
    value = values[node.input[0]]
    if not isinstance(value, Columns):
        raise _foreign(node, "it does not take the input fields")
    return value


def _scores(node: onnx.NodeProto, values: Mapping[str, Value]) -> Scores:
    value = values[node.input[0]]
    if not isinstance(value, Scores):
        raise _foreign(node, "it does not take the scores of a linear model or of trees")
    return value


def _concat(node: onnx.NodeProto, values: dict[str, Value]) -> None:
    parts = [values[name] for name in node.input]
    if len(parts) == 2 and isinstance(parts[0], Rest) and parts[0].scores is parts[1]:
        values[node.output[0]] = replace(parts[0].scores, positive=True)
        return
    columns = [part for part in parts if isinstance(part, Columns)]
    if len(columns) != len(parts):
        raise _foreign(node, "it joins more than input fields")
    values[node.output[0]] = Columns(
        tuple(name for part in columns for name in part.fields),
        np.concatenate([part.offset for part in columns]),
        np.concatenate([part.scale for part in columns]),
        any(part.single for part in columns),
        steps=max(part.steps for part in columns),
    )


def _scaler(node: onnx.NodeProto, values: dict[str, Value]) -> None:
    columns, told = _columns(node, values), _attributes(node)
    if not columns.raw:
        raise _foreign(node, "the fields are scaled already")
    width = len(columns.fields)
    offset = np.broadcast_to(np.asarray(told["offset"], dtype=np.float64), (width,))
    scale = np.broadcast_to(np.asarray(told["scale"], dtype=np.float64), (width,))
    values[node.output[0]] = replace(columns, offset=offset, scale=scale, steps=1, scaler=True)


_LINKS = {b"NONE": "none", b"LOGISTIC": "logit", b"SOFTMAX": "softmax"}


def _link(node: onnx.NodeProto, told: Mapping[str, Any]) -> str:
    given = told.get("post_transform", b"NONE")
    if given not in _LINKS:
        raise _foreign(node, f"its post_transform {given.decode()} is none that PMML has")
    return _LINKS[given]


def _linear(node: onnx.NodeProto, values: dict[str, Value]) -> Scores:
    columns, told = _columns(node, values), _attributes(node)
    weights = np.asarray(told["coefficients"], dtype=np.float64).reshape(-1, len(columns.fields))
    constant = np.broadcast_to(np.asarray(told.get("intercepts", [0.0]), dtype=np.float64), (len(weights),))
    return Scores(weights, columns, 1.0, constant, _link(node, told))


def _linear_regressor(node: onnx.NodeProto, values: dict[str, Value]) -> None:
    values[node.output[0]] = _linear(node, values)


def _linear_classifier(node: onnx.NodeProto, values: dict[str, Value]) -> None:
    scores, told = _linear(node, values), _attributes(node)
    classes = _classes(told.get("classlabels_ints"), told.get("classlabels_strings"))
    _classified(node, values, scores, classes)


def _classes(whole: Sequence[int] | None, texts: Sequence[bytes] | None) -> tuple[str, ...]:
    return tuple(text.decode() for text in texts) if texts else tuple(str(number) for number in whole or ())


def _classified(
    node: onnx.NodeProto, values: dict[str, Value], scores: Scores, classes: tuple[str, ...]
) -> None:
    values[node.output[0]] = Labels(scores, classes)
    if len(node.output) > 1:
        values[node.output[1]] = scores


def _ensemble(node: onnx.NodeProto, values: dict[str, Value], prefix: str) -> tuple[Scores, dict[str, Any]]:
    columns, told = _columns(node, values), _attributes(node)
    if not columns.raw and not (columns.scaler and columns.single and (columns.scale > 0).all()):
        raise _foreign(node, "its trees look at fields that were scaled in another way than by one Scaler")
    if told.get("aggregate_function", b"SUM") != b"SUM":
        raise _foreign(node, "its trees are not added up")
    nodes = _nodes(told)
    weights = np.asarray(told[f"{prefix}_weights"], dtype=np.float64)
    places = zip(
        told[f"{prefix}_treeids"], told[f"{prefix}_nodeids"], told[f"{prefix}_ids"], weights, strict=True
    )
    for tree, number, target, weight in places:
        own = nodes[tree][number].weights
        own[int(target)] = own.get(int(target), 0.0) + float(weight)
    base = np.asarray(told.get("base_values", []), dtype=np.float64).ravel()
    return Scores(Trees(nodes, columns), columns, 1.0, base, _link(node, told)), told


def _nodes(told: Mapping[str, Any]) -> dict[int, dict[int, TreeNode]]:
    count = len(told["nodes_treeids"])
    tracks = told.get("nodes_missing_value_tracks_true") or [0] * count
    nodes: dict[int, dict[int, TreeNode]] = {}
    parts = (
        told[f"nodes_{key}"] for key in ("treeids", "nodeids", "modes", "featureids", "values", "truenodeids")
    )
    for tree, number, mode, feature, bound, yes, no, track in zip(
        *parts, told["nodes_falsenodeids"], tracks, strict=True
    ):
        nodes.setdefault(tree, {})[number] = TreeNode(
            mode.decode(), int(feature), float(bound), int(yes), int(no), bool(track), {}
        )
    return nodes


def _tree_regressor(node: onnx.NodeProto, values: dict[str, Value]) -> None:
    scores, told = _ensemble(node, values, "target")
    count = int(told.get("n_targets", 1))
    base = scores.constant if scores.constant.size else np.zeros(count)
    values[node.output[0]] = replace(scores, constant=base)


def _tree_classifier(node: onnx.NodeProto, values: dict[str, Value]) -> None:
    scores, told = _ensemble(node, values, "class")
    classes = _classes(told.get("classlabels_int64s"), told.get("classlabels_strings"))
    targets = {int(k) for k in told["class_ids"]}
    if len(classes) == 2 and len(targets) == 1:
        if scores.link != "logit":
            raise _foreign(node, "its one score of two classes has no logistic link")
        _only_first_target(scores, targets.pop())
        base = scores.constant[-1:] if scores.constant.size else np.zeros(1)
        scores = replace(scores, constant=base, positive=True)
    else:
        base = scores.constant if scores.constant.size else np.zeros(len(classes))
        scores = replace(scores, constant=base)
    _classified(node, values, scores, classes)


def _only_first_target(scores: Scores, target: int) -> None:
    assert isinstance(scores.source, Trees)
    for tree in scores.source.nodes.values():
        for entry in tree.values():
            if target in entry.weights:
                entry.weights[0] = entry.weights.pop(target)


def _array(node: onnx.NodeProto, values: Mapping[str, Value], at: int = 1) -> Array:
    value = values[node.input[at]]
    if not isinstance(value, np.ndarray):
        raise _foreign(node, "it joins two values that both hang on the input")
    return value.astype(np.float64).ravel()


def _number(node: onnx.NodeProto, values: Mapping[str, Value]) -> float:
    array = _array(node, values)
    if array.size != 1:
        raise _foreign(node, "its second input is not one number")
    return float(array[0])


def _scaled(node: onnx.NodeProto, values: dict[str, Value]) -> None:
    """Multiplied with constants, or divided by them: the fields, or the plain scores."""
    value = values[node.input[0]]
    if isinstance(value, Columns):
        factors = _array(node, values)
        factors = 1.0 / factors if node.op_type == "Div" else factors
        scale = value.scale * factors
        values[node.output[0]] = replace(value, scale=scale, steps=value.steps + 1, scaler=False)
        return
    scores, number = _scores(node, values), _number(node, values)
    if scores.link != "none":
        raise _foreign(node, "it changes scores behind their link")
    factor = 1.0 / number if node.op_type == "Div" else number
    values[node.output[0]] = replace(scores, factor=scores.factor * factor, constant=scores.constant * factor)


def _moved(node: onnx.NodeProto, values: dict[str, Value]) -> None:
    """Constants added to the fields or to the plain scores."""
    value, array = values[node.input[0]], _array(node, values)
    if isinstance(value, Columns):
        if not value.scale.all():
            raise _foreign(node, "a field is multiplied with zero before")
        offset = value.offset - array / value.scale
        values[node.output[0]] = replace(value, offset=offset, steps=value.steps + 1, scaler=False)
        return
    scores = _scores(node, values)
    if scores.link != "none":
        raise _foreign(node, "it changes scores behind their link")
    values[node.output[0]] = replace(scores, constant=scores.constant + array)


def _subtracted(node: onnx.NodeProto, values: dict[str, Value]) -> None:
    """Constants taken off the fields, or a probability taken off 1."""
    first, second = values[node.input[0]], values[node.input[1]]
    if isinstance(first, Columns) and isinstance(second, np.ndarray) and first.scale.all():
        offset = first.offset + _array(node, values) / first.scale
        values[node.output[0]] = replace(first, offset=offset, steps=first.steps + 1, scaler=False)
        return
    logistic = isinstance(second, Scores) and second.link == "logit" and second.constant.size == 1
    if not (
        logistic and isinstance(first, np.ndarray) and first.size == 1 and float(first.ravel()[0]) == 1.0
    ):
        raise _foreign(node, "it takes more than a probability off 1")
    assert isinstance(second, Scores), "checked above"
    values[node.output[0]] = Rest(second)


def _product(node: onnx.NodeProto, values: dict[str, Value]) -> None:
    """Fields times a matrix, and constants added: a linear model."""
    columns, told = _columns(node, values), _attributes(node)
    weights = values[node.input[1]]
    if not isinstance(weights, np.ndarray) or weights.ndim != 2 or told.get("transA"):
        raise _foreign(node, "its weights are no constant matrix")
    weights = weights.astype(np.float64) * told.get("alpha", 1.0)
    weights = weights if told.get("transB") else weights.T
    constant = np.zeros(len(weights))
    if len(node.input) > 2:
        constant = constant + _array(node, values, 2) * told.get("beta", 1.0)
    values[node.output[0]] = Scores(weights, columns, 1.0, constant)


def _linked(node: onnx.NodeProto, values: dict[str, Value]) -> None:
    scores = _scores(node, values)
    if scores.link != "none":
        raise _foreign(node, "the scores have a link already")
    link = {"Sigmoid": "logit", "Softmax": "softmax", "Exp": "exp"}[node.op_type]
    values[node.output[0]] = replace(scores, link=link)


def _normalizer(node: onnx.NodeProto, values: dict[str, Value]) -> None:
    if _attributes(node).get("norm") != b"L1":
        raise _foreign(node, "only the norm L1 makes probabilities")
    values[node.output[0]] = replace(_scores(node, values), shares=True)


def _arg_max(node: onnx.NodeProto, values: dict[str, Value]) -> None:
    values[node.output[0]] = Labels(_scores(node, values), None)


def _decided(node: onnx.NodeProto, values: dict[str, Value]) -> None:
    """The second of two classes where the one plain score is above 0: where its probability is above a half."""
    scores = _scores(node, values)
    if scores.link != "none" or scores.constant.size != 1 or _number(node, values) != 0.0:
        raise _foreign(node, "it compares more than one plain score with 0")
    values[node.output[0]] = Labels(replace(scores, link="logit", positive=True), None)


def _gathered(node: onnx.NodeProto, values: dict[str, Value]) -> None:
    """Class numbers to class labels, or some of the fields."""
    table, labels = values[node.input[0]], values[node.input[1]]
    if isinstance(table, Columns) and isinstance(labels, np.ndarray) and table.raw:
        chosen = tuple(table.fields[int(k)] for k in labels.ravel())
        values[node.output[0]] = replace(
            table, fields=chosen, offset=np.zeros(len(chosen)), scale=np.ones(len(chosen))
        )
        return
    if not (isinstance(table, np.ndarray) and isinstance(labels, Labels)):
        raise _foreign(node, "it picks something else than the label of a class")
    values[node.output[0]] = replace(labels, classes=tuple(str(entry) for entry in table.ravel()))


_READERS: dict[str, Callable[[onnx.NodeProto, dict[str, Value]], None]] = {
    "Identity": _same,
    "Squeeze": _same,
    "Reshape": _same,
    "Flatten": _same,
    "Cast": _cast,
    "Concat": _concat,
    "Scaler": _scaler,
    "LinearRegressor": _linear_regressor,
    "LinearClassifier": _linear_classifier,
    "TreeEnsembleRegressor": _tree_regressor,
    "TreeEnsembleClassifier": _tree_classifier,
    "Div": _scaled,
    "Mul": _scaled,
    "Add": _moved,
    "Sub": _subtracted,
    "MatMul": _product,
    "Gemm": _product,
    "Exp": _linked,
    "Sigmoid": _linked,
    "Softmax": _linked,
    "Normalizer": _normalizer,
    "ArgMax": _arg_max,
    "Greater": _decided,
    "GreaterOrEqual": _decided,
    "Gather": _gathered,
    "ArrayFeatureExtractor": _gathered,
}
