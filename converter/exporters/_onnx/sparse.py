"""Sparse weights as dense ones: neither the reference evaluator nor onnx's shape inference reads them."""

from __future__ import annotations

import math

import numpy as np
import onnx
from onnx import helper, numpy_helper

from paritygate.converter.errors import ExportError, SourceError
from paritygate.converter.graph.inspect import is_external
from paritygate.converter.types import Array

MAX_DENSE_BYTES = 2**30
"""What all sparse weights together may take: a few bytes of a file can stand for any number of zeros."""

_MAX_RANK = 32


def store_densely(graph: onnx.GraphProto) -> list[str]:
    """Turn every sparse weight of a graph into a dense one of the same numbers, in place.

    Returns:
        A sentence for the manifest, if there was any.

    Raises:
        ExportError: If they would take more than `MAX_DENSE_BYTES`.
        SourceError: If their indices lie outside of them, or their values in another file.
    """
    names = [sparse.values.name for sparse in graph.sparse_initializer]
    total = 0
    for sparse in graph.sparse_initializer:
        total += _dense_bytes(sparse)
        if total > MAX_DENSE_BYTES:
            raise ExportError(
                f"the sparse weight {sparse.values.name!r} of shape {list(sparse.dims)} and those before it would "
                f"take {total} bytes; expected at most {MAX_DENSE_BYTES} in sum. Export the model without them."
            )
    for sparse in graph.sparse_initializer:
        graph.initializer.append(numpy_helper.from_array(_dense(sparse), sparse.values.name))
    del graph.sparse_initializer[:]
    return [f"Sparse weights were stored densely: {', '.join(names)}."] if names else []


def _dense_bytes(sparse: onnx.SparseTensorProto) -> int:
    """How large a sparse weight is once it is dense, in bytes; nothing of it is read."""
    for tensor in (sparse.values, sparse.indices):
        if is_external(tensor):
            raise SourceError(
                f"the sparse weight {sparse.values.name!r} has values in another file, which no writer makes; it "
                "was not read. Export the model again."
            )
    if any(size < 0 for size in sparse.dims) or len(sparse.dims) > _MAX_RANK:
        raise SourceError(
            f"the sparse weight {sparse.values.name!r} has the shape {list(sparse.dims)[:_MAX_RANK]}."
        )
    try:
        width = np.dtype(helper.tensor_dtype_to_np_dtype(sparse.values.data_type)).itemsize
    except KeyError as error:
        raise SourceError(
            f"the sparse weight {sparse.values.name!r} has the element type {sparse.values.data_type}, which onnx "
            "does not know; export the model again."
        ) from error
    return int(math.prod(sparse.dims) * width)


def _dense(sparse: onnx.SparseTensorProto) -> Array:
    shape, name = tuple(sparse.dims), sparse.values.name
    try:
        values, indices = numpy_helper.to_array(sparse.values), numpy_helper.to_array(sparse.indices)
        dense = np.zeros(shape, values.dtype)
        places = np.unravel_index(indices, shape) if indices.ndim == 1 else tuple(indices.T)
        dense[places] = values
    except (ValueError, LookupError, TypeError, OverflowError) as error:
        raise SourceError(
            f"the sparse weight {name!r} of shape {list(shape)} has indices that do not fit it "
            f"({error}); export the model again."
        ) from error
    return dense
