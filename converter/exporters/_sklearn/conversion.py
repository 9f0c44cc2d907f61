"""The call of skl2onnx: types, options, and errors that name the step without an ONNX form."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import onnx

from paritygate.converter.errors import ExportError, UnsupportedOperator
from paritygate.converter.exporters._sklearn.encoders import encoder_converters
from paritygate.converter.exporters._sklearn.features import feature_converters
from paritygate.converter.exporters._sklearn.files import first_line
from paritygate.converter.exporters._sklearn.kernels import kernel_converters
from paritygate.converter.exporters._sklearn.mended import mended_converters, refuse_wrong
from paritygate.converter.exporters._sklearn.texts import (
    is_vectorizer,
    refuse_unlike,
    token_pattern,
    vectorizer_options,
)
from paritygate.converter.exporters._sklearn.tokenizers import settle_tokenizers
from paritygate.converter.exporters._sklearn.trees import known_to_skl2onnx, own_converters
from paritygate.converter.types import DType, TensorSpec


def to_onnx(estimator: Any, types: Any, opsets: dict[str, int], options: Any) -> onnx.ModelProto:
    """One call of skl2onnx, with our own converters for trees."""
    import skl2onnx

    for path, part in parts(estimator):
        refuse_wrong(path, part)
        refuse_unlike(path, part)
    own, mended = own_converters(), mended_converters()
    others = (
        kernel_converters().conversions | feature_converters().conversions | encoder_converters().conversions
    )
    with warnings.catch_warnings(), known_to_skl2onnx(own), _as_skl2onnx_reads(estimator):
        # What skl2onnx still reads of scikit-learn's old attributes is not the user's concern.
        for kind in (DeprecationWarning, FutureWarning):
            warnings.simplefilter("ignore", kind)
        model: onnx.ModelProto = skl2onnx.convert_sklearn(
            estimator,
            initial_types=types,
            target_opset=opsets,
            options=options,
            custom_conversion_functions=own.conversions | mended.conversions | others,
            custom_shape_calculators=own.shapes | mended.shapes,
            custom_parsers=own.parsers,
        )
    patterns = [token_pattern(path, part) for path, part in parts(estimator) if is_vectorizer(part)]
    settle_tokenizers(model.graph, {pattern.expression: pattern for pattern in patterns})
    return model


@contextmanager
def _as_skl2onnx_reads(estimator: Any) -> Iterator[None]:
    """Set aside, during one call, what skl2onnx reads wrongly in a fitted estimator.

    It refuses voting for `flatten_transform`, which only `transform` reads and nobody serves, takes weights of
    votes for an array and counts those of dropped members, and takes the truth values of a column mask for the
    places 0 and 1.
    """
    before: list[tuple[Any, str, Any]] = []

    def put(part: Any, name: str, value: Any) -> None:
        before.append((part, name, getattr(part, name)))
        setattr(part, name, value)

    for _, part in parts(estimator):
        if getattr(part, "flatten_transform", False) is True:
            put(part, "flatten_transform", False)
        if type(part).__name__ in ("VotingClassifier", "VotingRegressor") and part.weights is not None:
            members = zip(part.estimators, part.weights, strict=True)
            put(part, "weights", np.array([weight for (_, member), weight in members if member != "drop"]))
        if hasattr(part, "transformers_"):
            put(
                part, "transformers_", [(*entry[:2], _without_mask(entry[2])) for entry in part.transformers_]
            )
    try:
        yield
    finally:
        for part, name, value in reversed(before):
            setattr(part, name, value)


def _without_mask(columns: Any) -> Any:
    """A mask of columns as their places."""
    if isinstance(columns, str | int | slice) or np.asarray(columns).dtype != np.bool_:
        return columns
    return np.flatnonzero(columns).tolist()


ML_OPSET = 3
"""Version of the operator set for trees and linear models; skl2onnx 1.20 refuses later ones for some models."""


def skl_type(spec: TensorSpec) -> Any:
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


def conversion_options(estimator: Any) -> list[dict[int, dict[str, Any]]]:
    """What to ask skl2onnx for, best first: no ZipMap (a sequence of maps is no tensor), raw scores without it."""
    from sklearn.base import is_classifier

    texts = {
        id(part): vectorizer_options(path, part) for path, part in parts(estimator) if is_vectorizer(part)
    }
    if not is_classifier(estimator):
        return [texts]
    # The last step and not the pipeline: what stands at a pipeline reaches steps that have no such option.
    key = id(_last(estimator))
    if hasattr(estimator, "predict_proba"):
        return [{key: {"zipmap": False}, **texts}, {key: {}, **texts}]
    return [
        {key: {"zipmap": False, "raw_scores": True}, **texts},
        {key: {"raw_scores": True}, **texts},
        {key: {"zipmap": False}, **texts},
        {key: {}, **texts},
    ]


def _last(estimator: Any) -> Any:
    while getattr(estimator, "steps", None):
        estimator = estimator.steps[-1][1]
    return estimator


def explained(error: Exception, estimator: Any, opset: int) -> ExportError:
    """An error of skl2onnx, or one of our own converters, as one line that names the step."""
    if isinstance(error, ExportError):
        return error
    text = str(error)
    unknown = type(error).__name__ in ("MissingShapeCalculator", "MissingConverter")
    for path, part in parts(estimator):
        if unknown and f"'{type(part).__module__}.{type(part).__qualname__}'" in text:
            return UnsupportedOperator(
                f"{type(part).__name__} in {path} has no ONNX form in skl2onnx. Replace it by an estimator "
                "that has one, or move it out of the pipeline.",
                operator=type(part).__name__,
                module=path,
            )
        if isinstance(error, NotImplementedError) and is_vectorizer(part):
            return UnsupportedOperator(
                f"{type(part).__name__} in {path} has no ONNX form as it is set: {first_line(error)}",
                operator=type(part).__name__,
                module=path,
            )
    return ExportError(
        f"skl2onnx cannot convert {type(estimator).__name__} at opset {opset}: {first_line(error)}"
    )


def parts(estimator: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """An estimator and everything fitted inside it, with the way to it; steps before the whole."""
    inner = [
        *getattr(estimator, "steps", ()),
        *((n, t) for n, t, *_ in getattr(estimator, "transformers_", ())),
    ]
    inner += list(getattr(estimator, "transformer_list", ()))
    for name, part in inner:
        if not isinstance(part, str):
            yield from parts(part, f"{path}/{name}" if path else name)
    inner_estimators = [getattr(estimator, "best_estimator_", None), getattr(estimator, "estimator_", None)]
    calibrated = [entry.estimator for entry in getattr(estimator, "calibrated_classifiers_", ())]
    members = np.asarray(getattr(estimator, "estimators_", ()), dtype=object).ravel().tolist()
    for part in [*inner_estimators, *calibrated, *members]:
        if part is not None and not isinstance(part, str) and not hasattr(part, "tree_"):
            yield from parts(part, path)
    yield path or type(estimator).__name__, estimator
