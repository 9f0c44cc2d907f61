"""Tensors as arrays and back."""

from __future__ import annotations

from typing import Any

import numpy as np

from paritygate.converter.errors import ExportError
from paritygate.converter.types import Array, DType


def to_array(tensor: Any) -> Array:
    """A tensor as an array; strings become `str` objects.

    Raises:
        ExportError: If a string is not UTF-8, which no served string tensor can hold here.
    """
    array = np.asarray(tensor.numpy())
    if array.dtype != np.dtype(object) and array.dtype.kind != "S":
        return array
    try:
        texts = [
            item.decode("utf-8") if isinstance(item, bytes) else str(item) for item in array.ravel().tolist()
        ]
    except UnicodeDecodeError as error:
        raise ExportError(f"the model gives a string that is not UTF-8: {error}.") from error
    strings = np.empty(array.shape, dtype=object)
    strings.ravel()[:] = texts
    return strings


def source_dtype(dtype: Any) -> DType:
    """Our type for a TensorFlow or Keras dtype.

    Raises:
        ExportError: If served models cannot take it.
    """
    name = getattr(dtype, "name", str(dtype))
    try:
        return DType(name)
    except ValueError as error:
        raise ExportError(f"the model takes a {name} tensor, which no served model can take.") from error


def tf_dtype(dtype: DType) -> Any:
    """TensorFlow's type for ours."""
    import tensorflow as tf

    return tf.dtypes.as_dtype(dtype.value)


def to_tensor(array: Array) -> Any:
    """A constant tensor of an array, in its own dtype."""
    import tensorflow as tf

    return tf.constant(array, dtype=tf_dtype(DType.from_numpy(array.dtype)))


def is_float(array: Array) -> bool:
    """Whether an array holds floating-point numbers, bfloat16 included."""
    return DType.from_numpy(array.dtype).is_floating
