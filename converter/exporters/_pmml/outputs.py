"""Which outputs a document gives: a plan that the scorer and the graph both fill, in this order."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from paritygate.converter.exporters._pmml.declarations import Field
from paritygate.converter.exporters._pmml.elements import Element, refuse
from paritygate.converter.types import DType

PREDICTED, PROBABILITY, PROBABILITIES, TRANSFORMED = (
    "predictedValue", "probability", "probabilities", "transformedValue",
)  # fmt: skip

NO_LABEL = -(2**63)
"""The label of a row without a result where labels are whole numbers; no class can be that number."""


@dataclass(frozen=True)
class Output:
    """One output.

    Attributes:
        name: Its name.
        kind: `predictedValue`, `probability`, `probabilities` or `transformedValue`.
        dtype: Element type.
        value: The class, for `probability`.
        element: The OutputField, or None for what is given without being asked for.
    """

    name: str
    kind: str
    dtype: DType
    value: str = ""
    element: Element | None = None


_FEATURES = {
    "predictedValue": PREDICTED,
    "predictedDisplayValue": PREDICTED,
    "probability": PROBABILITY,
    "transformedValue": TRANSFORMED,
}


def output_fields(model: Element) -> list[Element]:
    """The OutputField elements of a model."""
    found = model.find("Output")
    return [] if found is None else found.all("OutputField")


def feature_of(element: Element) -> str:
    """What an OutputField gives."""
    feature = element.get("feature", "predictedValue")
    if feature not in _FEATURES:
        raise refuse(
            element, f"the output feature {feature!r}", f"{', '.join(_FEATURES)} are; remove the OutputField."
        )
    if element.get("rank", "1") != "1":
        raise refuse(element, "an output by rank", "Remove the OutputField, or ask for rank 1.")
    return _FEATURES[feature]


def plan_outputs(
    model: Element,
    *,
    classifies: bool,
    has_probabilities: bool,
    target: Field | None,
    target_name: str | None,
) -> list[Output]:
    """The outputs of a document's model: what its Output element names, and what nobody named but is there."""
    planned = [
        _planned(element, classifies=classifies, target=target)
        for element in output_fields(model)
        if element.get("isFinalResult", "true") == "true"
    ]
    kinds = {output.kind for output in planned}
    if PREDICTED not in kinds:
        name = target_name or ("label" if classifies else "prediction")
        planned.insert(0, Output(name, PREDICTED, _label_dtype(target) if classifies else DType.FLOAT64))
    if classifies and has_probabilities and PROBABILITY not in kinds:
        planned.append(Output("probabilities", PROBABILITIES, DType.FLOAT64))
    return _distinct(planned)


def _distinct(planned: list[Output]) -> list[Output]:
    names = [output.name for output in planned]
    for output in planned:
        if names.count(output.name) > 1 and output.element is not None:
            raise refuse(output.element, f"a second output {output.name!r}", "Give each output its own name.")
    return planned


def _planned(element: Element, *, classifies: bool, target: Field | None) -> Output:
    kind = feature_of(element)
    name = element.need("name")
    if kind == PREDICTED:
        return Output(
            name, kind, _label_dtype(target, element) if classifies else _number_dtype(element), "", element
        )
    if kind == PROBABILITY:
        return Output(name, kind, _number_dtype(element), element.get("value"), element)
    return Output(name, kind, _any_dtype(element), "", element)


def _label_dtype(target: Field | None, element: Element | None = None) -> DType:
    told = target.data_type if target is not None else element.get("dataType") if element is not None else ""
    return {"integer": DType.INT64, "float": DType.FLOAT64, "double": DType.FLOAT64}.get(told, DType.STRING)


def _number_dtype(element: Element) -> DType:
    return DType.FLOAT32 if element.get("dataType") == "float" else DType.FLOAT64


_BY_TYPE: Mapping[str, DType] = {
    "double": DType.FLOAT64, "float": DType.FLOAT32, "integer": DType.FLOAT64, "string": DType.STRING,
    "boolean": DType.FLOAT64, "": DType.FLOAT64,
}  # fmt: skip


def _any_dtype(element: Element) -> DType:
    told = element.get("dataType")
    if told not in _BY_TYPE:
        raise refuse(element, f"an output of dataType {told!r}", f"{', '.join(filter(None, _BY_TYPE))} are.")
    return _BY_TYPE[told]
