"""scikit-learn estimators, in memory or as joblib and pickle files, become ONNX through skl2onnx.

Inputs are one float32 matrix `x`, or one column each where the estimator was fitted on named columns of mixed
types. A pickle runs whatever code it holds when it is opened, so a file is opened only if it is trusted.

The traps that this file is about:

- A tree compares float32 values with float64 thresholds. The source must be asked with exactly the float32 values
  that the graph gets, never with the float64 ones they were rounded from: samples near a threshold would flip.
- `predict` of a regressor gives one axis, the converted graph two; the graph is brought to the source's form.
- Labels are compared exactly: whole numbers as int64, texts as strings.
"""

from __future__ import annotations

import contextlib
import importlib
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from paritygate.converter.checkpoints.factories import build, is_factory
from paritygate.converter.checkpoints.files import existing_file, file_sha256
from paritygate.converter.config import ExportConfig
from paritygate.converter.errors import (
    ExportError,
    SourceError,
    UnsafeSource,
    UnsupportedOperator,
)
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

SUFFIXES = (".joblib", ".pkl", ".pickle")
MATRIX_INPUT = "x"

LABEL, PROBABILITIES, SCORES = "label", "probabilities", "scores"
PREDICTION, TRANSFORMED = "prediction", "transformed"


class SklearnExporter(Exporter):
    """Exports fitted scikit-learn estimators and pipelines."""

    name = "sklearn"
    modules = ("sklearn", "skl2onnx", "joblib")

    def recognises(self, source: Any) -> bool:
        """A `.joblib`, `.pkl` or `.pickle` path, or an estimator in memory."""
        if isinstance(source, str | Path):
            return Path(source).suffix.lower() in SUFFIXES
        return _is_estimator(source)

    def refuse_early(self, source: Any, config: ExportConfig) -> None:
        """Refuse a pickle that is not trusted, or not there, without opening it."""
        if isinstance(source, Path) or not is_factory(source):
            _refuse_untrusted(existing_file(source), trust=config.trust)

    def versions(self) -> Versions:
        """scikit-learn and skl2onnx."""
        sklearn, skl2onnx = _import("sklearn"), _import("skl2onnx")
        return Versions("scikit-learn", sklearn.__version__, "skl2onnx", skl2onnx.__version__)

    @contextmanager
    def open_source(self, source: Any, config: ExportConfig) -> Iterator[SourceModel]:
        """Unpickle a trusted file, or take an estimator as it is: predicting changes nothing in it."""
        notes: list[str] = []
        weights = Weights()
        if isinstance(source, str | Path):
            source, example, weights = _from_text(source, config, notes)
            config = replace(config, inputs=example) if config.inputs is None else config
        if not _is_estimator(source):
            raise SourceError(
                f"a {type(source).__module__}.{type(source).__qualname__} is not a scikit-learn estimator; "
                "expected a fitted one, or the path of a joblib file that holds one."
            )
        _import("skl2onnx")
        _refuse_unfitted(source)
        yield _open(source, config, weights, notes)


def _import(module: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ExportError(
            f"exporting a scikit-learn estimator needs {module}, which cannot be imported here ({error}). "
            "Install paritygate[sklearn], or export the saved file with `paritygate export --trust`, which uses "
            "an environment of its own."
        ) from error


def _is_estimator(source: Any) -> bool:
    return not isinstance(source, type) and any(
        kind.__name__ == "BaseEstimator" and kind.__module__ == "sklearn.base"
        for kind in type(source).__mro__
    )


# --- files --------------------------------------------------------------------------------------------------


def _from_text(source: str | Path, config: ExportConfig, notes: list[str]) -> tuple[Any, Any, Weights]:
    """The estimator that a path or `module:factory` stands for, the factory's example, and where it is from."""
    if is_factory(source) and not Path(source).exists():
        built = build(str(source))
        return built.model, built.example, Weights(f"as built by {source}")
    path = existing_file(source)
    return _load(path, notes, trust=config.trust), None, Weights("as in the file", file_sha256(path))


def _refuse_untrusted(path: Path, *, trust: bool) -> None:
    if not trust:
        raise UnsafeSource(
            f"{path} is a pickle, and opening a pickle runs whatever code it carries; it was not opened. "
            "Pass --trust (trust=True) if you trust where the file comes from."
        )


def _load(path: Path, notes: list[str], *, trust: bool) -> Any:
    _refuse_untrusted(path, trust=trust)
    joblib = _import("joblib")
    _import("sklearn")
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        try:
            estimator = joblib.load(path)
        except ModuleNotFoundError as error:
            raise SourceError(
                f"{path} needs the module {error.name!r}, which is not installed here."
            ) from error
        except Exception as error:
            raise SourceError(
                f"{path} cannot be opened: {type(error).__name__}: {_first_line(error)}. "
                "Expected a whole file written by joblib.dump or pickle.dump."
            ) from error
    notes += dict.fromkeys(
        " ".join(str(w.message).split())
        for w in heard
        if type(w.message).__name__ == "InconsistentVersionWarning"
    )
    return estimator


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or ["no text"])[0]


def _refuse_unfitted(estimator: Any) -> None:
    from sklearn.exceptions import NotFittedError
    from sklearn.utils.validation import check_is_fitted

    try:
        check_is_fitted(estimator)
    except NotFittedError as error:
        raise ExportError(
            f"{type(estimator).__name__} is not fitted; call fit before exporting it."
        ) from error


# --- what goes in -------------------------------------------------------------------------------------------


def _open(estimator: Any, config: ExportConfig, weights: Weights, notes: list[str]) -> SourceModel:
    declared = declared_inputs(config.inputs)
    if declared is not None:
        inputs = [SourceInput(spec.name, spec.dtype, spec.shape) for spec in declared]
        return EstimatorModel(estimator, inputs, weights=weights, notes=notes)
    example = _as_columns(config.inputs)
    if example is None:
        width = _num_features(estimator)
        inputs = [SourceInput(MATRIX_INPUT, DType.FLOAT32, (None, width))]
        return EstimatorModel(estimator, inputs, weights=weights, notes=notes)
    arrays = {name: _as_served(name, value, notes) for name, value in example.items()}
    inputs = [SourceInput(n, DType.from_numpy(a.dtype), (None, *a.shape[1:])) for n, a in arrays.items()]
    return EstimatorModel(estimator, inputs, example=arrays, weights=weights, notes=notes)


def _num_features(estimator: Any) -> int:
    width = getattr(estimator, "n_features_in_", None)
    if width is None:
        raise ExportError(
            f"{type(estimator).__name__} does not say how many features it takes. Give an example (inputs=array) "
            "or words (inputs='x:float32[batch,4]')."
        )
    return int(width)


def _as_columns(inputs: Any) -> dict[str, Any] | None:
    """The user's example as named arrays: a matrix is `x`, a data frame or dict is one array a column."""
    if inputs is None:
        return None
    if isinstance(inputs, tuple | list) and len(inputs) == 1 and hasattr(inputs[0], "shape"):
        inputs = inputs[0]
    if hasattr(inputs, "columns") and hasattr(inputs, "to_numpy"):
        return {str(name): inputs[name].to_numpy() for name in inputs.columns}
    if isinstance(inputs, Mapping):
        return {str(name): value for name, value in inputs.items()}
    return {MATRIX_INPUT: inputs}


def _as_served(name: str, value: Any, notes: list[str]) -> Array:
    array = np.asarray(value)
    if array.ndim == 1 and name != MATRIX_INPUT:
        array = array[:, None]
    if array.ndim != 2:
        raise ExportError(
            f"the example for input {name!r} has the shape {list(array.shape)}; scikit-learn takes matrices, "
            "[samples, features], or columns, [samples, 1]."
        )
    if array.dtype == np.float64:
        notes.append(
            f"Input {name!r} is float32: the example's float64 was rounded, since converted graphs compute so. "
            f"Declare it in words ({name}:float64[batch,{array.shape[1]}]) to keep float64."
        )
        return array.astype(np.float32)
    if array.dtype.kind in "OUS":
        return array.astype(str).astype(object)
    return array


# --- the model ----------------------------------------------------------------------------------------------


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
        self.example = example
        self.weights = weights
        self.notes: list[str] = notes
        self._estimator = estimator
        self._feature_names = _feature_names(estimator)
        self._methods = _methods(estimator)
        self._takes_float64 = True
        self._settle_scores()

    def run(self, feeds: Feeds) -> dict[str, Array]:
        """Ask the estimator with exactly the values that the graph gets, in float64, as scikit-learn computes.

        Some compiled parts (KMeans) take nothing but the precision that they were fitted in. An estimator that
        refuses float64 is asked in the graph's own precision from then on.
        """
        if self._takes_float64:
            try:
                return self._ask({name: _widened(array) for name, array in feeds.items()})
            except ValueError as error:
                if "dtype mismatch" not in str(error):
                    raise
            self._takes_float64 = False
            self.notes.append(
                "The estimator was fitted in float32 and computes so; it has no float64 reference."
            )
        return self._ask(feeds)

    def _ask(self, feeds: Feeds) -> dict[str, Array]:
        table = self._table(feeds)
        return {
            name: _as_output(name, getattr(self._estimator, method)(table))
            for name, method in self._methods.items()
        }

    def convert(self, request: ConversionRequest) -> None:
        """Write the estimator with skl2onnx, its outputs in the source's own form."""
        model = self._convert(request)
        answers = self.run(request.example)
        _keep_outputs(model.graph, answers)
        _merge_opsets(model)
        weights = sum(len(tensor.raw_data) for tensor in model.graph.initializer)
        if weights > request.external_data_threshold_bytes:
            side_file = f"{request.path.name}.data"
            onnx.save_model(model, str(request.path), save_as_external_data=True, location=side_file)
        else:
            request.path.write_bytes(model.SerializeToString(deterministic=True))

    def _convert(self, request: ConversionRequest) -> onnx.ModelProto:
        types = [(spec.name, _skl_type(spec)) for spec in request.inputs]
        opsets = {"": request.opset, "ai.onnx.ml": _ML_OPSET}
        *preferred, plain = _options(self._estimator)
        try:
            for options in preferred:
                # NameError is skl2onnx's word for an option that this converter does not have.
                with contextlib.suppress(NameError):
                    return _to_onnx(self._estimator, types, opsets, options)
            return _to_onnx(self._estimator, types, opsets, plain)
        except Exception as error:
            raise _explained(error, self._estimator, request.opset) from error

    def _table(self, feeds: Feeds) -> Any:
        """The feeds in the form that the estimator was fitted on: an array, or a data frame where it has names."""
        arrays = [feeds[spec.name] for spec in self.inputs]
        columns = [spec.name for spec in self.inputs]
        if self._feature_names is None:
            return arrays[0] if len(arrays) == 1 else np.hstack(arrays)
        pandas = _import("pandas")
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


def _to_onnx(estimator: Any, types: Any, opsets: dict[str, int], options: Any) -> onnx.ModelProto:
    import skl2onnx

    with warnings.catch_warnings():
        # What skl2onnx still reads of scikit-learn's old attributes is not the user's concern.
        for kind in (DeprecationWarning, FutureWarning):
            warnings.simplefilter("ignore", kind)
        model: onnx.ModelProto = skl2onnx.to_onnx(
            estimator, initial_types=types, target_opset=opsets, options=options
        )
    return model


_ML_OPSET = 3
"""Version of the operator set for trees and linear models; skl2onnx 1.20 refuses later ones for some models."""


def _feature_names(estimator: Any) -> list[str] | None:
    names = getattr(estimator, "feature_names_in_", None)
    return None if names is None else [str(name) for name in names]


def _methods(estimator: Any) -> dict[str, str]:
    """Output name -> the estimator's method that gives it, in the order of skl2onnx's graph outputs."""
    from sklearn.base import is_classifier, is_outlier_detector, is_regressor

    if is_classifier(estimator):
        _refuse_several_targets(estimator)
        if hasattr(estimator, "predict_proba"):
            return {LABEL: "predict", PROBABILITIES: "predict_proba"}
        scores = {SCORES: "decision_function"} if hasattr(estimator, "decision_function") else {}
        return {LABEL: "predict"} | scores
    if is_outlier_detector(estimator) and hasattr(estimator, "decision_function"):
        return {LABEL: "predict", SCORES: "decision_function"}
    if is_regressor(estimator):
        return {PREDICTION: "predict"}
    if hasattr(estimator, "predict"):
        return {LABEL: "predict"}
    if hasattr(estimator, "transform"):
        return {TRANSFORMED: "transform"}
    raise ExportError(
        f"{type(estimator).__name__} has neither predict nor transform for new samples, so it cannot be served."
    )


def _refuse_several_targets(estimator: Any) -> None:
    classes = getattr(estimator, "classes_", None)
    if isinstance(classes, list):
        raise ExportError(
            f"{type(estimator).__name__} was fitted on {len(classes)} targets at once and gives a list of "
            "probability arrays, which no served tensor is. Export one classifier for each target."
        )


def _as_output(name: str, value: Any) -> Array:
    if hasattr(value, "toarray"):
        value = value.toarray()
    if hasattr(value, "to_numpy"):
        value = value.to_numpy()
    if not isinstance(value, np.ndarray):
        raise ExportError(
            f"output {name!r} is a {type(value).__name__}, not an array, so it cannot be served."
        )
    if value.dtype.kind in "OUS":
        return value.astype(str).astype(object)
    if name == LABEL:
        return _as_labels(value)
    return value


def _as_labels(value: Array) -> Array:
    """Labels as int64, which is what converted graphs give; the numbers stay what they are."""
    labels = value.astype(np.int64)
    if not np.array_equal(labels, value):
        odd = value[labels != value][0]
        raise ExportError(
            f"the class label {odd} is not a whole number; ONNX classifiers give whole numbers or strings. "
            "Fit on strings or whole numbers."
        )
    return labels


def _widened(array: Array) -> Array:
    return array.astype(np.float64) if array.dtype in (np.float32, np.float16) else array


def _skl_type(spec: TensorSpec) -> Any:
    from skl2onnx.common import data_types

    kinds = {
        DType.FLOAT32: data_types.FloatTensorType,
        DType.FLOAT64: data_types.DoubleTensorType,
        DType.INT64: data_types.Int64TensorType,
        DType.INT32: data_types.Int32TensorType,
        DType.BOOL: data_types.BooleanTensorType,
        DType.STRING: data_types.StringTensorType,
    }
    if spec.dtype not in kinds:
        known = ", ".join(kind.value for kind in kinds)
        raise ExportError(f"input {spec.name!r} is {spec.dtype.value}; skl2onnx takes {known}.")
    return kinds[spec.dtype]([d if isinstance(d, int) else None for d in spec.shape])


def _options(estimator: Any) -> list[dict[int, dict[str, Any]] | None]:
    """What to ask skl2onnx for, best first: no ZipMap (a sequence of maps is no tensor), raw scores without it."""
    from sklearn.base import is_classifier

    if not is_classifier(estimator):
        return [None]
    key = id(estimator)
    if hasattr(estimator, "predict_proba"):
        return [{key: {"zipmap": False}}, None]
    return [
        {key: {"zipmap": False, "raw_scores": True}},
        {key: {"raw_scores": True}},
        {key: {"zipmap": False}},
        None,
    ]


def _explained(error: Exception, estimator: Any, opset: int) -> ExportError:
    text = str(error)
    if type(error).__name__ in ("MissingShapeCalculator", "MissingConverter"):
        for path, part in _parts(estimator):
            if f"'{type(part).__module__}.{type(part).__qualname__}'" in text:
                return UnsupportedOperator(
                    f"{type(part).__name__} in {path} has no ONNX form in skl2onnx. Replace it by an estimator "
                    "that has one, or move it out of the pipeline.",
                    operator=type(part).__name__,
                    module=path,
                )
    return ExportError(
        f"skl2onnx cannot convert {type(estimator).__name__} at opset {opset}: {_first_line(error)}"
    )


def _parts(estimator: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """An estimator and everything fitted inside it, with the way to it; steps before the whole."""
    inner = [
        *getattr(estimator, "steps", ()),
        *((n, t) for n, t, *_ in getattr(estimator, "transformers_", ())),
    ]
    inner += list(getattr(estimator, "transformer_list", ()))
    for name, part in inner:
        if not isinstance(part, str):
            yield from _parts(part, f"{path}/{name}" if path else name)
    best = getattr(estimator, "best_estimator_", None)
    if best is not None:
        yield from _parts(best, path)
    yield path or type(estimator).__name__, estimator


# --- the graph ----------------------------------------------------------------------------------------------


def _keep_outputs(graph: onnx.GraphProto, answers: Feeds) -> None:
    """Make the graph give what the source gives, in rank too; what the source was not asked for goes.

    Raises:
        ExportError: If the graph gives fewer outputs, or one that is no tensor.
    """
    given = list(graph.output)
    if len(given) < len(answers):
        raise ExportError(
            f"skl2onnx gives the outputs {[v.name for v in given]}, the source {list(answers)}."
        )
    kept = []
    for value, (name, answer) in zip(given, answers.items(), strict=False):
        rank = len(value.type.tensor_type.shape.dim)
        if not value.type.HasField("tensor_type"):
            raise ExportError(f"skl2onnx gives {name!r} as a sequence or map, not as a tensor.")
        if rank == 2 and answer.ndim == 1:
            value = _squeezed(graph, value)
        elif rank != answer.ndim:
            # skl2onnx declares one axis for the labels of several classes at once, and gives two, as it should.
            value.type.tensor_type.ClearField("shape")
        kept.append(value)
    del graph.output[:]
    graph.output.extend(kept)


def _squeezed(graph: onnx.GraphProto, value: onnx.ValueInfoProto) -> onnx.ValueInfoProto:
    """A graph output [n, 1] as [n]. Squeeze and not Reshape: it fails if the axis is not 1 after all."""
    name, axes = f"{value.name}_flat", f"{value.name}_flat_axes"
    graph.initializer.append(onnx.numpy_helper.from_array(np.array([1], np.int64), axes))
    graph.node.append(onnx.helper.make_node("Squeeze", [value.name, axes], [name], name=name))
    return onnx.helper.make_tensor_value_info(name, value.type.tensor_type.elem_type, [None])


def _merge_opsets(model: onnx.ModelProto) -> None:
    """One entry a domain: skl2onnx writes the default domain twice, and a strict reader keeps the wrong one."""
    versions: dict[str, int] = {}
    for entry in model.opset_import:
        versions[entry.domain] = max(entry.version, versions.get(entry.domain, 0))
    del model.opset_import[:]
    model.opset_import.extend(onnx.helper.make_opsetid(domain, v) for domain, v in sorted(versions.items()))
