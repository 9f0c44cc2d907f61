"""What skl2onnx 1.20 writes wrongly or not at all beside trees: written here, or refused by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from paritygate.converter.errors import UnsupportedOperator
from paritygate.converter.exporters._sklearn.answers import as_labels
from paritygate.converter.exporters._sklearn.trees import OwnConverters, hand_over
from paritygate.converter.exporters._trees.builder import GraphBuilder
from paritygate.converter.types import Array

_WRONG: dict[str, tuple[Callable[[Any], bool], str]] = {
    "TunedThresholdClassifierCV": (
        lambda part: True,
        "skl2onnx leaves out its threshold. Export its estimator_, and apply best_threshold_ to its answers.",
    ),
    "CalibratedClassifierCV": (
        lambda part: part.method == "isotonic",
        "skl2onnx takes the nearest step of an isotonic calibration, not what lies between. Use method='sigmoid'.",
    ),
    "KNNImputer": (
        lambda part: part.add_indicator,
        "skl2onnx leaves out the columns of add_indicator. Use SimpleImputer.",
    ),
    **dict.fromkeys(
        ("RadiusNeighborsRegressor", "RadiusNeighborsClassifier"),
        (
            lambda part: True,
            "skl2onnx reads neighbours that are not there where one sample has fewer than another. Use "
            "KNeighborsRegressor or KNeighborsClassifier.",
        ),
    ),
    "GaussianProcessClassifier": (
        lambda part: True,
        "it needs the operator Solve of com.microsoft, which onnxruntime does not have.",
    ),
}
"""By class: when its conversion is known to be wrong, and what to say."""


def refuse_wrong(path: str, part: Any) -> None:
    """Refuse an estimator whose conversion is known to compute something else.

    Raises:
        UnsupportedOperator: If it is one.
    """
    name = type(part).__name__
    if type(part).__module__.partition(".")[0] != "sklearn":
        return
    is_wrong, reason = _WRONG.get(name, (lambda part: False, ""))
    if is_wrong(part):
        raise UnsupportedOperator(
            f"{name} in {path} has no ONNX form as it is set: {reason}", operator=name, module=path
        )


def mended_converters() -> OwnConverters:
    """For imputers, binarizers, discriminants and classifiers trained by gradient descent."""
    from sklearn.discriminant_analysis import LinearDiscriminantAnalysis, QuadraticDiscriminantAnalysis
    from sklearn.impute import SimpleImputer
    from sklearn.linear_model import SGDClassifier
    from sklearn.preprocessing import Binarizer

    own = {
        SimpleImputer: _impute,
        Binarizer: _binarize,
        QuadraticDiscriminantAnalysis: _discriminate,
        LinearDiscriminantAnalysis: _score_linearly,
        SGDClassifier: _score_linearly,
    }
    return OwnConverters(
        own,
        {SimpleImputer: _declare_imputed, QuadraticDiscriminantAnalysis: _declare_discriminated},
        {},
    )


# --- quadratic discriminants --------------------------------------------------------------------------------


def _declare_discriminated(operator: Any) -> None:
    from skl2onnx.common._registration import get_shape_calculator

    get_shape_calculator("SklearnQuadraticDiscriminantAnalysis")(operator)
    label = operator.outputs[0].type
    label.shape = label.shape[:1]


def _discriminate(scope: Any, operator: Any, container: Any) -> None:
    """As skl2onnx does, its labels as [batch] and not as [1, batch]."""
    from skl2onnx.common._registration import get_converter

    get_converter("SklearnQuadraticDiscriminantAnalysis")(scope, operator, container)
    label = operator.outputs[0].full_name
    wide = scope.get_unique_variable_name("label_of_one_row")
    for node in container.nodes:
        node.output[:] = [wide if name == label else name for name in node.output]
    graph = GraphBuilder()
    flat = graph.add("Reshape", wide, graph.constant(np.array([-1], np.int64)))
    hand_over(graph, scope, container, {wide: wide, flat: label})


# --- linear classifiers -------------------------------------------------------------------------------------


def _score_linearly(scope: Any, operator: Any, container: Any) -> None:
    """Labels from the scores, as scikit-learn takes them: shares of large scores are all 1 in float32.

    For two classes skl2onnx gives a linear discriminant the shares of twice its score.
    """
    from skl2onnx.common._registration import get_converter

    model = operator.raw_operator
    loss = getattr(model, "loss", "log_loss" if model.coef_.shape[0] == 1 else "")
    if loss not in ("log_loss", "modified_huber"):
        get_converter(operator.type)(scope, operator, container)
        return
    graph = GraphBuilder()
    kind = np.float64 if _is_wide(operator) else np.float32
    names = [value.full_name for value in operator.inputs]
    parts = [graph.cast(name, kind) for name in names]
    given = parts[0] if len(parts) == 1 else graph.add("Concat", *parts, axis=1)
    weights, intercept = model.coef_.T.astype(kind), model.intercept_.astype(kind)
    scores = graph.add("Add", graph.add("MatMul", given, graph.constant(weights)), graph.constant(intercept))
    if model.coef_.shape[0] == 1:
        over = graph.add("Greater", scores, graph.constant(kind(0)))
        index = graph.column(graph.cast(over, np.int64))
    else:
        index = graph.add("ArgMax", scores, axis=1, keepdims=0)
    classes = model.classes_
    classes = classes if classes.dtype.kind in "OU" else as_labels(classes)
    label = graph.add("Identity", graph.add("Gather", graph.constant(classes), index))
    shares = graph.add("Identity", _shares(graph, scores, loss, model.coef_.shape[0], kind))
    told = {label: operator.outputs[0].full_name, shares: operator.outputs[1].full_name}
    hand_over(graph, scope, container, {name: name for name in names} | told)


def _shares(graph: GraphBuilder, scores: str, loss: str, count: int, kind: type) -> str:
    """Shares of two classes add up to 1 by themselves, those of more are divided by their sum."""
    one, half = graph.constant(kind(1)), graph.constant(kind(0.5))
    if loss == "log_loss":
        logarithms = graph.add("Neg", graph.add("Softplus", graph.add("Neg", scores)))
        if count > 1:
            return graph.add("Softmax", logarithms, axis=1)
        second = graph.add("Exp", logarithms)
        return graph.add("Concat", graph.add("Sub", one, second), second, axis=1)
    within = graph.add("Clip", scores, graph.constant(kind(-1)), one)
    raised = graph.add("Mul", graph.add("Add", within, one), half)
    if count == 1:
        return graph.add("Concat", graph.add("Sub", one, raised), raised, axis=1)
    axis = graph.constant(np.array([1], np.int64))
    total = graph.add("ReduceSum", raised, axis, keepdims=1)
    nothing = graph.add("Equal", total, graph.constant(kind(0)))
    # Where no class has a share, scikit-learn gives all the same.
    raised = graph.add("Where", nothing, one, raised)
    total = graph.add("Where", nothing, graph.constant(kind(count)), total)
    return graph.add("Div", raised, total)


# --- binarizers ---------------------------------------------------------------------------------------------


def _binarize(scope: Any, operator: Any, container: Any) -> None:
    """Above the threshold is 1; of float64 skl2onnx makes 1 at the threshold too."""
    from skl2onnx.common.data_types import guess_proto_type

    graph = GraphBuilder()
    names = [value.full_name for value in operator.inputs]
    parts = [graph.cast(name, np.float64) for name in names]
    given = parts[0] if len(parts) == 1 else graph.add("Concat", *parts, axis=1)
    over = graph.add("Greater", given, graph.constant(np.float64(operator.raw_operator.threshold)))
    result = graph.add("Cast", over, to=guess_proto_type(operator.outputs[0].type))
    hand_over(graph, scope, container, {n: n for n in names} | {result: operator.outputs[0].full_name})


# --- imputers -----------------------------------------------------------------------------------------------


def _declare_imputed(operator: Any) -> None:
    count = operator.inputs[0].type.shape[0] if operator.inputs[0].type.shape else None
    imputer = operator.raw_operator
    width = _kept(imputer).size + _indicated(imputer).size
    same = _passes(operator) or _names_texts(operator)
    kind = type(operator.inputs[0].type) if same else _float_type(operator)
    operator.outputs[0].type = kind([count, width])


def _impute(scope: Any, operator: Any, container: Any) -> None:
    """Fill what is missing, and say where, as scikit-learn does; a text or a whole number is never missing."""
    if _names_texts(operator):
        from skl2onnx.common._registration import get_converter

        get_converter("SklearnSimpleImputer")(scope, operator, container)
        return
    imputer, graph = operator.raw_operator, GraphBuilder()
    if _holds_texts(operator) and imputer.add_indicator:
        raise UnsupportedOperator(
            "SimpleImputer has no ONNX form for texts with add_indicator: a text in ONNX is never missing.",
            operator="SimpleImputer",
        )
    names = [value.full_name for value in operator.inputs]
    given = names[0] if len(names) == 1 else graph.add("Concat", *names, axis=1)
    passed = _passes(operator)
    filled = _columns(graph, given, _kept(imputer)) if passed else _filled(graph, given, operator)
    # One operator more, so that the result has a name of its own even where nothing is to be done.
    result = graph.add("Identity", filled)
    hand_over(graph, scope, container, {n: n for n in names} | {result: operator.outputs[0].full_name})


def _filled(graph: GraphBuilder, given: str, operator: Any) -> str:
    imputer = operator.raw_operator
    kind = np.float64 if _is_wide(operator) else np.float32
    missing = _missing(graph, given, imputer, kind, whole=_holds_whole(operator))
    kept = _kept(imputer)
    values = _columns(graph, graph.cast(given, kind), kept)
    fills = graph.constant(np.asarray(imputer.statistics_, np.float64)[kept].astype(kind)[None])
    filled = graph.add("Where", _columns(graph, missing, kept), fills, values)
    if not imputer.add_indicator:
        return filled
    told = graph.cast(_columns(graph, missing, _indicated(imputer)), kind)
    return graph.add("Concat", filled, told, axis=1)


def _missing(graph: GraphBuilder, given: str, imputer: Any, kind: type, *, whole: bool) -> str:
    """bool[batch, feature]."""
    mark = imputer.missing_values
    if not _is_gap(mark):
        form: Array = np.asarray(mark, np.int64 if whole and float(mark).is_integer() else kind)
        if float(form) == float(mark):
            return graph.add("Equal", given if whole else graph.cast(given, kind), graph.constant(form))
        # float32 has no such number, so no sample holds it.
        return graph.add("And", graph.add("IsNaN", graph.cast(given, kind)), graph.constant(np.False_))
    return graph.add("IsNaN", graph.cast(given, kind))


def _columns(graph: GraphBuilder, value: str, places: Array) -> str:
    return graph.add("Gather", value, graph.constant(places.astype(np.int64)), axis=1)


def _kept(imputer: Any) -> Array:
    """Places of the columns that are left: those of which nothing was known are dropped, unless asked for."""
    statistics = np.asarray(imputer.statistics_, dtype=object)
    known = np.array([not _is_gap(value) for value in statistics.tolist()], np.bool_)
    return np.flatnonzero(known | bool(imputer.keep_empty_features))


def _indicated(imputer: Any) -> Array:
    return np.asarray(imputer.indicator_.features_ if imputer.add_indicator else (), np.int64)


def _is_gap(value: Any) -> bool:
    """Whether a mark stands for what is not there: None, NaN, pandas.NA."""
    return value is None or type(value).__name__ == "NAType" or bool(value != value)


def _holds_texts(operator: Any) -> bool:
    from skl2onnx.common.data_types import StringTensorType

    return any(isinstance(value.type, StringTensorType) for value in operator.inputs)


def _holds_whole(operator: Any) -> bool:
    from skl2onnx.common.data_types import Int64TensorType

    return all(isinstance(value.type, Int64TensorType) for value in operator.inputs)


def _names_texts(operator: Any) -> bool:
    """Whether a text of its own stands for what is missing, which skl2onnx writes as it should."""
    return _holds_texts(operator) and isinstance(operator.raw_operator.missing_values, str)


def _passes(operator: Any) -> bool:
    """Whether nothing can be missing."""
    imputer = operator.raw_operator
    return _holds_texts(operator) or (
        _holds_whole(operator) and _is_gap(imputer.missing_values) and not imputer.add_indicator
    )


def _is_wide(operator: Any) -> bool:
    from skl2onnx.common.data_types import DoubleTensorType

    return any(isinstance(value.type, DoubleTensorType) for value in operator.inputs)


def _float_type(operator: Any) -> Any:
    from skl2onnx.common.data_types import DoubleTensorType, FloatTensorType

    return DoubleTensorType if _is_wide(operator) else FloatTensorType
