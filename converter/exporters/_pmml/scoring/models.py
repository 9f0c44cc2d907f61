"""Models as the scorer runs them: what every kind shares, from its mining schema to its targets and outputs."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from paritygate.converter.exporters._pmml.declarations import (
    ACTIVE,
    Field,
    MiningField,
    Target,
    class_values,
    derived_fields,
    function_of,
    mining_fields,
    target_name,
    target_of,
)
from paritygate.converter.exporters._pmml.elements import Element, malformed, refuse
from paritygate.converter.exporters._pmml.outputs import PREDICTED, PROBABILITY, feature_of, output_fields
from paritygate.converter.exporters._pmml.scoring.expressions import (
    cast_value,
    expression_in,
    read_derived,
    read_expression,
)
from paritygate.converter.exporters._pmml.scoring.types import Types
from paritygate.converter.exporters._pmml.scoring.values import InvalidValue, Scope, Value, preparer


@dataclass(frozen=True)
class Outcome:
    """What a model says of one row.

    Attributes:
        value: A number, or the text of a class; None where it has no result.
        probabilities: Of every class in order; None where it has none to give.
    """

    value: float | str | None
    probabilities: tuple[float, ...] | None = None


NOTHING = Outcome(None)
Core: TypeAlias = Callable[[Scope], Outcome]


@dataclass(frozen=True)
class Setting:
    """What a model finds around it when it is read.

    Attributes:
        fields: The DataDictionary.
        types: The types of all that can be named.
        classes: The classes of the classifier it belongs to; empty for a regression.
        target: Name of its target field.
        target_optype: `continuous`, `categorical` or `ordinal`.
    """

    fields: Mapping[str, Field]
    types: Types
    classes: tuple[str, ...]
    target: str | None
    target_optype: str


class Model:
    """One model element, ready to score rows."""

    def __init__(
        self, element: Element, fields: Mapping[str, Field], types: Types, readers: Mapping[str, Reader], *,
        nested: bool, around_classes: Sequence[str] = (), dictionary: Element | None = None,
    ) -> None:  # fmt: skip
        if element.tag not in readers:
            raise refuse(element, f"a {element.tag}", f"{', '.join(readers)} are read.")
        self.element = element
        self.mining = mining_fields(element)
        self.target = target_name(element, self.mining)
        self.classifies = function_of(element) == "classification"
        self.types = Types({}, types)
        self._prepare = _preparers(self.mining, fields, self.types, nested=nested)
        # The document's own derived fields see the values that the outermost mining schema lets in.
        derived = derived_fields(dictionary) | derived_fields(element.find("LocalTransformations"))
        self._derived = _read_all_derived(derived, self.types)
        self.classes = self._classes(fields, around_classes)
        self._treatment = target_of(element, self.target)
        declared = fields.get(self.target or "")
        optype = "categorical" if declared is None else declared.optype
        setting = Setting(fields, self.types, self.classes, self.target, optype)
        self._core = readers[element.tag](element, setting)
        self._outputs = _read_outputs(self)

    def _classes(self, fields: Mapping[str, Field], around: Sequence[str]) -> tuple[str, ...]:
        if not self.classifies:
            return ()
        if around and (self.target is None or self.target not in fields or not fields[self.target].valid):
            return tuple(around)
        return class_values(self.element, fields, self.target)

    def run(self, around: Scope) -> tuple[Outcome, Scope]:
        """The outcome for one row, and the scope in which it was found, its outputs included."""
        known: dict[str, Value] = {}
        scope = Scope(known, self._derived, around)
        try:
            for name, prepare in self._prepare.items():
                known[name] = prepare(around.get(name))
        except InvalidValue:
            outcome = NOTHING
        else:
            outcome = self._targeted(self._core(scope))
        for name, give in self._outputs.items():
            known[name] = give(outcome, scope)
        return outcome, scope

    def outputs(self, around: Scope) -> tuple[Outcome, dict[str, Value]]:
        """The outcome for one row and the values of the output fields."""
        outcome, scope = self.run(around)
        return outcome, {name: scope.get(name) for name in self._outputs}

    def publishes(self) -> dict[str, str]:
        """The output fields with their types, which later segments may name."""
        return {e.need("name"): _output_type(e, self) for e in output_fields(self.element)}

    def _targeted(self, outcome: Outcome) -> Outcome:
        target = self._treatment
        if not self.classifies:
            return Outcome(rescale(outcome.value, target))
        if outcome.value is None and target.priors:
            return from_probabilities(self.classes, [target.priors.get(name, 0.0) for name in self.classes])
        return outcome


Reader: TypeAlias = Callable[[Element, Setting], Core]


def rescale(value: float | str | None, target: Target) -> float | None:
    """A predicted number as its Target says it: limits, factor, constant, rounding, in this order."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return target.default
    assert not isinstance(value, str)
    if target.minimum is not None:
        value = max(value, target.minimum)
    if target.maximum is not None:
        value = min(value, target.maximum)
    value = value * target.factor + target.constant
    if not target.cast or not math.isfinite(value):
        return value
    return float(
        {"round": math.floor(value + 0.5), "ceiling": math.ceil(value), "floor": math.floor(value)}[
            target.cast
        ]
    )


def from_probabilities(classes: Sequence[str], probabilities: Sequence[float]) -> Outcome:
    """The most probable class, the first one where several are; nothing where one is not a number."""
    if any(math.isnan(p) for p in probabilities):
        return NOTHING
    best = max(range(len(classes)), key=lambda k: probabilities[k])
    return Outcome(classes[best], tuple(probabilities))


def _preparers(
    mining: Mapping[str, MiningField], fields: Mapping[str, Field], types: Types, *, nested: bool
) -> dict[str, Callable[[Value], Value]]:
    """How each active field's value comes in; a nested model without a word on it takes what is around."""
    found: dict[str, Callable[[Value], Value]] = {}
    for name, entry in mining.items():
        if entry.usage not in ACTIVE:
            continue
        types.of(name, entry.element)
        if name in fields and (entry.treats or not nested):
            found[name] = preparer(fields[name], entry)
        elif entry.treats and entry.missing_replacement is not None:
            raise refuse(entry.element, "a treatment of a derived field", "Put it into the DerivedField.")
    return found


def _read_all_derived(elements: Mapping[str, Element], types: Types) -> dict[str, Callable[[Scope], Value]]:
    """Derived fields may name each other in any order, but not in a circle."""
    for name, element in elements.items():
        types.add(name, element.need("dataType"))
    _refuse_circles(elements)
    return {name: read_derived(element, types) for name, element in elements.items()}


def _refuse_circles(elements: Mapping[str, Element]) -> None:
    needs = {
        name: {e.get("field") for e in element.walk() if e is not element and e.get("field") in elements}
        for name, element in elements.items()
    }
    while True:
        free = [name for name, wanted in needs.items() if not wanted]
        if not free:
            break
        for name in free:
            del needs[name]
        for wanted in needs.values():
            wanted.difference_update(free)
    if needs:
        name = next(iter(needs))
        raise malformed(elements[name], f"the derived field {name!r} needs itself")


def _output_type(element: Element, model: Model) -> str:
    kind = feature_of(element)
    told = element.get("dataType")
    if kind == PREDICTED:
        return "string" if model.classifies else told if told == "float" else "double"
    if kind == PROBABILITY:
        return told if told == "float" else "double"
    return told or read_expression(expression_in(element), model.types).data_type


def _read_outputs(model: Model) -> dict[str, Callable[[Outcome, Scope], Value]]:
    found: dict[str, Callable[[Outcome, Scope], Value]] = {}
    for element in output_fields(model.element):
        found[element.need("name")] = _read_output(element, model)
        model.types.add(element.need("name"), _output_type(element, model))
    return found


def _read_output(element: Element, model: Model) -> Callable[[Outcome, Scope], Value]:
    kind, told = feature_of(element), element.get("dataType")
    if kind == PREDICTED:
        return lambda outcome, scope: cast_value(outcome.value, told)
    if kind == PROBABILITY:
        if not model.classifies:
            raise refuse(element, "a probability of a regression", "Remove the OutputField.")
        wanted = element.get("value")
        if wanted and wanted not in model.classes:
            raise malformed(element, f"{wanted!r} is none of the classes {list(model.classes)}")
        return lambda outcome, scope: cast_value(_probability(outcome, model.classes, wanted), told)
    compute = read_expression(expression_in(element), model.types).compute
    return lambda outcome, scope: cast_value(compute(scope), told)


def _probability(outcome: Outcome, classes: Sequence[str], wanted: str) -> float | None:
    if outcome.value is None or outcome.probabilities is None:
        return None
    return outcome.probabilities[classes.index(wanted or str(outcome.value))]
