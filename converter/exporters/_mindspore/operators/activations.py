"""Activations, each from the formula that MindSpore documents."""

from __future__ import annotations

import math

import numpy as np

from paritygate.converter.exporters._mindspore.emitter import Call, NoForm
from paritygate.converter.exporters._mindspore.operators.arithmetic import elu, log1p
from paritygate.converter.exporters._mindspore.operators.table import Handler, Table
from paritygate.converter.exporters._mindspore.values import Value

TABLE = Table()


def _plain(op: str) -> Handler:
    def write(call: Call) -> Value:
        return call.give(call.op(op, call[0]))

    return write


for _primitive, _op in {
    "ReLU": "Relu", "Sigmoid": "Sigmoid", "Tanh": "Tanh", "HSwish": "HardSwish", "Mish": "Mish", "MishExt": "Mish",
    "Softsign": "Softsign",
}.items():  # fmt: skip
    TABLE[_primitive] = _plain(_op)


@TABLE.of("SiLU")
def _silu(call: Call) -> Value:
    return call.give(call.op("Mul", call[0], call.op("Sigmoid", call[0])))


@TABLE.of("ReLU6")
def _relu6(call: Call) -> Value:
    dtype = call.out.dtype
    return call.give(call.op("Clip", call[0], call.number(0, dtype), call.number(6, dtype)))


@TABLE.of("Hardtanh")
def _hardtanh(call: Call) -> Value:
    dtype = call.out.dtype
    bounds = call.number(call.static(1, -1), dtype), call.number(call.static(2, 1), dtype)
    return call.give(call.op("Clip", call[0], *bounds))


@TABLE.of("HSigmoid")
def _hard_sigmoid(call: Call) -> Value:
    return call.give(call.op("HardSigmoid", call[0], alpha=1 / 6, beta=0.5))


_SELU_ALPHA, _SELU_SCALE = 1.6732632423543772848170429916717, 1.0507009873554804934193349852946


@TABLE.of("Elu", "EluExt")
def _elu(call: Call) -> Value:
    return call.give(call.op("Elu", call[0], alpha=float(call.static(1, 1.0))))


@TABLE.of("CeLU")
def _celu(call: Call) -> Value:
    alpha = float(call.static(1, 1.0))
    return call.give(elu(call, alpha=alpha, input_scale=1.0 / alpha))


@TABLE.of("SeLU", "SeLUExt")
def _selu(call: Call) -> Value:
    return call.give(elu(call, alpha=_SELU_ALPHA, scale=_SELU_SCALE))


@TABLE.of("LeakyReLUExt")
def _leaky(call: Call) -> Value:
    return call.give(call.op("LeakyRelu", call[0], alpha=float(call.static(1, 0.01))))


@TABLE.of("GeLU", "FastGelu")
def _gelu_tanh(call: Call) -> Value:
    return call.give(_tanh_gelu(call))


@TABLE.of("GeluExt")
def _gelu(call: Call) -> Value:
    # The kind is an enumeration or its name.
    return call.give(_tanh_gelu(call) if call.static(1, "none") in ("tanh", 1) else _erf_gelu(call))


def _tanh_gelu(call: Call) -> str:
    dtype, x = call.out.dtype, call[0]
    cube = call.op("Mul", call.op("Mul", x, x), x)
    inner = call.op("Add", x, call.op("Mul", cube, call.number(0.044715, dtype)))
    wave = call.op("Tanh", call.op("Mul", inner, call.number(math.sqrt(2 / math.pi), dtype)))
    half = call.op("Mul", x, call.number(0.5, dtype))
    return call.op("Mul", half, call.op("Add", wave, call.number(1, dtype)))


def _erf_gelu(call: Call) -> str:
    dtype, x = call.out.dtype, call[0]
    wave = call.op("Erf", call.op("Mul", x, call.number(math.sqrt(0.5), dtype)))
    half = call.op("Mul", x, call.number(0.5, dtype))
    return call.op("Mul", half, call.op("Add", wave, call.number(1, dtype)))


@TABLE.of("FastGeLU")
def _fast_gelu(call: Call) -> Value:
    """x / (1 + exp(-1.702 |x|)) * exp(0.851 (x - |x|)), as MindSpore documents it."""
    dtype, x = call.out.dtype, call[0]
    size = call.op("Abs", x)
    lower = call.op("Exp", call.op("Mul", size, call.number(-1.702, dtype)))
    damp = call.op("Exp", call.op("Mul", call.op("Sub", x, size), call.number(0.851, dtype)))
    return call.give(call.op("Mul", call.op("Div", x, call.op("Add", lower, call.number(1, dtype))), damp))


def softplus(call: Call, x: str, dtype: np.dtype) -> str:
    """log(1 + exp(x)) as max(x, 0) + log1p(exp(-|x|)), which never overflows."""
    tail = log1p(call, call.op("Exp", call.op("Neg", call.op("Abs", x))), dtype)
    return call.op("Add", call.op("Max", x, call.number(0, dtype)), tail)


@TABLE.of("Softplus")
def _softplus(call: Call) -> Value:
    return call.give(softplus(call, call[0], call.out.dtype))


@TABLE.of("SoftplusExt")
def _softplus_ext(call: Call) -> Value:
    dtype, x = call.out.dtype, call[0]
    beta, threshold = call.number(call.static(1, 1), dtype), call.number(call.static(2, 20), dtype)
    scaled = call.op("Mul", x, beta)
    curve = call.op("Div", softplus(call, scaled, dtype), beta)
    return call.give(call.op("Where", call.op("Greater", scaled, threshold), x, curve))


@TABLE.of("LogSigmoid")
def _log_sigmoid(call: Call) -> Value:
    dtype = call.dtype(0)
    name = call.op("Neg", softplus(call, call.op("Neg", call[0]), dtype))
    return call.give_many([name]) if isinstance(call.abstract, list) else call.give(name)


@TABLE.of("PReLU")
def _prelu(call: Call) -> Value:
    slope, rank = call[1], call.rank(0)
    if call.shape(1) != (1,) and rank > 1:
        slope = call.reshape(slope, [-1, *[1] * (rank - 2)])
    return call.give(call.op("PRelu", call[0], slope))


@TABLE.of("HShrink")
def _hard_shrink(call: Call) -> Value:
    dtype, limit = call.out.dtype, call.number(call.static(1, 0.5), call.out.dtype)
    inside = call.op("LessOrEqual", call.op("Abs", call[0]), limit)
    return call.give(call.op("Where", inside, call.number(0, dtype), call[0]))


@TABLE.of("SoftShrink")
def _soft_shrink(call: Call) -> Value:
    limit = float(call.static(1, 0.5))
    return call.give(call.op("Shrink", call[0], lambd=limit, bias=limit))


@TABLE.of("Threshold")
def _threshold(call: Call) -> Value:
    dtype = call.out.dtype
    above = call.op("Greater", call[0], call.like(1, dtype))
    return call.give(call.op("Where", above, call[0], call.like(2, dtype)))


@TABLE.of("Softmax", "LogSoftmax", "LogSoftmaxExt")
def _softmax(call: Call) -> Value:
    axis = call.static(1, -1)
    axes = axis if isinstance(axis, tuple) else (axis,)
    if len(axes) != 1:
        raise NoForm(f"works over the axes {list(axes)} at once, and ONNX has one")
    op = "Softmax" if call.primitive == "Softmax" else "LogSoftmax"
    return call.give(call.op(op, call.like(0, call.out.dtype), axis=int(axes[0])))


@TABLE.of("GLU")
def _glu(call: Call) -> Value:
    first, second = call.ops("Split", call[0], outputs=2, axis=int(call.static(1, -1)), num_outputs=2)
    return call.give(call.op("Mul", first, call.op("Sigmoid", second)))


@TABLE.of("Swiglu")
def _swiglu(call: Call) -> Value:
    first, second = call.ops("Split", call[0], outputs=2, axis=int(call.static(1, -1)), num_outputs=2)
    return call.give(call.op("Mul", call.op("Mul", first, call.op("Sigmoid", first)), second))
