"""A graph under construction: nodes, constants by content, and the columns that values are.

Every value is a column, float64[rows, 1]; NaN is missing. Texts are numbers of a vocabulary that holds whatever
the file names, and -1 for any other text. So all fields are alike to trees, predicates and tables.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from paritygate.converter.types import Array

ML = "ai.onnx.ml"
ML_OPSET = 3
"""The first one whose trees compare doubles."""

OTHER_TEXT = -1.0


@dataclass(frozen=True)
class Column:
    """A value in every row.

    Attributes:
        name: float64[rows, 1].
        data_type: As PMML calls it; texts are numbers of the vocabulary.
        may_miss: Whether it can be NaN.
        closed: For texts: whether it is always one of the vocabulary.
    """

    name: str
    data_type: str
    may_miss: bool
    closed: bool = False


@dataclass(frozen=True)
class Truth:
    """A predicate in every row: bool[rows, 1].

    Attributes:
        true: Where it holds.
        open: Where a missing value leaves it open; None if that cannot be.
    """

    true: str
    open: str | None = None


class Graph:
    """Collects nodes and constants; the same constant is stored once."""

    def __init__(self, opset: int, taken: Sequence[str]) -> None:
        self.opset = opset
        self.prefix = "pmml"
        while any(name.startswith(self.prefix) for name in taken):
            self.prefix += "_"
        self.nodes: list[onnx.NodeProto] = []
        self.initializers: list[onnx.TensorProto] = []
        self._constants: dict[tuple[str, tuple[int, ...], bytes], str] = {}
        self._made: dict[tuple[Any, ...], str] = {}
        self._encoders: list[onnx.NodeProto] = []
        self.vocabulary: dict[str, int] = {}
        self.rows = ""

    # --- nodes ----------------------------------------------------------------------------------------------

    def op(self, kind: str, *inputs: str, domain: str = "", **attributes: Any) -> str:
        """Add a node with one output, or find the same one again."""
        key = (kind, inputs, tuple(sorted((k, repr(v)) for k, v in attributes.items())))
        if domain == "" and key in self._made:
            return self._made[key]
        name = f"{self.prefix}/{kind}_{len(self.nodes)}"
        self.nodes.append(
            helper.make_node(kind, list(inputs), [name], name=name, domain=domain, **attributes)
        )
        self._made[key] = name
        return name

    def constant(self, array: Array) -> str:
        """A constant tensor."""
        array = np.ascontiguousarray(array)
        if array.dtype == object:
            key = ("string", array.shape, "\0".join(map(str, array.ravel())).encode())
        else:
            key = (str(array.dtype), array.shape, array.tobytes())
        if key not in self._constants:
            name = f"{self.prefix}/constant_{len(self.initializers)}"
            self.initializers.append(numpy_helper.from_array(array, name))
            self._constants[key] = name
        return self._constants[key]

    def number(self, value: float) -> str:
        """A constant that any column can be combined with: float64[1, 1]."""
        return self.constant(np.array([[value]], dtype=np.float64))

    def ints(self, *values: int) -> str:
        """A constant vector of int64."""
        return self.constant(np.array(values, dtype=np.int64))

    def product(self, matrix: str, weights: Array) -> str:
        """float64[rows, k] times float64[k, n].

        onnxruntime folds a scalar factor before a MatMul into an attribute of single precision, also for doubles.
        Only single columns are ever scaled right before, and those are multiplied here without a MatMul.
        """
        kind = "Mul" if weights.shape[0] == 1 else "MatMul"
        return self.op(kind, matrix, self.constant(weights))

    def cast(self, name: str, to: int) -> str:
        """A tensor in another element type."""
        return self.op("Cast", name, to=to)

    # --- columns --------------------------------------------------------------------------------------------

    def filled(self, value: float) -> str:
        """A column that is the same in every row."""
        shape = self.op("Shape", self.rows)
        return self.op(
            "ConstantOfShape", shape, value=numpy_helper.from_array(np.array([value], dtype=np.float64))
        )

    def everywhere(self, value: bool) -> str:
        """A truth that is the same in every row."""
        shape = self.op("Shape", self.rows)
        return self.op("ConstantOfShape", shape, value=numpy_helper.from_array(np.array([value])))

    def side_by_side(self, names: Sequence[str]) -> str:
        """Columns as one matrix."""
        return names[0] if len(names) == 1 else self.op("Concat", *names, axis=1)

    def where(self, condition: str, yes: str, no: str) -> str:
        """Elementwise choice."""
        return self.op("Where", condition, yes, no)

    def missing(self, column: Column) -> str | None:
        """Where a column is missing; None if it never is."""
        return self.op("IsNaN", column.name) if column.may_miss else None

    def either(self, *conditions: str | None) -> str | None:
        """Where any of some conditions holds; None is one that never does."""
        found: str | None = None
        for condition in dict.fromkeys(conditions):
            if condition is not None:
                found = condition if found is None else self.op("Or", found, condition)
        return found

    def any_of(self, matrix: str) -> str:
        """bool[rows, k] to bool[rows, 1]: where any holds."""
        numbers = self.cast(matrix, onnx.TensorProto.INT32)
        return self.cast(self.reduced("ReduceMax", numbers, 1), onnx.TensorProto.BOOL)

    def reduced(self, kind: str, tensor: str, axis: int) -> str:
        """A reduction along an axis, which stays with size 1."""
        if self.opset >= 18:  # the axes became an input
            return self.op(kind, tensor, self.ints(axis), keepdims=1)
        return self.op(kind, tensor, axes=[axis], keepdims=1)

    def sum_of(self, tensor: str, axis: int, *, keep: bool = True) -> str:
        """The sum along an axis."""
        return self.op("ReduceSum", tensor, self.ints(axis), keepdims=int(keep))

    def member(self, column: Column, values: Sequence[float]) -> str:
        """Where a column is one of some values; nowhere if it is missing."""
        if not values:
            return self.everywhere(False)
        wanted = np.array([sorted(set(values))], dtype=np.float64)
        equal = self.op("Equal", column.name, self.constant(wanted))
        return equal if wanted.size == 1 else self.any_of(equal)

    # --- texts ----------------------------------------------------------------------------------------------

    def code(self, text: str) -> float:
        """The number of a text."""
        return float(self.vocabulary.setdefault(text, len(self.vocabulary)))

    def encoded(self, texts: str) -> str:
        """A string column as numbers; what the vocabulary will hold is filled in at the end."""
        name = f"{self.prefix}/LabelEncoder_{len(self.nodes)}"
        node = helper.make_node("LabelEncoder", [texts], [name], name=name, domain=ML, default_int64=-1)
        self.nodes.append(node)
        self._encoders.append(node)
        return self.cast(name, onnx.TensorProto.DOUBLE)

    def decoded(self, column: Column) -> str:
        """Numbers of the vocabulary as texts, the empty one where missing."""
        words = [*self.vocabulary, ""]
        code = self.where(self.op("IsNaN", column.name), self.number(len(words) - 1), column.name)
        table = np.empty(len(words), dtype=object)
        table[:] = words
        return self.op("Gather", self.constant(table), self.cast(code, onnx.TensorProto.INT64), axis=0)

    def finish_texts(self) -> None:
        """Give the encoders the vocabulary, which is whole now."""
        words = self.vocabulary or {"": 0}
        for node in self._encoders:
            node.attribute.append(helper.make_attribute("keys_strings", list(words)))
            node.attribute.append(helper.make_attribute("values_int64s", list(words.values())))


def single(value: float) -> float:
    """A number as single precision holds it."""
    if math.isnan(value) or math.isinf(value):
        return value
    with np.errstate(over="ignore"):
        return float(np.array(value, dtype=np.float64).astype(np.float32))
