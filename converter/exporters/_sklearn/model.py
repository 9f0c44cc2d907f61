"""An estimator that is open for export."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx

from paritygate.converter.config import ExportConfig
from paritygate.converter.errors import ExportError
from paritygate.converter.exporters._sklearn.answers import PROBABILITIES, SCORES, as_output, methods, widened
from paritygate.converter.exporters._sklearn.categories import rounded_categories, unknown_category
from paritygate.converter.exporters._sklearn.columns import refuse_other_kinds
from paritygate.converter.exporters._sklearn.constants import check_compared
from paritygate.converter.exporters._sklearn.conversion import (
    ML_OPSET,
    conversion_options,
    explained,
    parts,
    skl_type,
    to_onnx,
)
from paritygate.converter.exporters._sklearn.files import import_module
from paritygate.converter.exporters._sklearn.graph import (
    check_types,
    in_float64,
    keep_outputs,
    narrow_inputs,
    settle_opsets,
    widened_beside_bools,
)
from paritygate.converter.exporters._sklearn.inner_trees import inner_forests
from paritygate.converter.exporters._sklearn.inputs import as_columns, as_served, undeclared_input
from paritygate.converter.exporters._sklearn.pools import acceptable, first_example, learnt_rows
from paritygate.converter.exporters._sklearn.scales import is_far, scales_by_input
from paritygate.converter.exporters._sklearn.texts import lowering_note, takes_texts
from paritygate.converter.exporters._sklearn.thresholds import missing_rows, threshold_rows
from paritygate.converter.exporters._sklearn.trees import ensemble_of, sparse_fed
from paritygate.converter.exporters._trees.edges import asked_note, edge_rows, is_clear
from paritygate.converter.exporters._trees.forest import Forest
from paritygate.converter.exporters.base import ConversionRequest, SourceInput, SourceModel, Weights
from paritygate.converter.exporters.binding import declared_inputs
from paritygate.converter.types import Array, DType, Feeds, TensorSpec


def open_estimator(estimator: Any, config: ExportConfig, weights: Weights, notes: list[str]) -> SourceModel:
    """An estimator with the inputs that the user declared or showed, or with one float32 matrix."""
    while hasattr(estimator, "best_estimator_"):
        notes.append(f"The best estimator that {type(estimator).__name__} found is exported.")
        estimator = estimator.best_estimator_
    declared = declared_inputs(config.inputs)
    if declared is not None:
        if any(spec.dtype is DType.FLOAT32 for spec in declared):
            check_compared(estimator, None, notes)
        inputs = [SourceInput(spec.name, spec.dtype, spec.shape) for spec in declared]
        refuse_other_kinds(estimator, inputs)
        return EstimatorModel(estimator, inputs, weights=weights, notes=notes)
    example = as_columns(config.inputs, estimator)
    check_compared(estimator, example, notes)
    if example is None:
        name, dtype, width = undeclared_input(estimator)
        inputs = [SourceInput(name, dtype, (None, width))]
        refuse_other_kinds(estimator, inputs)
        return EstimatorModel(estimator, inputs, weights=weights, notes=notes)
    arrays = {name: as_served(name, value, notes) for name, value in example.items()}
    inputs = [SourceInput(n, DType.from_numpy(a.dtype), (None, *a.shape[1:])) for n, a in arrays.items()]
    refuse_other_kinds(estimator, inputs)
    return EstimatorModel(estimator, inputs, example=arrays, weights=weights, notes=notes)


_FAR_NOTE = (
    "Features lie so far from zero, on the scale on which they vary, that the graph computes in float64; float32 "
    "would lose what they say."
)


class EstimatorModel(SourceModel):
    """A fitted estimator that is open for export; it is the user's own object and is only asked."""

    dims_are_declared = True
    narrows_floats = True

    def __init__(
        self,
        estimator: Any,
        inputs: Sequence[SourceInput],
        *,
        example: Feeds | None = None,
        weights: Weights,
        notes: list[str],
    ) -> None:
        self.inputs = tuple(inputs)
        scales = scales_by_input(estimator, inputs)
        self.example = first_example(estimator, inputs, scales) if example is None else example
        narrow = any(spec.dtype is DType.FLOAT32 for spec in inputs)
        self._is_far = narrow and is_far(estimator, scales, example or {})
        self.weights = weights
        self.notes: list[str] = notes
        notes += rounded_categories(estimator, inputs)
        self._estimator = estimator
        self._feature_names = feature_names(estimator)
        self._methods = methods(estimator)
        self._takes_texts = takes_texts(estimator)
        self._takes_float64 = True
        self._settle_scores()

    def run(self, feeds: Feeds) -> dict[str, Array]:
        """Ask the estimator with exactly the values that the graph gets, in float64, as scikit-learn computes.

        Some compiled parts (KMeans) take nothing but the precision that they were fitted in. An estimator that
        refuses float64 is asked in the graph's own precision from then on.
        """
        if self._takes_float64:
            try:
                return self._ask(self._given(feeds))
            except ValueError as error:
                if "dtype mismatch" not in str(error):
                    raise
            self._takes_float64 = False
            self.notes.append(
                "The estimator was fitted in float32 and computes so; it has no float64 reference."
            )
        return self._ask(feeds)

    def _given(self, feeds: Feeds) -> Feeds:
        return {name: widened(a) for name, a in feeds.items()} if self._takes_float64 else feeds

    def _ask(self, feeds: Feeds) -> dict[str, Array]:
        table = self._table(feeds)
        try:
            return {
                name: as_output(name, getattr(self._estimator, method)(table))
                for name, method in self._methods.items()
            }
        except (ValueError, IndexError) as error:
            # scikit-learn tells of a category that it does not know by its array, or of an index out of bounds.
            told = unknown_category(self._estimator, self.inputs, feeds)
            if told is None:
                raise
            raise ValueError(told) from error

    def convert(self, request: ConversionRequest) -> None:
        """Write the estimator with skl2onnx, its outputs in the source's own form."""
        with sparse_fed(self._given_sparse(request.example)):
            model = self._convert(request)
        said = (lowering_note(path, part) for path, part in parts(self._estimator))
        self.notes += [note for note in said if note is not None and note not in self.notes]
        narrow_inputs(model.graph, request.inputs)
        answers = self.run(request.example)
        opset = settle_opsets(model, request.opset)
        if opset < request.opset:
            self.notes.append(
                f"Written at opset {opset}, not {request.opset}: skl2onnx has some of its operators in older "
                "forms only."
            )
        keep_outputs(model.graph, answers, opset, narrow=self._is_far)
        weights = sum(len(tensor.raw_data) for tensor in model.graph.initializer)
        if weights > request.external_data_threshold_bytes:
            side_file = f"{request.path.name}.data"
            onnx.save_model(model, str(request.path), save_as_external_data=True, location=side_file)
        else:
            request.path.write_bytes(model.SerializeToString(deterministic=True))

    def _given_sparse(self, example: Feeds) -> list[Any]:
        """The last step of a pipeline and all inside it, if the steps before give a sparse matrix."""
        steps: list[Any] = getattr(self._estimator, "steps", [])
        if len(steps) < 2:
            return []
        before = self._estimator[:-1].transform(self._table(self._given(example)))
        return [part for _, part in parts(steps[-1][1])] if hasattr(before, "toarray") else []

    def acceptable(self, feeds: Feeds) -> Feeds:
        """Known categories instead of random texts and, where an encoder refuses others, of random numbers."""
        return acceptable(self._estimator, self.inputs, feeds)

    def edges(self) -> Mapping[str, Feeds]:
        """Samples of what was learnt: known texts and categories, both sides of thresholds, missing values."""
        found: dict[str, Feeds] = {}
        for kind, learnt in learnt_rows(self._estimator, self.inputs, self.example).items():
            clear = self._without_ties(learnt)
            if clear:
                found[kind] = clear
        if len(self.inputs) == 1 and self.inputs[0].dtype.is_floating:
            found |= self._tree_edges()
            found |= self._feature_edges("missing" in found)
        return found

    def _feature_edges(self, missing_is_asked: bool) -> dict[str, Feeds]:
        """Samples at the thresholds of transformers, and without one feature where that is allowed."""
        (given,) = self.inputs
        width = int(given.shape[1] or 0) if len(given.shape) == 2 else 0
        if not width:
            return {}
        usual = np.zeros(width, given.dtype.numpy) if self.example is None else self.example[given.name][0]
        found: dict[str, Feeds] = {}
        at = threshold_rows(self._estimator, usual)
        if at is not None:
            found["features"] = self._without_ties({given.name: at})
        if not missing_is_asked and self._takes_missing() and not self._isolates():
            found["missing"] = self._without_ties({given.name: missing_rows(usual)})
        return {kind: feeds for kind, feeds in found.items() if feeds}

    def _isolates(self) -> bool:
        """Whether isolation trees are in it: skl2onnx sends a missing value down another branch of theirs."""
        isolates = any(type(part).__name__ == "IsolationForest" for _, part in parts(self._estimator))
        note = "Missing values were not asked: the ONNX form of an IsolationForest judges them otherwise."
        if isolates and note not in self.notes:
            self.notes.append(note)
        return isolates

    def _tree_edges(self) -> dict[str, Feeds]:
        (given,) = self.inputs
        forests = inner_forests(self._estimator)
        missing = (np.nan,) if forests and self._takes_missing() else ()
        # A sum over shares of several models is rounded, and so is one of boosted leaves; votes are whole.
        alone = ensemble_of(self._estimator)
        exact = alone is not None and isinstance(alone.sums, Forest) and alone.sums.is_exact
        found: dict[str, Feeds] = {}
        for forest in forests:
            rows = edge_rows(forest, missing=missing, kind=given.dtype.numpy.type)
            note = asked_note(forest, rows)
            if note is not None and note not in self.notes:
                self.notes.append(note)
            for kind, matrix in rows.items():
                feeds: Feeds = {given.name: matrix}
                name = f"{kind}-below" if forest.strict and len(forests) > 1 else kind
                found[name] = feeds if exact else self._without_ties(feeds)
        return {kind: feeds for kind, feeds in found.items() if feeds}

    def _without_ties(self, rows: Feeds) -> dict[str, Array]:
        """Rows in which one class is likelier than all others: which label a tie gets is the last bit of a sum."""
        try:
            shares = self.run(rows).get(PROBABILITIES)
        except (ValueError, IndexError):  # it is asked again as a probe, and what it says is recorded there
            return dict(rows)
        if shares is None or shares.ndim != 2 or shares.shape[1] < 2:
            return dict(rows)
        clear = is_clear(shares)
        return {name: array[clear] for name, array in rows.items()} if clear.any() else {}

    def _takes_missing(self) -> bool:
        (spec,) = self.inputs
        try:
            self.run({spec.name: np.full((1, int(spec.shape[1] or 1)), np.nan, spec.dtype.numpy)})
        except ValueError:  # scikit-learn's word for a NaN that was not among the training data
            return False
        return True

    def _convert(self, request: ConversionRequest) -> onnx.ModelProto:
        """The estimator as skl2onnx writes it, in float64 where float32 would lose what its features say."""
        if self._is_far:
            # What skl2onnx cannot write in float64 it may write in float32; parity tells whether that will do.
            with contextlib.suppress(ExportError):
                model = self._convert_as(in_float64(request.inputs), request.opset)
                check_types(model)
                if _FAR_NOTE not in self.notes:
                    self.notes.append(_FAR_NOTE)
                return model
        return self._convert_as(widened_beside_bools(request.inputs), request.opset)

    def _convert_as(self, specs: Sequence[TensorSpec], opset: int) -> onnx.ModelProto:
        types = [(spec.name, skl_type(spec)) for spec in specs]
        opsets = {"": opset, "ai.onnx.ml": ML_OPSET}
        *preferred, plain = conversion_options(self._estimator)
        try:
            for options in preferred:
                # NameError is skl2onnx's word for an option that this converter does not have.
                with contextlib.suppress(NameError):
                    return to_onnx(self._estimator, types, opsets, options)
            return to_onnx(self._estimator, types, opsets, plain)
        except Exception as error:
            raise explained(error, self._estimator, opset) from error

    def _table(self, feeds: Feeds) -> Any:
        """The feeds in the form that the estimator was fitted on: an array, or a data frame where it has names."""
        arrays = [feeds[spec.name] for spec in self.inputs]
        columns = [spec.name for spec in self.inputs]
        if len(arrays) == 1 and self._takes_texts:
            return arrays[0][:, 0]
        if self._feature_names is None:
            return arrays[0] if len(arrays) == 1 else np.hstack(arrays)
        pandas = import_module("pandas")
        if len(arrays) == 1:
            return pandas.DataFrame(arrays[0], columns=self._feature_names)
        return pandas.DataFrame({name: array[:, 0] for name, array in zip(columns, arrays, strict=True)})

    def _settle_scores(self) -> None:
        """Leave out decision scores in the forms that converters write in different ways."""
        if (
            self._methods.get(SCORES) == "decision_function"
            and len(getattr(self._estimator, "classes_", "123")) == 2
        ):
            del self._methods[SCORES]
            self.notes.append(
                f"{type(self._estimator).__name__} gives labels only: it has no probabilities, and "
                "skl2onnx writes the decision scores of two classes in another form than scikit-learn."
            )


def feature_names(estimator: Any) -> list[str] | None:
    names = getattr(estimator, "feature_names_in_", None)
    return None if names is None else [str(name) for name in names]
