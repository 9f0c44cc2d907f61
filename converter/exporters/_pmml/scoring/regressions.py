"""RegressionModel: sums of predictors, and the links that make probabilities of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np

from paritygate.converter.exporters._pmml.elements import Element, malformed, only, refuse
from paritygate.converter.exporters._pmml.scoring.models import (
    NOTHING,
    Core,
    Outcome,
    Setting,
    from_probabilities,
)
from paritygate.converter.exporters._pmml.scoring.values import Scope, Value, literal

_Term: TypeAlias = Callable[[Scope], "float | None"]

LINKS = ("none", "logit", "probit", "cloglog", "loglog", "cauchit")


def read_regression(element: Element, setting: Setting) -> Core:
    """A RegressionModel as a function of a row."""
    tables = element.all("RegressionTable")
    method = element.get("normalizationMethod", "none")
    if method not in (*LINKS, "exp", "softmax", "simplemax"):
        raise malformed(element, f"normalizationMethod {method!r} is none")
    if not setting.classes:
        return _number(only(tables, element, "RegressionTable elements"), method, element, setting)
    return _class(tables, method, element, setting)


def _number(table: Element, method: str, element: Element, setting: Setting) -> Core:
    if method == "simplemax":
        raise malformed(element, "simplemax needs several tables")
    total = _read_table(table, setting)
    link = "logit" if method == "softmax" else method

    def score(scope: Scope) -> Outcome:
        value = total(scope)
        return (
            NOTHING
            if value is None
            else Outcome(exponential(value) if link == "exp" else inverse(link, value))
        )

    return score


def _class(tables: Sequence[Element], method: str, element: Element, setting: Setting) -> Core:
    names = [table.need("targetCategory") for table in tables]
    if sorted(names) != sorted(setting.classes):
        raise malformed(element, f"its tables are for {names}, the classes are {list(setting.classes)}")
    ordinal = setting.target_optype == "ordinal"
    if method == "exp" or (ordinal and method in ("softmax", "simplemax")):
        raise malformed(
            element, f"normalizationMethod {method!r} does not give the probabilities of its classes"
        )
    if len(names) > 2 and not ordinal and method in LINKS[1:]:
        raise refuse(
            element, f"normalizationMethod {method!r} of {len(names)} classes, which PMML gives no meaning,",
            "Write softmax or simplemax; or one model with two classes for each, in a MiningModel.",
        )  # fmt: skip
    if (
        len(names) == 2
        and method in LINKS[1:]
        and not ordinal
        and _is_empty(tables[0])
        and not _is_empty(tables[1])
    ):
        raise refuse(
            element, "a link on the first of two tables, which is empty, where PMML takes one half for its class,",
            "Swap the tables, so that the first one holds the predictors.",
        )  # fmt: skip
    totals = [_read_table(table, setting) for table in tables]
    order = [names.index(name) for name in setting.classes]

    def score(scope: Scope) -> Outcome:
        found = [total(scope) for total in totals]
        values = [value for value in found if value is not None]
        if len(values) < len(found):
            return NOTHING
        shares = _shares(values, method, ordinal=ordinal)
        return from_probabilities(setting.classes, [shares[k] for k in order])

    return score


def _is_empty(table: Element) -> bool:
    return not table.children and table.number("intercept") == 0


def _shares(values: Sequence[float], method: str, *, ordinal: bool) -> list[float]:
    if method == "softmax":
        top = max(values)
        powers = [exponential(value - top) for value in values]
        return [power / sum(powers) for power in powers]
    if method == "simplemax":
        total = sum(values)
        return [value / total if total else math.nan for value in values]
    if ordinal:
        steps = [inverse(method, value) for value in values[:-1]]
        return [b - a for a, b in zip([0.0, *steps], [*steps, 1.0], strict=True)]
    if len(values) == 2:
        first = inverse(method, values[0])
        first = min(1.0, max(0.0, first)) if method == "none" else first
        return [first, 1.0 - first]
    return [*values[:-1], 1.0 - sum(values[:-1])]


def inverse(link: str, value: float) -> float:
    """The probability that a link function maps to a value."""
    if link == "logit":
        return 1.0 / (1.0 + exponential(-value))
    if link == "probit":
        return 0.5 * math.erfc(-value / math.sqrt(2.0))
    if link == "cloglog":
        return -math.expm1(-exponential(value))
    if link == "loglog":
        return exponential(-exponential(-value))
    return 0.5 + math.atan(value) / math.pi if link == "cauchit" else value


def exponential(value: float) -> float:
    """e to a power, infinite where it is too large."""
    return math.inf if value > 709.78 else math.exp(value)


def _read_table(table: Element, setting: Setting) -> Callable[[Scope], float | None]:
    """intercept + all terms; missing if a number that it needs is."""
    readers = {
        "NumericPredictor": _numeric,
        "CategoricalPredictor": _categorical,
        "PredictorTerm": _interaction,
    }
    terms = [readers[e.tag](e, setting) for e in table.children if e.tag in readers]
    intercept = table.number("intercept")

    def total(scope: Scope) -> float | None:
        result = intercept
        for term in terms:
            value = term(scope)
            if value is None:
                return None
            result += value
        return result

    return total


def _numeric(element: Element, setting: Setting) -> _Term:
    name = element.need("name")
    _need_numbers(name, element, setting)
    weight = element.number("coefficient")
    exponent = element.number("exponent", 1.0)

    def term(scope: Scope) -> float | None:
        value = scope.get(name)
        return None if value is None else weight * _raised(_as_number(value), exponent)

    return term


def _raised(value: float, exponent: float) -> float:
    if exponent == 1:
        return value
    with np.errstate(all="ignore"):
        return float(
            np.power(np.float64(value), exponent)
        )  # as C has it: NaN for a root of a negative number


def _categorical(element: Element, setting: Setting) -> _Term:
    name = element.need("name")
    wanted = literal(element.need("value"), setting.types.of(name, element), element)
    weight = element.number("coefficient")
    return lambda scope: weight if scope.get(name) == wanted else 0.0


def _interaction(element: Element, setting: Setting) -> _Term:
    names = [reference.need("field") for reference in element.all("FieldRef")]
    for name in names:
        _need_numbers(name, element, setting)
    weight = element.number("coefficient")

    def term(scope: Scope) -> float | None:
        values = [scope.get(name) for name in names]
        return None if None in values else weight * math.prod(_as_number(v) for v in values)

    return term


def _need_numbers(name: str, element: Element, setting: Setting) -> None:
    if setting.types.of(name, element) == "string":
        raise refuse(element, f"the field {name!r}, which holds texts,", "Use a CategoricalPredictor.")


def _as_number(value: Value) -> float:
    assert value is not None
    assert not isinstance(value, str)
    return float(value)
