"""What stands between the sum of the leaves and the answer: in ONNX, and in float64 for the reference."""

from __future__ import annotations

import abc
from dataclasses import dataclass

import numpy as np

from paritygate.converter.exporters._trees.builder import GraphBuilder
from paritygate.converter.types import Array


class Link(abc.ABC):
    """Turns sums, [batch, output], into answers."""

    @abc.abstractmethod
    def emit(self, graph: GraphBuilder, sums: str) -> str:
        """Add the operators; gives the name of the result."""

    @abc.abstractmethod
    def compute(self, sums: Array) -> Array:
        """The same in numpy, in the precision of `sums`."""


class Identity(Link):
    """The sums themselves."""

    def emit(self, graph: GraphBuilder, sums: str) -> str:
        """Nothing to add."""
        return sums

    def compute(self, sums: Array) -> Array:
        """The sums."""
        return sums


@dataclass(frozen=True)
class Mean(Link):
    """Sums over so many trees as their mean; sums of whole votes stay whole until then, and equal if they are."""

    count: int

    def emit(self, graph: GraphBuilder, sums: str) -> str:
        """Div."""
        return graph.add("Div", sums, graph.constant(np.float32(self.count)))

    def compute(self, sums: Array) -> Array:
        """The same."""
        result: Array = sums / self.count
        return result


@dataclass(frozen=True)
class Sigmoid(Link):
    """1 / (1 + exp(-slope * x))."""

    slope: float = 1.0

    def emit(self, graph: GraphBuilder, sums: str) -> str:
        """Mul and Sigmoid."""
        if self.slope != 1.0:
            sums = graph.add("Mul", sums, graph.constant(np.float32(self.slope)))
        return graph.add("Sigmoid", sums)

    def compute(self, sums: Array) -> Array:
        """Stable on both sides."""
        exponent = np.exp(-np.abs(self.slope * sums))
        result: Array = np.where(self.slope * sums >= 0, 1.0, exponent) / (1.0 + exponent)
        return result


class Exponential(Link):
    """exp(x)."""

    def emit(self, graph: GraphBuilder, sums: str) -> str:
        """Exp."""
        return graph.add("Exp", sums)

    def compute(self, sums: Array) -> Array:
        """The exponential, which may overflow as it does in float32."""
        with np.errstate(over="ignore"):
            result: Array = np.exp(sums)
        return result


class Softmax(Link):
    """Shares of the classes."""

    def emit(self, graph: GraphBuilder, sums: str) -> str:
        """Softmax over the outputs."""
        return graph.add("Softmax", sums, axis=1)

    def compute(self, sums: Array) -> Array:
        """The same, less the largest."""
        exponents = np.exp(sums - sums.max(axis=1, keepdims=True))
        result: Array = exponents / exponents.sum(axis=1, keepdims=True)
        return result


class SignedSquare(Link):
    """sign(x) * x * x: what LightGBM's `reg_sqrt` undoes."""

    def emit(self, graph: GraphBuilder, sums: str) -> str:
        """Two multiplications."""
        return graph.add("Mul", sums, graph.add("Abs", sums))

    def compute(self, sums: Array) -> Array:
        """The same."""
        result: Array = sums * np.abs(sums)
        return result


class Softplus(Link):
    """log(1 + exp(x)): LightGBM's cross_entropy_lambda."""

    def emit(self, graph: GraphBuilder, sums: str) -> str:
        """Softplus."""
        return graph.add("Softplus", sums)

    def compute(self, sums: Array) -> Array:
        """The same, without overflow."""
        result: Array = np.logaddexp(0.0, sums)
        return result


class Positive(Link):
    """1 where x > 0, else 0: XGBoost's binary:hinge."""

    def emit(self, graph: GraphBuilder, sums: str) -> str:
        """Greater, as a float."""
        return graph.cast(graph.add("Greater", sums, graph.constant(np.float32(0))), np.float32)

    def compute(self, sums: Array) -> Array:
        """The same."""
        result: Array = (sums > 0).astype(sums.dtype)
        return result


class LargestIndex(Link):
    """The number of the largest sum, as a float, [batch, 1]: XGBoost's multi:softmax."""

    def emit(self, graph: GraphBuilder, sums: str) -> str:
        """ArgMax, as a float."""
        return graph.cast(graph.add("ArgMax", sums, axis=1, keepdims=1), np.float32)

    def compute(self, sums: Array) -> Array:
        """The first of equal ones, as ArgMax."""
        result: Array = sums.argmax(axis=1)[:, None].astype(sums.dtype)
        return result
