"""What each MindSpore primitive becomes in ONNX, opset 18: one table over all families."""

from __future__ import annotations

from paritygate.converter.exporters._mindspore.operators.activations import TABLE as _ACTIVATIONS
from paritygate.converter.exporters._mindspore.operators.arithmetic import TABLE as _ARITHMETIC
from paritygate.converter.exporters._mindspore.operators.comparisons import TABLE as _COMPARISONS
from paritygate.converter.exporters._mindspore.operators.convolution import TABLE as _CONVOLUTION
from paritygate.converter.exporters._mindspore.operators.indexing import TABLE as _INDEXING
from paritygate.converter.exporters._mindspore.operators.layout import TABLE as _LAYOUT
from paritygate.converter.exporters._mindspore.operators.making import TABLE as _MAKING
from paritygate.converter.exporters._mindspore.operators.matrices import TABLE as _MATRICES
from paritygate.converter.exporters._mindspore.operators.normalisation import TABLE as _NORMALISATION
from paritygate.converter.exporters._mindspore.operators.pooling import TABLE as _POOLING
from paritygate.converter.exporters._mindspore.operators.recurrent import TABLE as _RECURRENT
from paritygate.converter.exporters._mindspore.operators.reductions import TABLE as _REDUCTIONS
from paritygate.converter.exporters._mindspore.operators.resizing import TABLE as _RESIZING
from paritygate.converter.exporters._mindspore.operators.table import Handler

OPERATORS: dict[str, Handler] = {}
"""Primitive -> what writes its ONNX form."""

for _family in (
    _ACTIVATIONS, _ARITHMETIC, _COMPARISONS, _CONVOLUTION, _INDEXING, _LAYOUT, _MAKING, _MATRICES, _NORMALISATION,
    _POOLING, _RECURRENT, _REDUCTIONS, _RESIZING,
):  # fmt: skip
    for _name, _handler in _family.items():
        assert _name not in OPERATORS, f"{_name} stands in two families"
        OPERATORS[_name] = _handler
