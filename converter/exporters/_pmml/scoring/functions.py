"""Built-in functions on values: missing arguments make the result missing, except where the standard says else."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from paritygate.converter.exporters._pmml.elements import Element, refuse
from paritygate.converter.exporters._pmml.scoring.values import Value

_NUMBERS = ("double", "float", "integer")
_MANY = 10_000


@dataclass(frozen=True)
class Function:
    """A built-in function.

    Attributes:
        call: Its result for its arguments.
        arity: Fewest and most arguments.
        gives: The type of its result; `same` is that of its arguments.
        takes: `numbers`, `booleans`, `if`, or `any`.
        compares: Whether it compares its arguments.
    """

    call: Callable[[Sequence[Value]], Value]
    arity: tuple[int, int]
    gives: str
    takes: str = "numbers"
    compares: bool = False

    def check(self, element: Element, kinds: Sequence[str]) -> None:
        """Refuse arguments that it cannot take."""
        name = element.get("function")
        if self.takes == "numbers" and not all(kind in _NUMBERS for kind in kinds):
            raise refuse(element, f"{name!r} of {' and '.join(kinds)}", "Give it numbers.")
        if self.takes == "booleans" and not all(kind == "boolean" for kind in kinds):
            raise refuse(element, f"{name!r} of {' and '.join(kinds)}", "Give it booleans.")
        if name in ("/", "modulo") and all(kind == "integer" for kind in kinds):
            raise refuse(
                element,
                f"{name!r} of two integers, which tools read in different ways,",
                "Make one a double.",
            )
        if name in ("lessThan", "lessOrEqual", "greaterThan", "greaterOrEqual") and "string" in kinds:
            raise refuse(
                element, f"{name!r} of texts", "Compare texts with equal, notEqual, isIn or isNotIn."
            )
        if self.takes == "if" and kinds[0] != "boolean":
            raise refuse(element, f"'if' of a {kinds[0]}", "Give it a boolean first.")
        if self.takes == "if" and len(set(kinds[1:])) > 1 and not set(kinds[1:]) <= set(_NUMBERS):
            raise refuse(element, f"'if' between {kinds[1]} and {kinds[2]}", "Give both branches one type.")

    def data_type(self, element: Element, kinds: Sequence[str]) -> str:
        """The type of the result."""
        if self.gives != "same":
            return self.gives
        own = kinds[1:] if self.takes == "if" else kinds
        return own[0] if len(set(own)) == 1 and own[0] != "float" else "double"


def _strict(function: Callable[..., Any]) -> Callable[[Sequence[Value]], Value]:
    """Missing if any argument is; NaN where mathematics has no answer, infinity where it is too large."""

    def call(values: Sequence[Value]) -> Value:
        if None in values:
            return None
        try:
            result: Value = function(*values)
        except OverflowError:
            return math.inf
        except ValueError:
            return math.nan
        return result

    return call


def _present(function: Callable[[list[Any]], Value]) -> Callable[[Sequence[Value]], Value]:
    """Over the arguments that are there; missing if none is."""

    def call(values: Sequence[Value]) -> Value:
        there = [value for value in values if value is not None]
        return function(there) if there else None

    return call


def _divide(a: float, b: float) -> float:
    if b == 0:
        return math.nan if a == 0 or math.isnan(a) else math.copysign(math.inf, a) * math.copysign(1.0, b)
    return a / b


def _log(value: float) -> float:
    return -math.inf if value == 0 else math.log(value)


def _power(a: float, b: float) -> float:
    if a == 0 and b < 0:
        return math.inf
    return float(math.pow(a, b))


def _if(values: Sequence[Value]) -> Value:
    if values[0] is None:
        return None
    if values[0]:
        return values[1]
    return values[2] if len(values) > 2 else None


def _modulo(a: float, b: float) -> float:
    return math.nan if b == 0 else a - b * math.floor(a / b)


_Call = Callable[..., Any]


def _one(function: _Call, gives: str = "double") -> Function:
    return Function(_strict(function), (1, 1), gives)


def _two(function: _Call, gives: str = "double") -> Function:
    return Function(_strict(function), (2, 2), gives)


def _compared(function: _Call) -> Function:
    return Function(_strict(function), (2, 2), "boolean", "any", compares=True)


def _several(function: Callable[[list[Any]], Value], gives: str = "double") -> Function:
    return Function(_present(function), (1, _MANY), gives)


FUNCTIONS: dict[str, Function] = {
    "+": _two(lambda a, b: a + b, "same"),
    "-": Function(_strict(lambda a, b=None: -a if b is None else a - b), (1, 2), "same"),
    "*": _two(lambda a, b: a * b, "same"),
    "/": _two(_divide),
    "modulo": _two(_modulo),
    "min": _several(min),
    "max": _several(max),
    "sum": _several(math.fsum),
    "avg": _several(lambda v: math.fsum(v) / len(v)),
    "product": _several(lambda v: math.prod(map(float, v))),
    "log10": _one(lambda a: _log(a) / math.log(10.0)),
    "ln": _one(_log),
    "ln1p": _one(lambda a: -math.inf if a == -1 else math.log1p(a)),
    "sqrt": _one(math.sqrt),
    "abs": _one(abs, "same"),
    "exp": _one(math.exp),
    "expm1": _one(math.expm1),
    "pow": _two(_power),
    "threshold": _two(lambda a, b: 1.0 if a > b else 0.0),
    "floor": _one(lambda a: float(math.floor(a)) if math.isfinite(a) else a, "integer"),
    "ceil": _one(lambda a: float(math.ceil(a)) if math.isfinite(a) else a, "integer"),
    "round": _one(lambda a: float(math.floor(a + 0.5)) if math.isfinite(a) else a, "integer"),
    "rint": _one(lambda a: float(round(a)) if math.isfinite(a) else a, "integer"),
    "sin": _one(math.sin),
    "cos": _one(math.cos),
    "tan": _one(math.tan),
    "tanh": _one(math.tanh),
    "atan": _one(math.atan),
    "isMissing": Function(lambda v: v[0] is None, (1, 1), "boolean", "any"),
    "isNotMissing": Function(lambda v: v[0] is not None, (1, 1), "boolean", "any"),
    "equal": _compared(lambda a, b: a == b),
    "notEqual": _compared(lambda a, b: a != b),
    "lessThan": _compared(lambda a, b: a < b),
    "lessOrEqual": _compared(lambda a, b: a <= b),
    "greaterThan": _compared(lambda a, b: a > b),
    "greaterOrEqual": _compared(lambda a, b: a >= b),
    "isIn": Function(_strict(lambda a, *b: a in b), (2, _MANY), "boolean", "any", compares=True),
    "isNotIn": Function(_strict(lambda a, *b: a not in b), (2, _MANY), "boolean", "any", compares=True),
    "and": Function(_strict(lambda *v: all(v)), (2, _MANY), "boolean", "booleans"),
    "or": Function(_strict(lambda *v: any(v)), (2, _MANY), "boolean", "booleans"),
    "not": Function(_strict(lambda a: not a), (1, 1), "boolean", "booleans"),
    "if": Function(_if, (2, 3), "same", "if"),
}
"""Name in the file -> the function."""
