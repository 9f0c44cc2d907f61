"""Transformers of single features that skl2onnx writes in float32 only, or without their missing values."""

from __future__ import annotations

from typing import Any

import numpy as np

from paritygate.converter.errors import UnsupportedOperator
from paritygate.converter.exporters._sklearn.trees import OwnConverters, hand_over
from paritygate.converter.exporters._trees.builder import GraphBuilder
from paritygate.converter.types import Array


def feature_converters() -> OwnConverters:
    """For bins, powers and polynomials."""
    from sklearn.preprocessing import KBinsDiscretizer, PolynomialFeatures, PowerTransformer

    own = {KBinsDiscretizer: _bin, PowerTransformer: _raise, PolynomialFeatures: _multiply}
    return OwnConverters(own, {}, {})


def _given(graph: GraphBuilder, operator: Any) -> tuple[str, dict[str, str]]:
    """The features as one float64 matrix, and the names that the graph shares with skl2onnx's."""
    names = [value.full_name for value in operator.inputs]
    wide = [graph.cast(name, np.float64) for name in names]
    given = wide[0] if len(wide) == 1 else graph.add("Concat", *wide, axis=1)
    return given, {name: name for name in names}


def _hand_over(
    graph: GraphBuilder, scope: Any, operator: Any, container: Any, result: str, names: dict[str, str]
) -> None:
    from skl2onnx.common.data_types import guess_proto_type

    told = graph.add("Cast", result, to=guess_proto_type(operator.outputs[0].type))
    hand_over(graph, scope, container, names | {told: operator.outputs[0].full_name})


# --- bins ---------------------------------------------------------------------------------------------------


def _bin(scope: Any, operator: Any, container: Any) -> None:
    """The bin is the number of inner edges that are not above the value; skl2onnx rounds the edges to float32."""
    bins = operator.raw_operator
    if bins.encode == "onehot":
        raise UnsupportedOperator(
            "KBinsDiscretizer has no ONNX form for encode='onehot', which gives a sparse matrix. Fit it with "
            "encode='onehot-dense'.",
            operator="KBinsDiscretizer",
        )
    graph = GraphBuilder()
    given, names = _given(graph, operator)
    inner = [np.asarray(edges, np.float64)[1:-1] for edges in bins.bin_edges_]
    longest = max(1, *(edges.size for edges in inner))
    padded: Array = np.full((len(inner), longest), np.inf)
    for row, edges in zip(padded, inner, strict=True):
        row[: edges.size] = edges
    last = graph.constant(np.array([-1], np.int64))
    column = graph.add("Unsqueeze", given, last)
    # An infinite value is above the padding too; it belongs in the last bin that there is.
    passed = graph.cast(graph.add("GreaterOrEqual", column, graph.constant(padded[None])), np.float64)
    counts = graph.add("ReduceSum", passed, last, keepdims=0)
    most = graph.constant(np.array([[edges.size for edges in inner]], np.float64))
    index = graph.add("Min", counts, most)
    if bins.encode == "ordinal":
        _hand_over(graph, scope, operator, container, index, names)
        return
    owners = np.repeat(np.arange(len(inner)), bins.n_bins_)
    numbers = np.concatenate([np.arange(count) for count in bins.n_bins_]).astype(np.float64)
    spread = graph.add("Gather", index, graph.constant(owners.astype(np.int64)), axis=1)
    result = graph.add("Equal", spread, graph.constant(numbers[None]))
    _hand_over(graph, scope, operator, container, result, names)


# --- powers -------------------------------------------------------------------------------------------------


def _raise(scope: Any, operator: Any, container: Any) -> None:
    """Yeo-Johnson or Box-Cox; what is missing stays so, where skl2onnx makes a number of it."""
    power = operator.raw_operator
    graph = GraphBuilder()
    given, names = _given(graph, operator)
    lambdas = np.asarray(power.lambdas_, np.float64)
    if power.method == "box-cox":
        result = _box_cox(graph, given, lambdas)
    else:
        one, zero = graph.constant(np.float64(1)), graph.constant(np.float64(0))
        above = _box_cox(graph, graph.add("Add", graph.add("Max", given, zero), one), lambdas)
        below = _box_cox(graph, graph.add("Sub", one, graph.add("Min", given, zero)), 2 - lambdas)
        is_above = graph.add("GreaterOrEqual", given, zero)
        result = graph.add("Where", is_above, above, graph.add("Neg", below))
        # Comparisons and extremes of runtimes are not at one over NaN.
        result = graph.add("Where", graph.add("IsNaN", given), given, result)
    if power.standardize:
        mean, scale = power._scaler.mean_, power._scaler.scale_
        result = graph.add("Sub", result, graph.constant(np.asarray(mean, np.float64)[None]))
        result = graph.add("Div", result, graph.constant(np.asarray(scale, np.float64)[None]))
    _hand_over(graph, scope, operator, container, result, names)


_NO_POWER = 1e-9
"""Nearer to zero, the logarithm is what is meant: rounding of the power would weigh more than the exponent."""


def _box_cox(graph: GraphBuilder, value: str, lambdas: Array) -> str:
    """(value ** lambda - 1) / lambda, or the logarithm where lambda is nothing; of each feature its own."""
    is_log = np.abs(lambdas) < _NO_POWER
    logarithm = graph.add("Log", value)
    if is_log.all():
        return logarithm
    exponents = np.where(is_log, 1.0, lambdas)
    raised = graph.add("Pow", value, graph.constant(exponents[None]))
    less = graph.add("Sub", raised, graph.constant(np.float64(1)))
    power = graph.add("Div", less, graph.constant(exponents[None]))
    return graph.add("Where", graph.constant(is_log[None]), logarithm, power) if is_log.any() else power


# --- polynomials --------------------------------------------------------------------------------------------


_FLOATS = ("FloatTensorType", "DoubleTensorType")


def _multiply(scope: Any, operator: Any, container: Any) -> None:
    """Every product of features as one gather for each factor; skl2onnx computes them in float32 only."""
    if not all(type(value.type).__name__ in _FLOATS for value in operator.inputs):
        from skl2onnx.common._registration import get_converter

        get_converter(operator.type)(scope, operator, container)
        return
    powers = np.asarray(operator.raw_operator.powers_, np.int64)
    graph = GraphBuilder()
    given, names = _given(graph, operator)
    degree = max(1, int(powers.sum(axis=1).max(initial=1)))
    nothing = powers.shape[1]  # the place of a column of ones behind the features
    factors = np.full((degree, len(powers)), nothing, np.int64)
    for place, exponents in enumerate(powers):
        chosen = np.repeat(np.arange(exponents.size), exponents)
        factors[: chosen.size, place] = chosen
    row = graph.add("Shape", graph.add("Gather", given, graph.constant(np.array([0], np.int64)), axis=1))
    ones = graph.add("Expand", graph.constant(np.ones((1, 1))), row)
    padded = graph.add("Concat", given, ones, axis=1)
    gathered = [graph.add("Gather", padded, graph.constant(places), axis=1) for places in factors]
    result = gathered[0]
    for factor in gathered[1:]:
        result = graph.add("Mul", result, factor)
    _hand_over(graph, scope, operator, container, result, names)
