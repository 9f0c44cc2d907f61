"""Built-in functions as operators on columns; a missing argument is NaN and mostly stays one."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TypeAlias

import onnx

from paritygate.converter.exporters._pmml.elements import Element, refuse
from paritygate.converter.exporters._pmml.emission.graph import Column, Graph
from paritygate.converter.exporters._pmml.emission.special import arctangent

_Emit: TypeAlias = Callable[[Graph, Sequence[Column]], str]

_FLOAT, _DOUBLE, _BOOL = onnx.TensorProto.FLOAT, onnx.TensorProto.DOUBLE, onnx.TensorProto.BOOL


def emit_function(element: Element, graph: Graph, columns: Sequence[Column]) -> Column:
    """The result of an Apply."""
    name = element.need("function")
    missing = any(column.may_miss for column in columns)
    if name == "if":
        return _choice(graph, columns)
    if name in _TRUTHS:
        return _truth(element, graph, columns)
    if name not in _NUMBERS:
        known = sorted({*_NUMBERS, *_TRUTHS, "if"})
        raise refuse(element, f"the function {name!r}", f"These are: {', '.join(known)}.")
    same = {column.data_type for column in columns}
    keeps = name in ("+", "-", "*", "abs") and same == {"integer"}
    whole = keeps or name in ("floor", "ceil", "round", "rint")
    # Overflow and division by zero can give NaN, which is missing, so only whole numbers are surely there.
    return Column(_NUMBERS[name](graph, columns), "integer" if whole else "double", missing or not keeps)


def _choice(graph: Graph, columns: Sequence[Column]) -> Column:
    condition, yes = columns[0], columns[1]
    no = columns[2] if len(columns) > 2 else Column(graph.number(math.nan), yes.data_type, True, closed=True)
    holds = graph.op("Equal", condition.name, graph.number(1.0))
    name = graph.where(holds, yes.name, no.name)
    gone = graph.missing(condition)
    if gone is not None:
        name = graph.where(gone, graph.number(math.nan), name)
    kinds = {yes.data_type, no.data_type}
    kind = yes.data_type if len(kinds) == 1 and yes.data_type != "float" else "double"
    may_miss = condition.may_miss or yes.may_miss or no.may_miss
    return Column(name, kind, may_miss, yes.closed and no.closed)


# --- functions that give booleans ---------------------------------------------------------------------------


def _truth(element: Element, graph: Graph, columns: Sequence[Column]) -> Column:
    name = element.need("function")
    if name in ("isMissing", "isNotMissing"):
        gone = graph.op("IsNaN", columns[0].name)
        return Column(
            graph.cast(gone if name == "isMissing" else graph.op("Not", gone), _DOUBLE), "boolean", False
        )
    open_texts = [c for c in columns if c.data_type == "string" and not c.closed]
    if len(open_texts) > 1:
        raise refuse(element, f"{name!r} of two text fields", "Compare a text field with constants.")
    holds = _TRUTHS[name](graph, columns)
    result = graph.cast(holds, _DOUBLE)
    missing = graph.either(*map(graph.missing, columns))
    if missing is not None:
        result = graph.where(missing, graph.number(math.nan), result)
    return Column(result, "boolean", missing is not None)


def _compare(kind: str, *, flip: bool = False) -> _Emit:
    def emit(graph: Graph, columns: Sequence[Column]) -> str:
        holds = graph.op(kind, columns[0].name, columns[1].name)
        return graph.op("Not", holds) if flip else holds

    return emit


def _is_in(*, flip: bool) -> _Emit:
    def emit(graph: Graph, columns: Sequence[Column]) -> str:
        found = graph.either(*(graph.op("Equal", columns[0].name, other.name) for other in columns[1:]))
        assert found is not None, "the scorer has counted the arguments"
        return graph.op("Not", found) if flip else found

    return emit


def _logic(kind: str) -> _Emit:
    def emit(graph: Graph, columns: Sequence[Column]) -> str:
        parts = [graph.op("Equal", column.name, graph.number(1.0)) for column in columns]
        result = parts[0]
        for part in parts[1:]:
            result = graph.op(kind, result, part)
        return result

    return emit


_TRUTHS: dict[str, _Emit] = {
    "isMissing": _compare("Equal"),
    "isNotMissing": _compare("Equal"),
    "equal": _compare("Equal"),
    "notEqual": _compare("Equal", flip=True),
    "lessThan": _compare("Less"),
    "lessOrEqual": _compare("LessOrEqual"),
    "greaterThan": _compare("Greater"),
    "greaterOrEqual": _compare("GreaterOrEqual"),
    "isIn": _is_in(flip=False),
    "isNotIn": _is_in(flip=True),
    "and": _logic("And"),
    "or": _logic("Or"),
    "not": lambda graph, columns: graph.op("Equal", columns[0].name, graph.number(0.0)),
}


# --- functions that give numbers ----------------------------------------------------------------------------


def _plain(kind: str) -> _Emit:
    return lambda graph, columns: graph.op(kind, *(column.name for column in columns))


def _minus(graph: Graph, columns: Sequence[Column]) -> str:
    names = [column.name for column in columns]
    return graph.op("Neg", *names) if len(names) == 1 else graph.op("Sub", *names)


def _modulo(graph: Graph, columns: Sequence[Column]) -> str:
    a, b = columns[0].name, columns[1].name
    return graph.op("Sub", a, graph.op("Mul", b, graph.op("Floor", graph.op("Div", a, b))))


def _over_those_there(reduce: str, neutral: float) -> _Emit:
    """A reduction over the arguments that are not missing; missing where none is there."""

    def emit(graph: Graph, columns: Sequence[Column]) -> str:
        matrix = graph.side_by_side([column.name for column in columns])
        if not any(column.may_miss for column in columns):
            return _reduce(graph, reduce, matrix)
        gone = graph.op("IsNaN", matrix)
        result = _reduce(graph, reduce, graph.where(gone, graph.number(neutral), matrix))
        there = graph.any_of(graph.op("Not", gone))
        return graph.where(there, result, graph.number(math.nan))

    return emit


def _reduce(graph: Graph, kind: str, matrix: str) -> str:
    return graph.sum_of(matrix, 1) if kind == "ReduceSum" else graph.reduced(kind, matrix, 1)


def _average(graph: Graph, columns: Sequence[Column]) -> str:
    matrix = graph.side_by_side([column.name for column in columns])
    gone = graph.op("IsNaN", matrix)
    total = graph.sum_of(graph.where(gone, graph.number(0.0), matrix), 1)
    return graph.op("Div", total, graph.sum_of(graph.cast(graph.op("Not", gone), _DOUBLE), 1))


def _half_up(graph: Graph, columns: Sequence[Column]) -> str:
    return graph.op("Floor", graph.op("Add", columns[0].name, graph.number(0.5)))


def _threshold(graph: Graph, columns: Sequence[Column]) -> str:
    above = graph.cast(graph.op("Greater", columns[0].name, columns[1].name), _DOUBLE)
    gone = graph.op("Or", graph.op("IsNaN", columns[0].name), graph.op("IsNaN", columns[1].name))
    return graph.where(gone, graph.number(math.nan), above)


def _expm1(graph: Graph, columns: Sequence[Column]) -> str:
    """2 sinh(x/2) exp(x/2), which keeps small numbers; sinh through tanh: t = tanh(x/2), expm1 = 2t / (1 - t)."""
    x = columns[0].name
    t = graph.op("Tanh", graph.op("Mul", x, graph.number(0.5)))
    near = graph.op("Div", graph.op("Mul", graph.number(2.0), t), graph.op("Sub", graph.number(1.0), t))
    far = graph.op("Sub", graph.op("Exp", x), graph.number(1.0))
    return graph.where(graph.op("Less", graph.op("Abs", x), graph.number(0.5)), near, far)


def _log1p(graph: Graph, columns: Sequence[Column]) -> str:
    """log(u) x / (u - 1) with u = 1 + x, which takes back what rounding u lost."""
    x = columns[0].name
    u = graph.op("Add", x, graph.number(1.0))
    rest = graph.op("Sub", u, graph.number(1.0))
    exact = graph.op("Mul", graph.op("Log", u), graph.op("Div", x, rest))
    same = graph.op("Equal", rest, graph.number(0.0))
    return graph.where(same, x, graph.where(graph.op("IsInf", u), u, exact))


def _power(graph: Graph, columns: Sequence[Column]) -> str:
    return graph.op("Pow", columns[0].name, columns[1].name)


_NUMBERS: dict[str, _Emit] = {
    "+": _plain("Add"),
    "-": _minus,
    "*": _plain("Mul"),
    "/": _plain("Div"),
    "modulo": _modulo,
    "min": _over_those_there("ReduceMin", math.inf),
    "max": _over_those_there("ReduceMax", -math.inf),
    "sum": _over_those_there("ReduceSum", 0.0),
    "product": _over_those_there("ReduceProd", 1.0),
    "avg": _average,
    "log10": lambda g, c: g.op("Div", g.op("Log", c[0].name), g.number(math.log(10.0))),
    "ln": _plain("Log"),
    "ln1p": _log1p,
    "sqrt": _plain("Sqrt"),
    "abs": _plain("Abs"),
    "exp": _plain("Exp"),
    "expm1": _expm1,
    "pow": _power,
    "threshold": _threshold,
    "floor": _plain("Floor"),
    "ceil": _plain("Ceil"),
    "round": _half_up,
    "rint": _plain("Round"),
    "sin": _plain("Sin"),
    "cos": _plain("Cos"),
    "tan": lambda g, c: g.op("Div", g.op("Sin", c[0].name), g.op("Cos", c[0].name)),
    "tanh": _plain("Tanh"),
    "atan": lambda g, c: arctangent(g, c[0].name),
}
