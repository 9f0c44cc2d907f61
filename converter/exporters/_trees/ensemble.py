"""A boosted model in the words of neither framework: preparation, sums, link, outputs; and its ONNX graph."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import onnx

from paritygate.converter.exporters._trees.builder import GraphBuilder
from paritygate.converter.exporters._trees.emit import ensemble_node
from paritygate.converter.exporters._trees.forest import Forest
from paritygate.converter.exporters._trees.links import Link
from paritygate.converter.types import Array, DType, TensorSpec

LABEL, PROBABILITIES, PREDICTION, SCORES = "label", "probabilities", "prediction", "scores"


@dataclass(frozen=True)
class Preparation:
    """What happens to a feature before it is compared.

    Attributes:
        missing: A number that means missing, beside NaN; None for NaN alone.
        zero_is_missing: Features in which a value within 1e-35 of zero means missing.
        floored: Features whose categories are the whole number below the value (XGBoost; below 0 is none).
        truncated: Features whose categories are the value without its fraction (LightGBM).
    """

    missing: float | None = None
    zero_is_missing: tuple[int, ...] = ()
    floored: tuple[int, ...] = ()
    truncated: tuple[int, ...] = ()


@dataclass(frozen=True)
class Linear:
    """A linear booster: sums of weighted features; a missing value adds nothing.

    Attributes:
        weights: float64[feature, output].
        base: float64[output].
    """

    weights: Array
    base: Array


@dataclass(frozen=True)
class Answer:
    """What the source gives.

    Attributes:
        kind: `value` (what the link gives), `classes` (a label and probabilities of classes that exclude each
            other) or `labels` (several yes-or-no labels at once and their probabilities).
        name: Name of a `value` output.
        flat: Whether one value a sample comes as [batch] and not as [batch, 1].
        classes: The labels that stand for the columns of `classes`: whole numbers or texts.
        complement: Whether the link gives the share of the second of two classes alone.
    """

    kind: str
    name: str = PREDICTION
    flat: bool = True
    classes: Array = field(default_factory=lambda: np.zeros(0, np.int64))
    complement: bool = False

    @property
    def names(self) -> tuple[str, ...]:
        """The outputs in order."""
        return (self.name,) if self.kind == "value" else (LABEL, PROBABILITIES)


@dataclass(frozen=True)
class Ensemble:
    """All that a graph needs.

    Attributes:
        sums: The forest or the linear model.
        preparation: What happens before.
        link: What happens after.
        answer: The outputs.
    """

    sums: Forest | Linear
    preparation: Preparation
    link: Link
    answer: Answer


def build_graph(ensemble: Ensemble, given: TensorSpec, opset: int) -> onnx.ModelProto:
    """The ONNX model of an ensemble.

    Args:
        ensemble: The model.
        given: Its one input, float32[batch, feature].
        opset: Version of the default operator set.
    """
    graph = GraphBuilder()
    prepared = _prepare(graph, given, ensemble.preparation)
    sums = (
        graph.append(ensemble_node(ensemble.sums, graph.cast(prepared, np.float64), "sums"))
        if isinstance(ensemble.sums, Forest)
        else _linear(graph, prepared, ensemble.sums)
    )
    outputs = _answers(graph, ensemble.link.emit(graph, sums), ensemble.answer)
    return graph.model([given], outputs, opset)


def _prepare(graph: GraphBuilder, given: TensorSpec, preparation: Preparation) -> str:
    value, width = given.name, int(given.shape[1])
    nan = graph.constant(np.float32(np.nan)) if _has_missing(preparation) else ""
    if preparation.missing is not None:
        is_missing = graph.add("Equal", value, graph.constant(np.float32(preparation.missing)))
        value = graph.add("Where", is_missing, nan, value)
    if preparation.zero_is_missing:
        small = graph.add("LessOrEqual", graph.add("Abs", value), graph.constant(np.float32(1e-35)))
        asked = graph.add("And", small, _mask(graph, preparation.zero_is_missing, width))
        value = graph.add("Where", asked, nan, value)
    if preparation.floored:
        value = graph.add("Where", _mask(graph, preparation.floored, width), graph.add("Floor", value), value)
    if preparation.truncated:
        whole = graph.add("Mul", graph.add("Sign", value), graph.add("Floor", graph.add("Abs", value)))
        value = graph.add("Where", _mask(graph, preparation.truncated, width), whole, value)
    return value


def _has_missing(preparation: Preparation) -> bool:
    return preparation.missing is not None or bool(preparation.zero_is_missing)


def _mask(graph: GraphBuilder, features: Sequence[int], width: int) -> str:
    mask = np.zeros((1, width), np.bool_)
    mask[0, list(features)] = True
    return graph.constant(mask)


def _linear(graph: GraphBuilder, value: str, linear: Linear) -> str:
    known = graph.add("Where", graph.add("IsNaN", value), graph.constant(np.float32(0)), value)
    product = graph.add("MatMul", known, graph.constant(linear.weights.astype(np.float32)))
    return graph.add("Add", product, graph.constant(linear.base.astype(np.float32)))


def _answers(graph: GraphBuilder, value: str, answer: Answer) -> list[tuple[str, DType, int]]:
    if answer.kind == "value":
        return [(graph.column(value), DType.FLOAT32, 1) if answer.flat else (value, DType.FLOAT32, 2)]
    if answer.kind == "labels":
        over = graph.add("Greater", value, graph.constant(np.float32(0.5)))
        return [(graph.cast(over, np.int64), DType.INT64, 2), (value, DType.FLOAT32, 2)]
    return _classes(graph, value, answer)


def _classes(graph: GraphBuilder, value: str, answer: Answer) -> list[tuple[str, DType, int]]:
    """The likeliest class, the first of equal ones, and the shares of all."""
    classes = answer.classes
    if answer.complement:
        value = graph.add("Concat", graph.add("Sub", graph.constant(np.float32(1)), value), value, axis=1)
    index = graph.add("ArgMax", value, axis=1, keepdims=0)
    label, dtype = index, DType.INT64
    if classes.dtype.kind in "OU":
        label, dtype = graph.add("Gather", graph.constant(classes), index), DType.STRING
    elif not np.array_equal(classes, np.arange(classes.size)):
        label = graph.add("Gather", graph.constant(classes.astype(np.int64)), index)
    return [(label, dtype, 1), (value, DType.FLOAT32, 2)]
