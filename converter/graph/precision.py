"""In which precision a model computes, read off its weights and inputs."""

from __future__ import annotations

import math
from collections import Counter

import onnx

from paritygate.converter.graph.inspect import graph_signature, tensors
from paritygate.converter.types import DType

_FLOATS = {dtype.onnx: dtype for dtype in DType if dtype.is_floating}
_COARSE_FIRST = (DType.BFLOAT16, DType.FLOAT16, DType.FLOAT32, DType.FLOAT64)


def working_precision(model: onnx.ModelProto) -> DType | None:
    """The precision that bounds how exact an output can be; None if there are no floats.

    It is the coarser of two: the coarsest float input, and the float type that holds most weight elements.
    Counting elements keeps one half-precision constant in a float32 model from loosening all tolerances.
    """
    counts: Counter[DType] = Counter()
    for tensor in tensors(model):
        if tensor.data_type in _FLOATS:
            counts[_FLOATS[tensor.data_type]] += math.prod(tensor.dims)
    found = {spec.dtype for spec in graph_signature(model).inputs if spec.dtype.is_floating}
    if counts:
        found.add(counts.most_common(1)[0][0])
    return min(found, key=_COARSE_FIRST.index, default=None)
