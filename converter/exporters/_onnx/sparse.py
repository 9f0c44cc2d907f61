"""Sparse weights as dense ones: neither the reference evaluator nor onnx's shape inference reads them."""

from __future__ import annotations

import math

import numpy as np
import onnx
from onnx import numpy_helper

from paritygate.converter.errors import ExportError, SourceError
from paritygate.converter.types import Array

MAX_DENSE_BYTES = 2**30
"""A few bytes of a file can stand for any number of zeros."""


def store_densely(graph: onnx.GraphProto) -> list[str]:
    """Turn every sparse weight of a graph into a dense one of the same numbers, in place.

    Returns:
        A sentence for the manifest, if there was any.

    Raises:
        ExportError: If one would take more than `MAX_DENSE_BYTES`.
        SourceError: If its indices lie outside of it.
    """
    names = [sparse.values.name for sparse in graph.sparse_initializer]
    for sparse in graph.sparse_initializer:
        graph.initializer.append(numpy_helper.from_array(_dense(sparse), sparse.values.name))
    del graph.sparse_initializer[:]
    return [f"Sparse weights were stored densely: {', '.join(names)}."] if names else []


def _dense(sparse: onnx.SparseTensorProto) -> Array:
    shape, name = tuple(sparse.dims), sparse.values.name
    values, indices = numpy_helper.to_array(sparse.values), numpy_helper.to_array(sparse.indices)
    size = math.prod(shape) * values.itemsize
    if size > MAX_DENSE_BYTES:
        raise ExportError(
            f"the sparse weight {name!r} of shape {list(shape)} would take {size} bytes; expected at most "
            f"{MAX_DENSE_BYTES}. Split it, or export the model without sparse weights."
        )
    try:
        dense = np.zeros(shape, values.dtype)
        places = np.unravel_index(indices, shape) if indices.ndim == 1 else tuple(indices.T)
        dense[places] = values
    except (ValueError, IndexError) as error:
        raise SourceError(
            f"the sparse weight {name!r} of shape {list(shape)} has indices that do not fit it ({error}); export "
            "the model again."
        ) from error
    return dense
