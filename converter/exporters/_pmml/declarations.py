"""What a PMML document declares: data fields, mining fields, targets, output fields. Read, not interpreted."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from paritygate.converter.exporters._pmml.elements import Element, malformed, refuse

NUMERIC = ("double", "float", "integer")
DATA_TYPES = (*NUMERIC, "string", "boolean")


@dataclass(frozen=True)
class Interval:
    """A range of numbers; None is open to that side."""

    left: float | None
    right: float | None
    closure: str


@dataclass(frozen=True)
class Field:
    """A field of the DataDictionary.

    Attributes:
        element: Where it stands.
        name: Its name.
        optype: `continuous`, `categorical` or `ordinal`.
        data_type: One of `DATA_TYPES`, or another, which is refused once it is used.
        valid: Texts of the values that are valid.
        invalid: Texts of those that are not.
        missing: Texts that stand for a missing value.
        intervals: Where continuous values are valid.
    """

    element: Element
    name: str
    optype: str
    data_type: str
    valid: tuple[str, ...] = ()
    invalid: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    intervals: tuple[Interval, ...] = ()


@dataclass(frozen=True)
class MiningField:
    """A field as one model takes it."""

    element: Element
    name: str
    usage: str
    invalid: str
    invalid_replacement: str | None
    missing_replacement: str | None
    missing_returns_invalid: bool
    outliers: str
    low: float | None
    high: float | None

    @property
    def treats(self) -> bool:
        """Whether it says anything about odd values; if not, a nested model takes the value of the one around."""
        return bool(_TREATMENTS & self.element.attributes.keys())


_TREATMENTS = {
    "invalidValueTreatment", "invalidValueReplacement", "missingValueReplacement", "missingValueTreatment",
    "outliers",
}  # fmt: skip


@dataclass(frozen=True)
class Target:
    """What happens to a prediction before it is given."""

    minimum: float | None = None
    maximum: float | None = None
    factor: float = 1.0
    constant: float = 0.0
    cast: str = ""
    default: float | None = None
    priors: Mapping[str, float] = field(default_factory=dict)


def parse_interval(element: Element) -> Interval:
    """An `Interval` element."""
    closure = element.need("closure")
    if closure not in ("openOpen", "openClosed", "closedOpen", "closedClosed"):
        raise malformed(element, f"closure {closure!r} is none")
    left = element.number("leftMargin") if "leftMargin" in element.attributes else None
    right = element.number("rightMargin") if "rightMargin" in element.attributes else None
    return Interval(left, right, closure)


def data_fields(root: Element) -> dict[str, Field]:
    """The DataDictionary, by name."""
    fields: dict[str, Field] = {}
    for element in root.child("DataDictionary").all("DataField"):
        name = element.need("name")
        if name in fields:
            raise malformed(element, f"the field {name!r} is declared twice")
        values: dict[str, list[str]] = {"valid": [], "invalid": [], "missing": []}
        for value in element.all("Value"):
            values.setdefault(value.get("property", "valid"), []).append(value.need("value"))
        fields[name] = Field(
            element=element,
            name=name,
            optype=element.need("optype"),
            data_type=element.need("dataType"),
            valid=tuple(dict.fromkeys(values["valid"])),
            invalid=tuple(values["invalid"]),
            missing=tuple(values["missing"]),
            intervals=tuple(map(parse_interval, element.all("Interval"))),
        )
    return fields


ACTIVE, TARGETS = ("active",), ("predicted", "target")


def mining_fields(model: Element) -> dict[str, MiningField]:
    """The MiningSchema of a model, by name."""
    return {
        element.need("name"): _mining_field(element)
        for element in model.child("MiningSchema").all("MiningField")
    }


def _mining_field(element: Element) -> MiningField:
    invalid = element.get("invalidValueTreatment", "returnInvalid")
    if invalid not in ("returnInvalid", "asIs", "asMissing", "asValue"):
        raise refuse(
            element, f"invalidValueTreatment {invalid!r}", "Use returnInvalid, asIs, asMissing or asValue."
        )
    outliers = element.get("outliers", "asIs")
    if outliers not in ("asIs", "asMissingValues", "asExtremeValues"):
        raise malformed(element, f"outliers {outliers!r} is none")
    bounded = outliers != "asIs"
    return MiningField(
        element=element,
        name=element.need("name"),
        usage=element.get("usageType", "active"),
        invalid=invalid,
        invalid_replacement=element.need("invalidValueReplacement") if invalid == "asValue" else None,
        missing_replacement=element.attributes.get("missingValueReplacement"),
        missing_returns_invalid=element.get("missingValueTreatment") == "returnInvalid",
        outliers=outliers,
        low=element.number("lowValue") if bounded else None,
        high=element.number("highValue") if bounded else None,
    )


def target_name(model: Element, mining: Mapping[str, MiningField]) -> str | None:
    """The field that a model predicts, or None where it names none."""
    named = [name for name, entry in mining.items() if entry.usage in TARGETS]
    if len(named) > 1:
        raise refuse(mining[named[1]].element, "a second target field", "Keep one target in a model.")
    return named[0] if named else None


def target_of(model: Element, name: str | None) -> Target:
    """The `Target` element of a model's own target, or one that changes nothing."""
    found = model.find("Targets")
    entries = [] if found is None else found.all("Target")
    if not entries:
        return Target()
    entry = next((e for e in entries if e.get("field") in (name, "")), None)
    if entry is None and name is None and len(entries) == 1:
        entry = entries[
            0
        ]  # boosting tools leave the target out of a segment's schema, not out of its Targets
    if entry is None:
        return Target()
    priors, default = {}, None
    for value in entry.all("TargetValue"):
        if "priorProbability" in value.attributes:
            priors[value.need("value")] = value.number("priorProbability")
        if "defaultValue" in value.attributes:
            default = value.number("defaultValue")
    cast = entry.get("castInteger")
    if cast not in ("", "round", "ceiling", "floor"):
        raise malformed(entry, f"castInteger {cast!r} is none")
    return Target(
        minimum=entry.number("min") if "min" in entry.attributes else None,
        maximum=entry.number("max") if "max" in entry.attributes else None,
        factor=entry.number("rescaleFactor", 1.0),
        constant=entry.number("rescaleConstant", 0.0),
        cast=cast,
        default=default,
        priors=priors,
    )


def derived_fields(holder: Element | None) -> dict[str, Element]:
    """The DerivedField elements of a dictionary, by name."""
    elements = [] if holder is None else holder.all("DerivedField")
    return {element.need("name"): element for element in elements}


def function_of(model: Element) -> str:
    """`regression` or `classification`."""
    name = model.need("functionName")
    if name not in ("regression", "classification"):
        raise refuse(model, f"functionName {name!r}", "Models for regression and classification are read.")
    return name


def class_values(model: Element, fields: Mapping[str, Field], name: str | None) -> tuple[str, ...]:
    """The classes of a classifier in order: the target's values, else those that the model names, as they come."""
    if name is not None and name in fields and fields[name].valid:
        return fields[name].valid
    found: dict[str, None] = {}
    for element in _of_classifiers(model):
        if element.tag == "ScoreDistribution":
            found[element.need("value")] = None
        elif element.tag == "Node" and "score" in element.attributes:
            found[element.attributes["score"]] = None
        elif element.tag == "RegressionTable" and "targetCategory" in element.attributes:
            found[element.attributes["targetCategory"]] = None
        elif element.tag == "NormDiscrete" and element.get("field") == name:
            found[element.need("value")] = None
    if not found:
        raise malformed(model, "nothing names the classes that it tells apart")
    return tuple(found)


def _of_classifiers(model: Element) -> Iterator[Element]:
    """The elements of a model, without those of nested models that predict numbers."""
    stack = [model]
    while stack:
        element = stack.pop()
        yield element
        stack.extend(c for c in reversed(element.children) if c.get("functionName") != "regression")
