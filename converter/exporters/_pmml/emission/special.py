"""Functions that runtimes do not have in double precision, from those that they have."""

from __future__ import annotations

import math

import numpy as np
import onnx

from paritygate.converter.exporters._pmml.emission.graph import Graph
from paritygate.converter.types import Array

_FLOAT, _DOUBLE = onnx.TensorProto.FLOAT, onnx.TensorProto.DOUBLE
_FARTHEST = 1e150
"""The arc tangent of anything beyond is that of this, to the last bit."""


def arctangent(graph: Graph, name: str) -> str:
    """atan in double precision: single precision's answer t, and the small angle between t and the true one.

    tan(atan(x) - t) = (x cos t - sin t) / (cos t + x sin t) is below 1e-6, where atan(d) is d - d**3 / 3 exactly.
    """
    bounded = graph.where(graph.op("Greater", name, graph.number(_FARTHEST)), graph.number(_FARTHEST), name)
    bounded = graph.where(graph.op("Less", name, graph.number(-_FARTHEST)), graph.number(-_FARTHEST), bounded)
    guess = graph.cast(graph.op("Atan", graph.cast(bounded, _FLOAT)), _DOUBLE)
    sine, cosine = graph.op("Sin", guess), graph.op("Cos", guess)
    over = graph.op("Sub", graph.op("Mul", bounded, cosine), sine)
    under = graph.op("Add", cosine, graph.op("Mul", bounded, sine))
    small = graph.op("Div", over, under)
    cube = graph.op("Mul", graph.op("Mul", small, small), graph.op("Mul", small, graph.number(1.0 / 3.0)))
    return graph.op("Add", guess, graph.op("Sub", small, cube))


_TERMS = 40
_LAST_Z = 26.0
"""Where erfc leaves the numbers that a double can hold."""
_LEAST_T = 2.0 / (2.0 + _LAST_Z)


def normal_probability(graph: Graph, name: str) -> str:
    """The standard normal distribution function in double precision.

    With z = |x| / sqrt 2 and t = 2 / (2 + z), erfc(z) = t exp(-z**2 + P(t)), where P is smooth; P is taken as a
    Chebyshev series that is fitted here to the standard library's erfc.
    """
    z = graph.op("Div", graph.op("Abs", name), graph.number(math.sqrt(2.0)))
    far = graph.op("Greater", z, graph.number(_LAST_Z))
    z = graph.where(far, graph.number(_LAST_Z), z)
    t = graph.op("Div", graph.number(2.0), graph.op("Add", graph.number(2.0), z))
    moved = graph.op("Sub", t, graph.number(_LEAST_T))
    u = graph.op("Sub", graph.op("Mul", moved, graph.number(2.0 / (1.0 - _LEAST_T))), graph.number(1.0))
    exponent = graph.op("Sub", _series(graph, u), graph.op("Mul", z, z))
    tail = graph.op("Mul", graph.op("Mul", graph.number(0.5), t), graph.op("Exp", exponent))
    below = graph.op("Less", name, graph.number(0.0))
    return graph.where(below, tail, graph.op("Sub", graph.number(1.0), tail))


def _series(graph: Graph, u: str) -> str:
    """P by Clenshaw's recurrence."""
    fitted = np.polynomial.chebyshev.Chebyshev.interpolate(_smooth_part, _TERMS)
    coefficients = [float(c) for c in fitted.coef]
    twice = graph.op("Mul", graph.number(2.0), u)
    first, second = graph.number(0.0), graph.number(0.0)
    for coefficient in coefficients[:0:-1]:
        step = graph.op("Sub", graph.op("Mul", twice, first), second)
        first, second = graph.op("Add", step, graph.number(coefficient)), first
    series = graph.op("Sub", graph.op("Mul", u, first), second)
    return graph.op("Add", series, graph.number(coefficients[0]))


def _smooth_part(u: Array) -> Array:
    t = (u + 1.0) / 2.0 * (1.0 - _LEAST_T) + _LEAST_T
    z = 2.0 / t - 2.0
    values = [math.log(math.erfc(a) / b) + a * a for a, b in zip(z, t, strict=True)]
    return np.array(values, dtype=np.float64)
