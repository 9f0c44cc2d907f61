"""What each MindSpore primitive becomes in ONNX, opset 18: one table over all families."""

from __future__ import annotations

from paritygate.converter.exporters._mindspore.operators import (
    activations,
    arithmetic,
    comparisons,
    convolution,
    indexing,
    layout,
    making,
    matrices,
    normalisation,
    pooling,
    recurrent,
    reductions,
    resizing,
)
from paritygate.converter.exporters._mindspore.operators.table import Handler

OPERATORS: dict[str, Handler] = {}
"""Primitive -> what writes its ONNX form."""

for _family in (
    activations, arithmetic, comparisons, convolution, indexing, layout, making, matrices, normalisation,
    pooling, recurrent, reductions, resizing,
):  # fmt: skip
    for _name, _handler in _family.TABLE.items():
        assert _name not in OPERATORS, f"{_name} stands in two families"
        OPERATORS[_name] = _handler
