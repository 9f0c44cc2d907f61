"""What a user gives as an example, as the arrays that a served estimator takes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from paritygate.converter.errors import ExportError
from paritygate.converter.exporters._sklearn.conversion import parts
from paritygate.converter.exporters._sklearn.texts import takes_texts
from paritygate.converter.types import Array, DType

MATRIX_INPUT, TEXT_INPUT = "x", "text"


def undeclared_input(estimator: Any) -> tuple[str, DType, int]:
    """Name, dtype and width of the one input of an estimator for which the user gave no example.

    Raises:
        ExportError: If the estimator takes several columns of its own types, or does not say how many.
    """
    if takes_texts(estimator):
        return TEXT_INPUT, DType.STRING, 1
    names = [str(name) for name in getattr(estimator, "feature_names_in_", ())]
    if names and splits_columns(estimator):
        raise ExportError(
            f"{type(estimator).__name__} was fitted on the columns {names}, whose types it does not keep. Give an "
            f"example (inputs=frame.head(), --samples FILE.npz with an array for each), or words for each "
            f"('{names[0]}:float32[batch,1]', --input, ...)."
        )
    width = getattr(estimator, "n_features_in_", None)
    if width is None:
        raise ExportError(
            f"{type(estimator).__name__} does not say how many features it takes. Give an example (inputs=array) "
            "or words (inputs='x:float32[batch,4]')."
        )
    return MATRIX_INPUT, DType.FLOAT32, int(width)


def splits_columns(estimator: Any) -> bool:
    """Whether a part of it picks columns by their names."""
    return any(hasattr(part, "transformers_") for _, part in parts(estimator))


def as_columns(inputs: Any, estimator: Any) -> dict[str, Any] | None:
    """The user's example as named arrays.

    A matrix is `x`, texts are `text`. A data frame is one array a column, unless it holds nothing but floats and
    no part of the estimator picks columns: then it is the matrix that it stands for.

    Raises:
        ExportError: If the columns of such a frame are not those that the estimator was fitted on.
    """
    if inputs is None:
        return None
    if isinstance(inputs, tuple | list) and len(inputs) == 1 and hasattr(inputs[0], "shape"):
        inputs = inputs[0]
    if hasattr(inputs, "columns") and hasattr(inputs, "to_numpy"):
        columns = {str(name): inputs[name].to_numpy() for name in inputs.columns}
        if not _is_plain(columns, estimator):
            return columns
        _check_order(list(columns), estimator)
        return {MATRIX_INPUT: np.stack(list(columns.values()), axis=1)}
    if isinstance(inputs, Mapping):
        return {str(name): value for name, value in inputs.items()}
    return {TEXT_INPUT if takes_texts(estimator) else MATRIX_INPUT: inputs}


def _is_plain(columns: Mapping[str, Array], estimator: Any) -> bool:
    floats = all(array.dtype.kind == "f" for array in columns.values())
    return floats and not splits_columns(estimator)


def _check_order(columns: list[str], estimator: Any) -> None:
    names = [str(name) for name in getattr(estimator, "feature_names_in_", columns)]
    if columns != names:
        missing, unknown = sorted(set(names) - set(columns)), sorted(set(columns) - set(names))
        said = f"missing {missing}, unknown {unknown}" if missing or unknown else "in another order"
        raise ExportError(
            f"the example's columns are not those that {type(estimator).__name__} was fitted on: {said}; "
            f"expected {names}."
        )


def as_served(name: str, value: Any, notes: list[str]) -> Array:
    """One input of the example in the type and rank in which it will be served.

    Raises:
        ExportError: If it is no matrix and no column.
    """
    array = np.asarray(value)
    if array.ndim == 1 and (name != MATRIX_INPUT or array.dtype.kind in "OUS"):
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
        return _as_texts(name, array, notes)
    return array


def _as_texts(name: str, array: Array, notes: list[str]) -> Array:
    missing = np.array([not isinstance(value, str | bytes | np.str_) for value in array.ravel()])
    if array.dtype.kind == "O" and missing.any():
        notes.append(
            f"Input {name!r} is texts: what else stands in the example (a missing value, a number) was turned "
            "into its text, since ONNX has no missing text."
        )
    return array.astype(str).astype(object)
