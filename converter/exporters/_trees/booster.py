"""The open source that both exporters of boosters share: one float32 matrix goes in, an `Ensemble` is written."""

from __future__ import annotations

import abc
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from paritygate.converter.errors import ExportError
from paritygate.converter.exporters._trees.edges import asked_note, edge_rows, is_clear
from paritygate.converter.exporters._trees.ensemble import PROBABILITIES, Ensemble, build_graph
from paritygate.converter.exporters._trees.forest import Forest
from paritygate.converter.exporters.base import ConversionRequest, SourceInput, SourceModel, Weights
from paritygate.converter.exporters.binding import declared_inputs
from paritygate.converter.types import Array, DType, Feeds

MATRIX_INPUT = "x"
_NAMES_SHOWN = 40
_LARGEST_GRAPH_BYTES = 2**31 - 2**20


class BoosterModel(SourceModel):
    """A booster that is open for export; subclasses ask it.

    Attributes:
        ensemble: The same model in neutral words.
    """

    dims_are_declared = True
    narrows_floats = True

    def __init__(
        self,
        ensemble: Ensemble,
        given: SourceInput,
        *,
        example: Feeds | None,
        weights: Weights,
        notes: list[str],
        missing: Sequence[float],
    ) -> None:
        self.ensemble = ensemble
        self.inputs = (given,)
        self.example = example
        self.weights = weights
        self.notes: list[str] = notes
        self._missing = tuple(missing)

    @abc.abstractmethod
    def ask(self, matrix: Array) -> dict[str, Array]:
        """The framework's own answers to float[batch, feature], by output."""

    def run(self, feeds: Feeds) -> dict[str, Array]:
        """What the framework answers."""
        return self.ask(np.ascontiguousarray(feeds[self.inputs[0].name]))

    def convert(self, request: ConversionRequest) -> None:
        """Write the ensemble; weights stay in the file, since operators on trees keep them as attributes."""
        model = build_graph(self.ensemble, request.inputs[0], request.opset)
        size = model.ByteSize()
        if size > _LARGEST_GRAPH_BYTES:
            raise ExportError(
                f"the trees take {size / 2**30:.1f} GiB, and an ONNX file holds trees up to 2 GiB. "
                "Export fewer rounds or shallower trees."
            )
        request.path.write_bytes(model.SerializeToString(deterministic=True))

    def edges(self) -> Mapping[str, Feeds]:
        """Samples at the decisions of the forest."""
        if not isinstance(self.ensemble.sums, Forest):
            return {}
        kind = self.inputs[0].dtype.numpy.type
        rows = edge_rows(self.ensemble.sums, missing=self._missing, kind=kind)
        note = asked_note(self.ensemble.sums, rows)
        if note is not None and note not in self.notes:
            self.notes.append(note)
        asked = {kind: self._without_ties(matrix) for kind, matrix in rows.items()}
        return {kind: {self.inputs[0].name: matrix} for kind, matrix in asked.items() if matrix.size}

    def _without_ties(self, matrix: Array) -> Array:
        if self.ensemble.answer.kind != "classes":
            return matrix
        return matrix[is_clear(self.ask(matrix)[PROBABILITIES])]


def given_matrix(
    inputs: Any, num_features: int, feature_names: Sequence[str], notes: list[str]
) -> tuple[SourceInput, dict[str, Array] | None]:
    """The one input and the example for it, from whatever the user gave.

    Args:
        inputs: `ExportConfig.inputs`: nothing, words, a matrix, a data frame, or one of them under a name.
        num_features: What the booster takes.
        feature_names: Its own names of the features, or none.
        notes: Grows.

    Raises:
        ExportError: If what was given is no such matrix.
    """
    if feature_names:
        shown = ", ".join(feature_names[:_NAMES_SHOWN])
        more = f", ... ({len(feature_names)} in all)" if len(feature_names) > _NAMES_SHOWN else ""
        notes.append(f"The columns of the input are, in order: {shown}{more}.")
    declared = declared_inputs(inputs)
    if declared is not None:
        floats = (DType.FLOAT32, DType.FLOAT64)
        if len(declared) != 1 or declared[0].dtype not in floats or len(declared[0].shape) != 2:
            raise ExportError(
                f"the declared inputs are {', '.join(map(str, declared))}; a booster takes one matrix, "
                f"such as x:float32[batch,{num_features}]."
            )
        shape = declared[0].shape
        _check_width(shape[1], num_features, feature_names)
        return SourceInput(declared[0].name, declared[0].dtype, (shape[0], num_features)), None
    name, value = _named(inputs)
    if value is None:
        return SourceInput(name, DType.FLOAT32, (None, num_features)), None
    matrix = _as_matrix(value, feature_names, notes)
    _check_width(matrix.shape[1], num_features, feature_names)
    return SourceInput(name, DType.FLOAT32, (None, num_features)), {name: matrix}


def _named(inputs: Any) -> tuple[str, Any]:
    if isinstance(inputs, tuple | list) and len(inputs) == 1 and hasattr(inputs[0], "shape"):
        inputs = inputs[0]
    if isinstance(inputs, Mapping):
        if len(inputs) != 1:
            raise ExportError(
                f"the example has the inputs {list(inputs)}; a booster takes one matrix. Give an array, a data "
                "frame, or a dict with one of them."
            )
        ((name, value),) = inputs.items()
        return str(name), value
    return MATRIX_INPUT, inputs


def _as_matrix(value: Any, feature_names: Sequence[str], notes: list[str]) -> Array:
    if hasattr(value, "columns") and hasattr(value, "to_numpy"):
        value = _in_order(value, feature_names)
    if hasattr(value, "toarray"):
        value = value.toarray()
    array = np.asarray(value)
    if array.ndim != 2 or array.dtype.kind not in "fiub":
        raise ExportError(
            f"the example is {array.dtype}{list(array.shape)}; a booster takes a matrix of numbers, "
            "[samples, features]."
        )
    if array.dtype == np.float64:
        notes.append(
            "The input is float32: the example's float64 was rounded. A value that float32 cannot hold (whole "
            "numbers above 16777216, fine fractions) may be on another side of a threshold than in training. "
            f"Declare it in words (x:float64[batch,{array.shape[1]}]) to keep float64."
        )
    return array.astype(np.float32)


def _in_order(frame: Any, feature_names: Sequence[str]) -> Array:
    columns = [str(name) for name in frame.columns]
    if feature_names and columns != list(feature_names):
        missing = [name for name in feature_names if name not in columns]
        unknown = [name for name in columns if name not in feature_names]
        said = f"missing {missing}, unknown {unknown}" if missing or unknown else "in another order"
        raise ExportError(
            f"the example's columns are not those that the model was trained on: {said}; "
            f"expected {list(feature_names)}."
        )
    return np.stack([_as_numbers(frame[name]) for name in frame.columns], axis=1)


def _as_numbers(column: Any) -> Array:
    """One column of a data frame; categories as the codes that boosters are trained on, a missing one as NaN."""
    if not hasattr(column, "cat"):
        return np.asarray(column, np.float64)
    codes = np.asarray(column.cat.codes, np.float64)
    return np.where(codes < 0, np.nan, codes)


def _check_width(width: int | str, num_features: int, feature_names: Sequence[str]) -> None:
    if width != num_features:
        names = f" ({', '.join(list(feature_names)[:_NAMES_SHOWN])})" if feature_names else ""
        raise ExportError(
            f"the example has {width} features, but the model was trained on {num_features}{names}; give all "
            "of them in that order."
        )
