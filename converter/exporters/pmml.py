"""PMML documents become ONNX by our own reader; the answers that are sealed come from our own scorer.

No other framework is at work, so nothing has to be installed. The scorer (`_pmml/scoring`) interprets the file row
by row as the standard says, in double precision; the graph (`_pmml/emission`) is written apart from it and
computes in double precision too, so nothing is rounded that PMML does not round.

Inputs are one column, [rows, 1], for each active field, in the field's own type: double, float, integer, boolean
or string. A missing value is NaN or the empty text; a whole number cannot be missing unless its input is declared
as a float. Where the user declares or gives one matrix, its columns are the fields in the MiningSchema's order.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from paritygate.converter._stages import stage
from paritygate.converter.checkpoints.files import existing_file, file_sha256
from paritygate.converter.checkpoints.sniffing import is_first_for, refuse_foreign
from paritygate.converter.config import ExportConfig
from paritygate.converter.errors import ExportError, SourceError
from paritygate.converter.exporters._pmml.collector import collector_paused
from paritygate.converter.exporters._pmml.declarations import Field
from paritygate.converter.exporters._pmml.elements import Document, read_document
from paritygate.converter.exporters._pmml.emission.emitter import emit_document
from paritygate.converter.exporters._pmml.samples import Sampler
from paritygate.converter.exporters._pmml.scoring.scorer import Scorer
from paritygate.converter.exporters._pmml.verification import check_verification
from paritygate.converter.exporters.base import (
    ConversionRequest,
    Exporter,
    SourceInput,
    SourceModel,
    Versions,
    Weights,
)
from paritygate.converter.exporters.binding import declared_inputs
from paritygate.converter.types import Array, DType, Feeds, TensorSpec

MATRIX_INPUT = "x"
READER_VERSION = "1"

_DTYPES = {
    "double": DType.FLOAT64,
    "float": DType.FLOAT32,
    "integer": DType.INT64,
    "boolean": DType.BOOL,
    "string": DType.STRING,
}
_NUMBERS = (DType.FLOAT64, DType.FLOAT32, DType.INT64, DType.INT32, DType.BOOL)


class PmmlExporter(Exporter):
    """Exports PMML 3.0 to 4.4: trees, forests, boosting, regressions and neural networks."""

    name = "pmml"

    def recognises(self, source: Any) -> bool:
        """A path at which a PMML document lies."""
        return isinstance(source, str | Path) and is_first_for(source, self.name)

    def refuse_early(self, source: Any, config: ExportConfig) -> None:
        """Refuse what is no file."""
        _file(source)

    def versions(self) -> Versions:
        """Our own scorer and reader."""
        return Versions("pmml", READER_VERSION, "paritygate", READER_VERSION)

    @contextmanager
    def open_source(self, source: Any, config: ExportConfig) -> Iterator[SourceModel]:
        """Read a document whole; nothing that it names elsewhere is opened."""
        path = _file(source)
        try:
            with collector_paused():
                document = read_document(path)
                with stage("probes"):
                    scorer = Scorer(document)
        except RecursionError as error:
            raise SourceError(
                f"{path} nests its expressions or models deeper than they can be followed; expected a model that "
                "a PMML writer made."
            ) from error
        if not scorer.inputs:
            raise ExportError(f"{path} has a model without active fields; a served model needs an input.")
        notes = check_verification(document, scorer)
        inputs, example = _inputs(scorer.inputs, config)
        weights = Weights("as in the file", file_sha256(path))
        with collector_paused(), stage("probes"):
            model = PmmlModel(document, scorer, inputs, example, weights, notes)
        yield model


def _file(source: Any) -> Path:
    if not isinstance(source, str | Path):
        raise SourceError(
            f"a {type(source).__module__}.{type(source).__qualname__} is no PMML; expected the path of a file."
        )
    path = existing_file(source)
    refuse_foreign(path, PmmlExporter.name)
    return path


# --- what goes in -------------------------------------------------------------------------------------------


def _inputs(
    fields: Sequence[Field], config: ExportConfig
) -> tuple[tuple[SourceInput, ...], dict[str, Array] | None]:
    """The inputs as the user gives or declares them, else a column for each field; and the example, if any."""
    declared = declared_inputs(config.inputs)
    if declared is not None:
        return _as_declared(fields, declared), None
    arrays = _as_arrays(config.inputs)
    if arrays is None:
        return tuple(SourceInput(f.name, _DTYPES[f.data_type], (None, 1)) for f in fields), None
    arrays = {name: array[:, None] if array.ndim == 1 else array for name, array in arrays.items()}
    specs = [
        TensorSpec(name, DType.from_numpy(a.dtype), ("batch", *a.shape[1:])) for name, a in arrays.items()
    ]
    inputs = _as_declared(fields, specs)
    return inputs, {entry.name: arrays[entry.name] for entry in inputs}


def _as_arrays(inputs: Any) -> dict[str, Array] | None:
    if inputs is None:
        return None
    if isinstance(inputs, tuple | list) and len(inputs) == 1:
        inputs = inputs[0]
    if hasattr(inputs, "columns") and hasattr(inputs, "to_numpy"):
        inputs = {str(name): inputs[name].to_numpy() for name in inputs.columns}
    if not isinstance(inputs, Mapping):
        inputs = {MATRIX_INPUT: inputs}
    arrays = {str(name): np.asarray(value) for name, value in inputs.items()}
    return {n: a.astype(str).astype(object) if a.dtype.kind in "OUS" else a for n, a in arrays.items()}


def _as_declared(fields: Sequence[Field], specs: Sequence[TensorSpec]) -> tuple[SourceInput, ...]:
    by_name = {spec.name: spec for spec in specs}
    names = [field.name for field in fields]
    if len(specs) == 1 and (len(names) > 1 or specs[0].name not in names):
        return (_matrix(fields, specs[0]),)
    if sorted(by_name) != sorted(names):
        raise ExportError(
            f"the inputs given are {_few(list(by_name))}, but the model's active fields are {_few(names)}. "
            f"Give one for each, or one matrix: {MATRIX_INPUT}:float64[batch,{len(names)}]."
        )
    return tuple(_column(field, by_name[field.name]) for field in fields)


def _few(names: Sequence[str]) -> str:
    shown = ", ".join(names[:8])
    return f"{shown} and {len(names) - 8} more" if len(names) > 8 else shown


def _matrix(fields: Sequence[Field], spec: TensorSpec) -> SourceInput:
    if len(spec.shape) != 2 or spec.shape[1] != len(fields):
        raise ExportError(
            f"input {spec} does not fit the model's {len(fields)} active fields; expected a matrix "
            f"[rows, {len(fields)}], its columns {_few([field.name for field in fields])}."
        )
    for field in fields:
        _check_dtype(field, spec)
    return SourceInput(spec.name, spec.dtype, (None, len(fields)))


def _column(field: Field, spec: TensorSpec) -> SourceInput:
    if len(spec.shape) != 2 or spec.shape[1] != 1:
        raise ExportError(f"input {spec} is no column; expected the shape [rows, 1].")
    _check_dtype(field, spec)
    return SourceInput(spec.name, spec.dtype, (None, 1))


def _check_dtype(field: Field, spec: TensorSpec) -> None:
    texts = field.data_type == "string"
    if texts != (spec.dtype is DType.STRING) or (not texts and spec.dtype not in _NUMBERS):
        allowed = "string" if texts else ", ".join(dtype.value for dtype in _NUMBERS)
        raise ExportError(
            f"input {spec} is {spec.dtype.value}, but the field {field.name!r} is {field.data_type}; "
            f"expected {allowed}."
        )


# --- the model ----------------------------------------------------------------------------------------------


class PmmlModel(SourceModel):
    """A document that is open for export; the scorer answers, the emitter writes."""

    dims_are_declared = True

    def __init__(
        self,
        document: Document,
        scorer: Scorer,
        inputs: Sequence[SourceInput],
        example: dict[str, Array] | None,
        weights: Weights,
        notes: Sequence[str],
    ) -> None:
        self.inputs = tuple(inputs)
        self.weights = weights
        self._document = document
        self._scorer = scorer
        self._sampler = Sampler(document, scorer.inputs)
        self.example = (
            example if example is not None else self._fed(self._sampler.rows(_EXAMPLE_ROWS, missing=False))
        )
        self.notes: list[str] = [*notes, *_notes(scorer, document, self._is_matrix)]

    @property
    def _is_matrix(self) -> bool:
        return (len(self.inputs) == 1 and len(self._scorer.inputs) > 1) or self.inputs[
            0
        ].name != self._scorer.inputs[0].name

    def run(self, feeds: Feeds) -> dict[str, Array]:
        """The scorer's answers, computed in double precision."""
        names = [field.name for field in self._scorer.inputs]
        if self._is_matrix:
            matrix = feeds[self.inputs[0].name]
            columns = {name: matrix[:, k] for k, name in enumerate(names)}
        else:
            columns = {name: feeds[name][:, 0] for name in names}
        return self._scorer.run(columns)

    def convert(self, request: ConversionRequest) -> None:
        """Write the document as ONNX."""
        names = [field.name for field in self._scorer.inputs]
        with collector_paused():
            model = emit_document(self._document, request.inputs, names, self._scorer.outputs, request.opset)
        size = model.ByteSize()
        if size > request.external_data_threshold_bytes:
            side_file = f"{request.path.name}.data"
            onnx.save_model(model, str(request.path), save_as_external_data=True, location=side_file)
        else:
            request.path.write_bytes(model.SerializeToString(deterministic=True))

    def integer_ranges(self) -> Mapping[str, tuple[int, int]]:
        """What the DataDictionary says of whole numbers."""
        if self._is_matrix:
            return {}
        found = {}
        for field, entry in zip(self._scorer.inputs, self.inputs, strict=True):
            bounds = _bounds(field)
            if entry.dtype.is_integer and bounds is not None:
                found[entry.name] = bounds
        return found

    def edges(self) -> Mapping[str, Feeds]:
        """Rows whose values are those that the document compares with, or beside them, or missing."""
        return {"compared": self._fed(self._sampler.rows(self._sampler.most_rows(), missing=True))}

    def _fed(self, rows: Mapping[str, Sequence[Any]]) -> dict[str, Array]:
        """Values by field as the inputs take them."""
        fields = self._scorer.inputs
        if self._is_matrix:
            entry = self.inputs[0]
            columns = [_as_array(rows[field.name], entry.dtype) for field in fields]
            return {entry.name: np.stack(columns, axis=1)}
        return {
            entry.name: _as_array(rows[field.name], entry.dtype)[:, None]
            for field, entry in zip(fields, self.inputs, strict=True)
        }


_EXAMPLE_ROWS = 8


def _as_array(values: Sequence[Any], dtype: DType) -> Array:
    """Values as an input of a type takes them: what is missing has no form among whole numbers."""
    if dtype is DType.STRING:
        array = np.empty(len(values), dtype=object)
        array[:] = ["" if value is None else value for value in values]
        return array
    if dtype.is_floating:
        wide = np.array([np.nan if value is None else float(value) for value in values], dtype=np.float64)
        return wide.astype(dtype.numpy)
    present = [0 if value is None else value for value in values]
    if dtype is DType.BOOL:
        return np.array([bool(value) for value in present], dtype=np.bool_)
    info = np.iinfo(dtype.numpy)
    return np.array([min(max(int(np.floor(v)), info.min), info.max) for v in present], dtype=dtype.numpy)


def _bounds(field: Field) -> tuple[int, int] | None:
    if field.data_type != "integer":
        return None
    numbers = [float(text) for text in field.valid]
    for interval in field.intervals:
        numbers += [bound for bound in (interval.left, interval.right) if bound is not None]
    finite = [number for number in numbers if np.isfinite(number)]
    return (int(np.floor(min(finite))), int(np.ceil(max(finite)))) if finite else None


def _notes(scorer: Scorer, document: Document, is_matrix: bool) -> list[str]:
    notes = []
    if scorer.classes:
        shown = ", ".join(scorer.classes[:20]) + (", …" if len(scorer.classes) > 20 else "")
        notes.append(f"The classes, in the order of the probabilities: {shown}.")
    if scorer.classes and not scorer.has_probabilities:
        notes.append("The trees tell classes only, so there are no probabilities.")
    if is_matrix:
        notes.append(f"The columns are the fields {_few([field.name for field in scorer.inputs])}.")
    whole = [field.name for field in scorer.inputs if field.data_type in ("integer", "boolean")]
    if whole and not is_matrix:
        notes.append(
            f"{_few(whole)} cannot be missing; declare the input as float64 to send NaN for a missing value."
        )
    if any("x-mathContext" in element.attributes for element in document.root.children):
        notes.append(
            "x-mathContext, which PMML does not know, is not followed: all sums are in double precision."
        )
    notes.append(
        "A row without a result gives NaN, an empty text, or -2**63 for a label that is a whole number."
    )
    return notes
