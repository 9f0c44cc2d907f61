"""What torch computes by log1p and expm1, in the forms of `exporters/near_zero.py`, for both of torch's exporters.

They write log1p and expm1 with a 1 added or subtracted, and logarithms of sums as they read: logaddexp overflows
and logsigmoid underflows there, where torch does neither. Types narrower than float32 are computed in float32, as
torch does.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import onnx_ir as ir
import torch
from onnxscript import opset18
from onnxscript.function_libs.torch_lib.ops import core, nn, special
from onnxscript.function_libs.torch_lib.tensor_typing import TFloat

from paritygate.converter.exporters import near_zero

_SELU = {"alpha": 1.6732632423543772848170429916717, "scale": 1.0507009873554804934193349852946}
"""Source: aten/src/ATen/native/Activation.cpp, SELU_ALPHA and SELU_SCALE."""

# --- torch.export's programs --------------------------------------------------------------------------------

_FLOATS = (ir.DataType.FLOAT, ir.DataType.DOUBLE)
_NARROW = (ir.DataType.FLOAT16, ir.DataType.BFLOAT16)


class _Traced:
    """See `near_zero.Writer`: nodes of onnxscript."""

    def __init__(self, dtype: ir.DataType) -> None:
        self._dtype = dtype
        self.eps = float(torch.finfo(torch.float64 if dtype == ir.DataType.DOUBLE else torch.float32).eps)

    def op(self, operator: str, *inputs: Any) -> Any:
        return getattr(opset18, operator)(*inputs)

    def number(self, value: float) -> Any:
        return opset18.Constant(value=ir.tensor(value, dtype=self._dtype))


def _translated(form: Callable[..., Any], usual: Callable[..., Any], *values: Any) -> Any:
    """The form in the type of the values; torchlib's own for types that are no floats."""
    dtype = values[0].dtype
    if dtype in _FLOATS:
        return form(_Traced(dtype), *values)
    if dtype not in _NARROW:
        return usual(*values)
    wide = (opset18.Cast(value, to=ir.DataType.FLOAT.value) for value in values)
    return opset18.Cast(form(_Traced(ir.DataType.FLOAT), *wide), to=dtype.value)


def log1p(self: TFloat) -> TFloat:
    """Translate `torch.log1p`."""
    return _translated(near_zero.log1p, core.aten_log1p, self)


def expm1(self: TFloat) -> TFloat:
    """Translate `torch.expm1`."""
    return _translated(near_zero.expm1, special.aten_special_expm1, self)


def elu(self: TFloat, alpha: float = 1.0, scale: float = 1.0, input_scale: float = 1.0) -> TFloat:
    """Translate `torch.nn.functional.elu`."""

    def form(write: near_zero.Writer, x: Any) -> Any:
        return near_zero.elu(write, x, alpha=float(alpha), scale=float(scale), input_scale=float(input_scale))

    return _translated(form, lambda x: nn.aten_elu(x, alpha, scale, input_scale), self)


def selu(self: TFloat) -> TFloat:
    """Translate `torch.nn.functional.selu`."""
    return elu(self, **_SELU)


def celu(self: TFloat, alpha: float = 1.0) -> TFloat:
    """Translate `torch.nn.functional.celu`."""
    return elu(self, alpha, 1.0, 1.0 / float(alpha))


def log_sigmoid(self: TFloat) -> TFloat:
    """Translate `torch.nn.functional.logsigmoid`."""
    return _translated(near_zero.log_sigmoid, nn.aten_log_sigmoid, self)


def logaddexp(self: TFloat, other: TFloat) -> TFloat:
    """Translate `torch.logaddexp`."""
    return _translated(near_zero.log_add_exp, core.aten_logaddexp, self, other)


def logaddexp2(self: TFloat, other: TFloat) -> TFloat:
    """Translate `torch.logaddexp2`."""
    return _translated(near_zero.log_add_exp2, core.aten_logaddexp2, self, other)


def translations() -> dict[Callable[..., Any], Callable[..., Any]]:
    """Torch operator -> its ONNX form, as `torch.onnx.export` takes them."""
    aten = torch.ops.aten
    return {
        aten.log1p.default: log1p,
        aten.expm1.default: expm1,
        aten.special_expm1.default: expm1,
        aten.elu.default: elu,
        aten.selu.default: selu,
        aten.celu.default: celu,
        aten.log_sigmoid.default: log_sigmoid,
        aten.logaddexp.default: logaddexp,
        aten.logaddexp2.default: logaddexp2,
    }


# --- scripts ------------------------------------------------------------------------------------------------

_FIRST_OPSET = 15
"""Of CastLike: the types of a script's values are not known, so that a constant takes one when the graph runs."""


class _Scripted:
    """See `near_zero.Writer`: nodes of a script's graph, in the type of a value."""

    eps = 2.0**-52  # of the widest type, which serves the others as well

    def __init__(self, graph: Any, like: Any) -> None:
        self._graph = graph
        self._like = like

    def op(self, operator: str, *inputs: Any) -> Any:
        return self._graph.op(operator, *inputs)

    def number(self, value: float) -> Any:
        wide = self._graph.op("Constant", value_t=torch.tensor(value, dtype=torch.float64))
        return self._graph.op("CastLike", wide, self._like)


def _known(value: Any) -> float:
    """A number that the script gives as a constant."""
    return float(value.node().t("value"))


def _scripted(form: Callable[..., Any]) -> Callable[..., Any]:
    return lambda graph, *values: form(_Scripted(graph, values[0]), *values)


def _scripted_elu(graph: Any, x: Any, *numbers: Any) -> Any:
    alpha, scale, input_scale = (_known(number) for number in numbers)
    return near_zero.elu(_Scripted(graph, x), x, alpha=alpha, scale=scale, input_scale=input_scale)


def _scripted_selu(graph: Any, x: Any) -> Any:
    return near_zero.elu(_Scripted(graph, x), x, **_SELU)


def _scripted_celu(graph: Any, x: Any, number: Any) -> Any:
    alpha = _known(number)
    return near_zero.elu(_Scripted(graph, x), x, alpha=alpha, input_scale=1.0 / alpha)


_SYMBOLICS: dict[str, Callable[..., Any]] = {
    "aten::log1p": _scripted(near_zero.log1p),
    "aten::expm1": _scripted(near_zero.expm1),
    "aten::elu": _scripted_elu,
    "aten::selu": _scripted_selu,
    "aten::celu": _scripted_celu,
    "aten::log_sigmoid": _scripted(near_zero.log_sigmoid),
    "aten::logaddexp": _scripted(near_zero.log_add_exp),
    "aten::logaddexp2": _scripted(near_zero.log_add_exp2),
}


@contextlib.contextmanager
def in_scripts(opset: int) -> Iterator[None]:
    """Let torch's exporter of scripts write these forms, for this block only."""
    if opset < _FIRST_OPSET:
        yield
        return
    for name, symbolic in _SYMBOLICS.items():
        torch.onnx.register_custom_op_symbolic(name, symbolic, opset)
    try:
        yield
    finally:
        for name in _SYMBOLICS:
            torch.onnx.unregister_custom_op_symbolic(name, opset)
