"""log1p, expm1 and what frameworks compute by them, in ONNX operators, with their digits kept near zero.

ONNX has neither operator. Converters write log(1 + x), which is 0 for every x below half a unit in the last place
of 1, and exp(x) - 1; onnxruntime's kernels of Elu, Celu and Selu subtract that 1, too. Where a framework says
log1p or expm1 these forms are written; a user's own log(1 + x) is left alone, as it loses its digits in the
framework too.

In onnxruntime's float32 and float64 the forms are within a few units in the last place for every finite x, and
give what the framework gives for infinities and for no number.
"""

from __future__ import annotations

from typing import Any, Protocol


class Writer(Protocol):
    """Writes nodes that compute in one floating-point type; a value is whatever the exporter calls one."""

    @property
    def eps(self) -> float:
        """The unit in the last place of 1 of the type, dimensionless."""
        ...

    def op(self, operator: str, *inputs: Any) -> Any:
        """The only output of a new node."""
        ...

    def number(self, value: float) -> Any:
        """A constant without axes, of the type."""
        ...


def log1p(write: Writer, x: Any) -> Any:
    """log(u) with u = 1 + x rounded, and for |x| below 1 what the rounding lost, over u.

    From 1 on the loss does not show in the answer, and its form would be 0 / 0 at -1 and inf - inf at infinity.

    Source: W. Kahan's correction of a rounded sum, as in the HP-15C Advanced Functions Handbook, appendix.
    """
    one = write.number(1.0)
    u = write.op("Add", x, one)
    lost = write.op("Sub", x, write.op("Sub", u, one))
    whole = write.op("Log", u)
    mended = write.op("Add", whole, write.op("Div", lost, u))
    return write.op("Where", write.op("Less", write.op("Abs", x), one), mended, whole)


def expm1(write: Writer, x: Any) -> Any:
    """The curve below zero, which for x above zero is still to be multiplied by exp(x)."""
    grown = write.op("Exp", write.op("Max", x, write.number(0.0)))
    return write.op("Mul", _curve(write, x), grown)


def _curve(write: Writer, x: Any) -> Any:
    """expm1(-|x|) with the sign of x, as 2t / (1 + |t|) with t = tanh(x / 2), in which nothing cancels.

    Below a unit in the last place of 1 it is x: onnxruntime's tanh loses digits next to the smallest float.
    """
    t = write.op("Tanh", write.op("Mul", x, write.number(0.5)))
    bent = write.op("Div", write.op("Add", t, t), write.op("Add", write.op("Abs", t), write.number(1.0)))
    straight = write.op("Less", write.op("Abs", x), write.number(write.eps))
    return write.op("Where", straight, x, bent)


def sinh(write: Writer, x: Any) -> Any:
    """The curve of 2x, which is 1 - exp(-2|x|) with the sign of x, times half of exp(|x|).

    The exponential is multiplied in by its root, as it may be infinite where the answer is not.
    """
    root = write.op("Exp", write.op("Mul", write.op("Abs", x), write.number(0.5)))
    halved = write.op("Mul", _curve(write, write.op("Add", x, x)), write.number(0.5))
    return write.op("Mul", write.op("Mul", halved, root), root)


def elu(write: Writer, x: Any, *, alpha: float = 1.0, scale: float = 1.0, input_scale: float = 1.0) -> Any:
    """scale * x above zero, and scale * alpha * expm1(input_scale * x) below."""
    zero = write.number(0.0)
    low, high = write.op("Min", x, zero), write.op("Max", x, zero)
    curve = _curve(write, _times(write, low, input_scale))
    return write.op("Add", _times(write, high, scale), _times(write, curve, alpha * scale))


def _times(write: Writer, x: Any, factor: float) -> Any:
    return x if factor == 1.0 else write.op("Mul", x, write.number(factor))


def log_sigmoid(write: Writer, x: Any) -> Any:
    """min(x, 0) - log1p(exp(-|x|)), which neither overflows nor underflows."""
    tail = log1p(write, write.op("Exp", write.op("Neg", write.op("Abs", x))))
    return write.op("Sub", write.op("Min", x, write.number(0.0)), tail)


def log_add_exp(write: Writer, x: Any, y: Any) -> Any:
    """log(exp(x) + exp(y)) as the larger one and log1p of the smaller one's part of it."""
    return write.op("Add", write.op("Max", x, y), log1p(write, write.op("Exp", _gap(write, x, y))))


def log_add_exp2(write: Writer, x: Any, y: Any) -> Any:
    """log2(2**x + 2**y)."""
    part = write.op("Pow", write.number(2.0), _gap(write, x, y))
    tail = write.op("Mul", log1p(write, part), write.number(_LOG2_E))
    return write.op("Add", write.op("Max", x, y), tail)


_LOG2_E = 1.4426950408889634


def _gap(write: Writer, x: Any, y: Any) -> Any:
    """-|x - y|, which is 0 for two infinities of one sign."""
    same = write.op("Equal", x, y)
    apart = write.op("Where", same, write.number(0.0), write.op("Sub", x, y))
    return write.op("Neg", write.op("Abs", apart))


__all__ = ["Writer", "elu", "expm1", "log1p", "log_add_exp", "log_add_exp2", "log_sigmoid", "sinh"]
