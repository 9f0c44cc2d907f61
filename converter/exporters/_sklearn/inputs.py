"""What a user gives as an example, as the arrays that a served estimator takes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from paritygate.converter.errors import ExportError
from paritygate.converter.types import Array

MATRIX_INPUT = "x"


def num_features(estimator: Any) -> int:
    width = getattr(estimator, "n_features_in_", None)
    if width is None:
        raise ExportError(
            f"{type(estimator).__name__} does not say how many features it takes. Give an example (inputs=array) "
            "or words (inputs='x:float32[batch,4]')."
        )
    return int(width)


def as_columns(inputs: Any) -> dict[str, Any] | None:
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


def as_served(name: str, value: Any, notes: list[str]) -> Array:
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
