"""scikit-learn's own trees, and boosters inside pipelines, as converters that skl2onnx calls.

skl2onnx keeps leaves as float32 shares of a forest, so that classes with equal votes come out unequal and labels
flip; of histogram boosting it drops the categories and the link of the Poisson and gamma losses, and gradient
boosting with init='zero' becomes what no runtime loads (1.20). Written from the trees themselves, sums are
float64, votes are whole, and no threshold is rounded.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from paritygate.converter.errors import UnsupportedOperator
from paritygate.converter.exporters._sklearn.answers import as_labels
from paritygate.converter.exporters._trees.builder import GraphBuilder
from paritygate.converter.exporters._trees.emit import ML_DOMAIN, ML_OPSET
from paritygate.converter.exporters._trees.ensemble import Answer, Ensemble, Preparation, emit
from paritygate.converter.exporters._trees.forest import LEAF, Forest, Tree, check_trees
from paritygate.converter.exporters._trees.links import Exponential, Identity, Link, Mean, Sigmoid, Softmax
from paritygate.converter.types import Array, DType

_FORESTS = ("RandomForestClassifier", "RandomForestRegressor", "ExtraTreesClassifier", "ExtraTreesRegressor")
_TREES = ("DecisionTreeClassifier", "DecisionTreeRegressor")
_HISTOGRAMS = ("HistGradientBoostingClassifier", "HistGradientBoostingRegressor")
_BOOSTINGS = ("GradientBoostingClassifier", "GradientBoostingRegressor")
_LINKS: dict[str, Callable[[], Link]] = {
    "IdentityLink": Identity, "LogLink": Exponential, "LogitLink": Sigmoid, "MultinomialLogit": Softmax,
    "HalfLogitLink": lambda: Sigmoid(2.0),
}  # fmt: skip


_SPARSE_FED: ContextVar[frozenset[int]] = ContextVar("sparse_fed", default=frozenset())


@contextmanager
def sparse_fed(estimators: Iterable[Any]) -> Iterator[None]:
    """Say, during one conversion, which estimators are given sparse matrices."""
    token = _SPARSE_FED.set(frozenset(id(estimator) for estimator in estimators))
    try:
        yield
    finally:
        _SPARSE_FED.reset(token)


def ensemble_of(estimator: Any) -> Ensemble | None:
    """An estimator of trees in neutral words; None for any other, and for several targets of classes."""
    name, package = type(estimator).__name__, type(estimator).__module__.partition(".")[0]
    if package == "sklearn" and name in (*_FORESTS, *_TREES):
        return None if isinstance(getattr(estimator, "classes_", None), list) else _forest(estimator)
    if package == "sklearn" and name in _HISTOGRAMS:
        return _histogram(estimator)
    if package == "sklearn" and name in _BOOSTINGS:
        return _boosting(estimator)
    if package == "xgboost":
        from paritygate.converter.exporters.xgboost import ensemble_of_estimator as of_xgboost

        ensemble = of_xgboost(estimator)
        if id(estimator) not in _SPARSE_FED.get():
            return ensemble
        # What a sparse matrix does not hold is missing to XGBoost, and those are its zeros.
        return replace(ensemble, preparation=replace(ensemble.preparation, missing=0.0))
    if package == "lightgbm":
        from paritygate.converter.exporters.lightgbm import ensemble_of_estimator as of_lightgbm

        return of_lightgbm(estimator)
    return None


# --- forests ------------------------------------------------------------------------------------------------


def _forest(estimator: Any) -> Ensemble:
    members = list(getattr(estimator, "estimators_", [estimator]))
    trees = tuple(_tree(member.tree_) for member in members)
    outputs = trees[0].values.shape[1]
    check_trees(trees, int(estimator.n_features_in_), outputs)
    forest = Forest(trees, int(estimator.n_features_in_), outputs, np.zeros(outputs), strict=False)
    link: Link = Mean(len(members)) if len(members) > 1 else Identity()
    if not hasattr(estimator, "classes_"):
        return Ensemble(forest, Preparation(), link, Answer("value", flat=False))
    return Ensemble(forest, Preparation(), link, Answer("classes", classes=_classes(estimator)))


def _classes(estimator: Any) -> Array:
    classes = np.asarray(estimator.classes_)
    return classes.astype(str).astype(object) if classes.dtype.kind in "OUS" else as_labels(classes)


def _tree(tree: Any) -> Tree:
    split = tree.children_left != -1
    values = np.asarray(tree.value, np.float64)
    # [node, target, class]: one of the two is 1 in every estimator that comes here.
    values = values[:, 0, :] if values.shape[1] == 1 else values[:, :, 0]
    return Tree(
        feature=np.where(split, tree.feature, LEAF).astype(np.int64),
        threshold=np.where(split, tree.threshold, 0.0),
        yes=np.where(split, tree.children_left, 0).astype(np.int64),
        no=np.where(split, tree.children_right, 0).astype(np.int64),
        missing_is_yes=split & (np.asarray(tree.missing_go_to_left) != 0),
        values=np.where(split[:, None], 0.0, values),
    )


# --- boosting -----------------------------------------------------------------------------------------------


def _boosting(estimator: Any) -> Ensemble:
    name, width = type(estimator).__name__, int(estimator.n_features_in_)
    start = estimator.init_
    if not isinstance(start, str) and type(start).__name__ not in ("DummyClassifier", "DummyRegressor"):
        raise UnsupportedOperator(
            f"{name} begins with the answers of a {type(start).__name__} (init=) and has no ONNX form then. "
            "Fit it with init=None or init='zero'.",
            operator=name,
        )
    rate, outputs = float(estimator.learning_rate), estimator.estimators_.shape[1]
    trees = tuple(
        _scaled(_tree(member.tree_), rate, target)
        for entry in estimator.estimators_
        for target, member in enumerate(entry)
    )
    check_trees(trees, width, outputs)
    base = np.asarray(estimator._raw_predict_init(np.zeros((1, width), np.float32)), np.float64)[0]
    forest = Forest(trees, width, outputs, base, strict=False)
    if not hasattr(estimator, "classes_"):
        return Ensemble(forest, Preparation(), Identity(), Answer("value", flat=False))
    answer = Answer(
        "classes", classes=_classes(estimator), complement=outputs == 1, second_if="GreaterOrEqual"
    )
    return Ensemble(forest, Preparation(), _LINKS[type(estimator._loss.link).__name__](), answer)


def _scaled(tree: Tree, rate: float, target: int) -> Tree:
    return replace(tree, values=rate * tree.values, target=target)


# --- histogram boosting -------------------------------------------------------------------------------------


def _histogram(estimator: Any) -> Ensemble:
    columns, known = _columns(estimator)
    rounds = estimator._predictors
    outputs = len(rounds[0])
    trees = tuple(
        _histogram_tree(predictor, target, columns, known)
        for entry in rounds
        for target, predictor in enumerate(entry)
    )
    width = int(estimator.n_features_in_)
    check_trees(trees, width, outputs)
    base = np.asarray(estimator._baseline_prediction, np.float64).reshape(-1)
    forest = Forest(trees, width, outputs, base, strict=False)
    link = _LINKS[type(estimator._loss.link).__name__]()
    answer = Answer("value", flat=False)
    if hasattr(estimator, "classes_"):
        answer = Answer("classes", classes=_classes(estimator), complement=outputs == 1, second_if="Greater")
    return Ensemble(forest, Preparation(), link, answer, reads_float64=True)


def _columns(estimator: Any) -> tuple[Array, dict[int, Array]]:
    """Place of each feature of the trees among the user's, and the values of those that are categories."""
    if estimator._preprocessor is None:
        return np.arange(estimator.n_features_in_), {}
    mask = np.asarray(estimator._preprocessor.transformers_[0][2])
    order = np.concatenate([np.flatnonzero(mask), np.flatnonzero(~mask)])
    encoder = estimator._preprocessor.named_transformers_["encoder"]
    values = {place: np.asarray(found) for place, found in enumerate(encoder.categories_)}
    if any(found.dtype.kind not in "fiub" for found in values.values()):
        raise UnsupportedOperator(
            f"{type(estimator).__name__} was fitted on categories that are texts, for which its trees have no "
            "ONNX form. Put an OrdinalEncoder before it in a pipeline.",
            operator=type(estimator).__name__,
        )
    return order, {place: found.astype(np.float64) for place, found in values.items()}


def _histogram_tree(predictor: Any, target: int, columns: Array, known: Mapping[int, Array]) -> Tree:
    nodes = predictor.nodes
    split = nodes["is_leaf"] == 0
    left, right = nodes["left"].astype(np.int64), nodes["right"].astype(np.int64)
    missing_left = nodes["missing_go_to_left"] != 0
    by_category = split & (nodes["is_categorical"] != 0)
    sets: dict[int, tuple[float, ...]] = {}
    swapped = np.zeros(len(nodes), np.bool_)
    for node in np.flatnonzero(by_category).tolist():
        values = known[int(nodes["feature_idx"][node])]
        words = predictor.raw_left_cat_bitsets[nodes["bitset_idx"][node]]
        goes_left = np.array([bool(int(words[k // 32]) >> (k % 32) & 1) for k in range(values.size)], bool)
        # What is unknown goes where a missing value goes, so the set is that of the other side.
        swapped[node] = missing_left[node]
        members = values[(goes_left != swapped[node]) & ~np.isnan(values)]
        if members.size:
            sets[node] = tuple(members.tolist())
    return Tree(
        feature=np.where(split, columns[nodes["feature_idx"]], LEAF).astype(np.int64),
        threshold=np.where(by_category, -np.inf, np.where(split, nodes["num_threshold"], 0.0)),
        yes=np.where(split, np.where(swapped, right, left), 0),
        no=np.where(split, np.where(swapped, left, right), 0),
        missing_is_yes=split & missing_left & ~by_category,
        values=np.where(split, 0.0, nodes["value"])[:, None],
        target=target,
        categories=sets,
    )


# --- skl2onnx -----------------------------------------------------------------------------------------------


@contextmanager
def known_to_skl2onnx(own: OwnConverters) -> Iterator[None]:
    """Let estimators around a booster (calibration, voting) find it in skl2onnx's tables during one call."""
    from skl2onnx._supported_operators import sklearn_operator_name_map as names
    from skl2onnx.common._registration import RegisteredConverter, _converter_pool, _shape_calculator_pool

    added = {kind: f"Own{kind.__name__}" for kind in own.parsers if kind not in names}
    names.update(added)
    for alias in added.values():
        _converter_pool[alias] = RegisteredConverter(_convert, {})
        _shape_calculator_pool[alias] = _declare
    try:
        yield
    finally:
        for kind, alias in added.items():
            for table, key in ((names, kind), (_converter_pool, alias), (_shape_calculator_pool, alias)):
                table.pop(key, None)


@dataclass(frozen=True)
class OwnConverters:
    """What skl2onnx is told: functions by class.

    Attributes:
        conversions: Write an operator.
        shapes: Declare its outputs.
        parsers: Declare outputs of classes that skl2onnx does not know at all.
    """

    conversions: dict[type, Any]
    shapes: dict[type, Any]
    parsers: dict[type, Any]


def own_converters() -> OwnConverters:
    """For scikit-learn's trees, and for the boosters whose packages are at work in this process."""
    import sklearn.ensemble
    import sklearn.tree

    own = [getattr(sklearn.ensemble, name) for name in (*_FORESTS, *_HISTOGRAMS, *_BOOSTINGS)]
    own += [getattr(sklearn.tree, name) for name in _TREES]
    foreign = [
        kind
        for package, base in (("xgboost", "XGBModel"), ("lightgbm", "LGBMModel"))
        if package in sys.modules and hasattr(sys.modules[package], base)
        for kind in _family(getattr(sys.modules[package], base))
    ]
    every = [*own, *foreign]
    return OwnConverters(
        dict.fromkeys(every, _convert), dict.fromkeys(every, _declare), dict.fromkeys(foreign, _parse)
    )


def _family(kind: type) -> list[type]:
    children: list[type] = kind.__subclasses__()
    return [kind, *(member for child in children for member in _family(child))]


def _parse(scope: Any, model: Any, inputs: Any, custom_parsers: Any = None) -> Any:
    """Outputs of a class that skl2onnx has never heard of: a label and shares, or a value."""
    from skl2onnx.common.data_types import FloatTensorType, Int64TensorType

    operator = scope.declare_local_operator(None, model)
    operator.inputs = inputs
    names = ("label", "probabilities") if hasattr(model, "predict_proba") else ("variable",)
    for name in names:
        kind = Int64TensorType() if name == "label" else FloatTensorType()
        operator.outputs.append(scope.declare_local_variable(name, kind))
    return operator.outputs


def _declare(operator: Any) -> None:
    from skl2onnx.common.data_types import (
        DoubleTensorType,
        FloatTensorType,
        Int64TensorType,
        StringTensorType,
    )

    ensemble = _of_operator(operator)
    wide = any(isinstance(value.type, DoubleTensorType) for value in operator.inputs)
    floats = DoubleTensorType if wide else FloatTensorType
    count = operator.inputs[0].type.shape[0] if operator.inputs[0].type.shape else None
    outputs = ensemble.num_columns
    if ensemble.answer.kind == "value":
        operator.outputs[0].type = floats([count, outputs])
        return
    texts = ensemble.answer.classes.dtype == object
    operator.outputs[0].type = (StringTensorType if texts else Int64TensorType)([count])
    operator.outputs[1].type = floats([count, outputs])


def _of_operator(operator: Any) -> Ensemble:
    ensemble = ensemble_of(operator.raw_operator)
    if ensemble is None:
        name = type(operator.raw_operator).__name__
        raise UnsupportedOperator(f"{name} has no ONNX form inside a pipeline.", operator=name)
    return replace(ensemble, answer=replace(ensemble.answer, flat=False))


def _convert(scope: Any, operator: Any, container: Any) -> None:
    from skl2onnx.common.data_types import DoubleTensorType

    ensemble = _of_operator(operator)
    graph = GraphBuilder()
    wide = any(isinstance(value.type, DoubleTensorType) for value in operator.inputs)
    dtype = DType.FLOAT64 if wide else DType.FLOAT32
    parts = [graph.cast(value.full_name, dtype.numpy) for value in operator.inputs]
    given = parts[0] if len(parts) == 1 else graph.add("Concat", *parts, axis=1)
    results = [name for name, _, _ in emit(graph, ensemble, given, dtype)]
    if wide:
        results[-1] = graph.cast(results[-1], np.float64)
    given_names = {value.full_name: value.full_name for value in operator.inputs}
    told = {graph.add("Identity", n): v.full_name for n, v in zip(results, operator.outputs, strict=True)}
    hand_over(graph, scope, container, given_names | told)


def hand_over(graph: GraphBuilder, scope: Any, container: Any, names: Mapping[str, str]) -> None:
    """Give a small graph's parts to skl2onnx.

    Args:
        graph: What is given.
        scope: skl2onnx's names.
        container: skl2onnx's graph; grows.
        names: What inputs and outputs of the graph are called there; all else gets names that are free.
    """
    renamed = dict(names)

    def fresh(name: str) -> str:
        return renamed.setdefault(name, scope.get_unique_variable_name(f"own_{name}"))

    for tensor in graph.constants:
        tensor.name = fresh(tensor.name)
        container.initializers.append(tensor)
    for node in graph.nodes:
        node.name = scope.get_unique_operator_name(f"own_{node.name}")
        node.input[:] = [fresh(name) for name in node.input]
        node.output[:] = [fresh(name) for name in node.output]
        container.nodes.append(node)
        version = ML_OPSET if node.domain == ML_DOMAIN else container.target_opset_any_domain("")
        container.node_domain_version_pair_sets.add((node.domain, version))
