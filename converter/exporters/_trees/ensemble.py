"""A boosted model in the words of neither framework: preparation, sums, link, outputs; and its ONNX graph."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import onnx

from paritygate.converter.exporters._trees.builder import GraphBuilder
from paritygate.converter.exporters._trees.emit import ensemble_node
from paritygate.converter.exporters._trees.forest import Forest
from paritygate.converter.exporters._trees.links import LargestIndex, Link
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
        second_if: With `complement`, how the sum compares with 0 for the second class to be the label; where the
            share rounds to one half in float32, the sum still tells. Empty: the larger share tells.
    """

    kind: str
    name: str = PREDICTION
    flat: bool = True
    classes: Array = field(default_factory=lambda: np.zeros(0, np.int64))
    complement: bool = False
    second_if: str = ""

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
        reads_float64: Whether a float64 feature is compared as it is; else it is rounded to float32 first.
    """

    sums: Forest | Linear
    preparation: Preparation
    link: Link
    answer: Answer
    reads_float64: bool = False

    @property
    def num_columns(self) -> int:
        """Columns of the last output."""
        if self.answer.kind == "classes":
            return int(self.answer.classes.size)
        sums = self.sums.num_outputs if isinstance(self.sums, Forest) else self.sums.weights.shape[1]
        return 1 if isinstance(self.link, LargestIndex) else int(sums)


def build_graph(ensemble: Ensemble, given: TensorSpec, opset: int) -> onnx.ModelProto:
    """The ONNX model of an ensemble.

    Args:
        ensemble: The model.
        given: Its one input, float[batch, feature].
        opset: Version of the default operator set.
    """
    graph = GraphBuilder()
    outputs = emit(graph, ensemble, given.name, given.dtype)
    return graph.model([given], outputs, opset)


def emit(graph: GraphBuilder, ensemble: Ensemble, given: str, dtype: DType) -> list[tuple[str, DType, int]]:
    """Add an ensemble to a graph; gives name, dtype and rank of each output.

    Args:
        graph: Grows.
        ensemble: The model.
        given: Name of a float[batch, feature] tensor.
        dtype: Its type, float32 or float64.
    """
    if dtype is DType.FLOAT64 and not ensemble.reads_float64:
        given, dtype = graph.cast(given, np.float32), DType.FLOAT32
    features = ensemble.sums.num_features if isinstance(ensemble.sums, Forest) else len(ensemble.sums.weights)
    prepared = _prepare(graph, given, ensemble.preparation, features, dtype.numpy.type)
    if isinstance(ensemble.sums, Forest):
        wide = prepared if dtype is DType.FLOAT64 else graph.cast(prepared, np.float64)
        sums = graph.append(ensemble_node(ensemble.sums, wide, "sums"))
    else:
        narrow = prepared if dtype is DType.FLOAT32 else graph.cast(prepared, np.float32)
        sums = _linear(graph, narrow, ensemble.sums)
    return _answers(graph, ensemble.link.emit(graph, sums), sums, ensemble.answer)


def _prepare(graph: GraphBuilder, value: str, preparation: Preparation, width: int, kind: type) -> str:
    """Every step of the preparation, in the type of the input."""
    nan = graph.constant(kind(np.nan)) if _has_missing(preparation) else ""
    if preparation.missing is not None:
        is_missing = graph.add("Equal", value, graph.constant(kind(preparation.missing)))
        value = graph.add("Where", is_missing, nan, value)
    if preparation.zero_is_missing:
        small = graph.add("LessOrEqual", graph.add("Abs", value), graph.constant(kind(np.float32(1e-35))))
        asked = graph.add("And", small, _mask(graph, preparation.zero_is_missing, width))
        value = graph.add("Where", asked, nan, value)
    if preparation.floored:
        whole = graph.add("Floor", value)
        value = graph.add("Where", _mask(graph, preparation.floored, width), whole, value)
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


def _answers(graph: GraphBuilder, value: str, sums: str, answer: Answer) -> list[tuple[str, DType, int]]:
    if answer.kind == "value":
        return [(graph.column(value), DType.FLOAT32, 1) if answer.flat else (value, DType.FLOAT32, 2)]
    if answer.kind == "labels":
        over = graph.add("Greater", value, graph.constant(np.float32(0.5)))
        return [(graph.cast(over, np.int64), DType.INT64, 2), (value, DType.FLOAT32, 2)]
    return _classes(graph, value, sums, answer)


def _classes(graph: GraphBuilder, value: str, sums: str, answer: Answer) -> list[tuple[str, DType, int]]:
    """The likeliest class, the first of equal ones, and the shares of all."""
    classes = answer.classes
    if answer.complement:
        value = graph.add("Concat", graph.add("Sub", graph.constant(np.float32(1)), value), value, axis=1)
    if answer.complement and answer.second_if:
        over = graph.add(answer.second_if, sums, graph.constant(np.float32(0)))
        index = graph.column(graph.cast(over, np.int64))
    else:
        index = graph.add("ArgMax", value, axis=1, keepdims=0)
    label, dtype = index, DType.INT64
    if classes.dtype.kind in "OU":
        label, dtype = graph.add("Gather", graph.constant(classes), index), DType.STRING
    elif not np.array_equal(classes, np.arange(classes.size)):
        label = graph.add("Gather", graph.constant(classes.astype(np.int64)), index)
    return [(label, dtype, 1), (value, DType.FLOAT32, 2)]
