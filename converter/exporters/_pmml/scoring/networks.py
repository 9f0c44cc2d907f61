"""NeuralNetwork: neurons by id, layer after layer."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from paritygate.converter.exporters._pmml.elements import Element, malformed, only, refuse
from paritygate.converter.exporters._pmml.scoring.expressions import expression_in, interpolate, read_derived
from paritygate.converter.exporters._pmml.scoring.models import (
    NOTHING,
    Core,
    Outcome,
    Setting,
    from_probabilities,
)
from paritygate.converter.exporters._pmml.scoring.regressions import exponential
from paritygate.converter.exporters._pmml.scoring.values import Scope


@dataclass(frozen=True)
class _Neuron:
    name: str
    bias: float
    inputs: tuple[tuple[str, float], ...]
    width: float


@dataclass(frozen=True)
class _Layer:
    neurons: tuple[_Neuron, ...]
    activate: Callable[[float], float]
    radial: bool
    altitude: float
    normalise: str


def read_network(element: Element, setting: Setting) -> Core:
    """A NeuralNetwork as a function of a row."""
    inputs = {
        entry.need("id"): read_derived(entry.child("DerivedField"), setting.types)
        for entry in element.child("NeuralInputs").all("NeuralInput")
    }
    known = set(inputs)
    layers = [_read_layer(layer, element, known) for layer in element.all("NeuralLayer")]
    finish = _class(element, setting, known) if setting.classes else _number(element, setting, known)

    def score(scope: Scope) -> Outcome:
        values: dict[str, float] = {}
        for name, compute in inputs.items():
            value = compute(scope)
            if value is None:
                return NOTHING
            assert not isinstance(value, str)
            values[name] = float(value)
        for layer in layers:
            _fire(layer, values)
        return finish(values)

    return score


def _fire(layer: _Layer, values: dict[str, float]) -> None:
    found = [_excite(neuron, layer, values) for neuron in layer.neurons]
    if layer.normalise == "softmax":
        top = max(found)
        powers = [exponential(value - top) for value in found]
        found = [power / sum(powers) for power in powers]
    elif layer.normalise == "simplemax":
        total = sum(found)
        found = [value / total if total else math.nan for value in found]
    values.update(zip((neuron.name for neuron in layer.neurons), found, strict=True))


def _excite(neuron: _Neuron, layer: _Layer, values: Mapping[str, float]) -> float:
    if layer.radial:
        distance = sum((values[name] - weight) ** 2 for name, weight in neuron.inputs)
        z = distance / (2.0 * neuron.width**2)
        return exponential(len(neuron.inputs) * math.log(layer.altitude) - z)
    return layer.activate(neuron.bias + sum(values[name] * weight for name, weight in neuron.inputs))


def _read_layer(layer: Element, network: Element, known: set[str]) -> _Layer:
    def told(name: str, default: str = "") -> str:
        return layer.get(name) or network.get(name, default)

    activation = told("activationFunction") or network.need("activationFunction")
    normalise = told("normalizationMethod", "none")
    if normalise not in ("none", "softmax", "simplemax"):
        raise malformed(layer, f"normalizationMethod {normalise!r} is none")
    holder = layer if "threshold" in layer.attributes else network
    threshold = holder.number("threshold", 0.0)
    if activation != "radialBasis" and activation not in _ACTIVATIONS:
        raise refuse(
            layer, f"activationFunction {activation!r}", f"{', '.join(_ACTIVATIONS)}, radialBasis are."
        )
    radial = activation == "radialBasis"
    neurons = tuple(_read_neuron(e, layer, network, known, radial=radial) for e in layer.all("Neuron"))
    if not neurons:
        raise malformed(layer, "it holds no Neuron")
    known.update(neuron.name for neuron in neurons)
    altitude = (layer if "altitude" in layer.attributes else network).number("altitude", 1.0)
    if altitude <= 0:
        raise malformed(layer, f"altitude {altitude} is not positive")
    activate = (
        (lambda z: float(z > threshold)) if activation == "threshold" else _ACTIVATIONS.get(activation, float)
    )
    return _Layer(neurons, activate, radial, altitude, normalise)


def _read_neuron(
    element: Element, layer: Element, network: Element, known: set[str], *, radial: bool
) -> _Neuron:
    inputs = tuple((con.need("from"), con.number("weight")) for con in element.all("Con"))
    for name, _ in inputs:
        if name not in known:
            raise malformed(element, f"it is connected from {name!r}, which is no neuron before it")
    holder = next((e for e in (element, layer, network) if "width" in e.attributes), None)
    if radial and (holder is None or holder.number("width") <= 0):
        raise malformed(element, "a radial neuron needs a positive width")
    width = holder.number("width") if holder is not None else 1.0
    return _Neuron(element.need("id"), element.number("bias", 0.0), inputs, width)


def _logistic(z: float) -> float:
    return 1.0 / (1.0 + exponential(-z))


_ACTIVATIONS: dict[str, Callable[[float], float]] = {
    "threshold": lambda z: float(z > 0),
    "logistic": _logistic,
    "tanh": math.tanh,
    "identity": lambda z: z,
    "exponential": exponential,
    "reciprocal": lambda z: math.inf if z == 0 else 1.0 / z,
    "square": lambda z: z * z,
    "Gauss": lambda z: exponential(-z * z),
    "sine": math.sin,
    "cosine": math.cos,
    "Elliott": lambda z: z / (1.0 + abs(z)),
    "arctan": lambda z: 2.0 * math.atan(z) / math.pi,
    "rectifier": lambda z: max(0.0, z),
}


def _outputs(element: Element, known: set[str]) -> list[tuple[str, Element]]:
    """(neuron, expression on the target) of every NeuralOutput."""
    pairs = []
    for entry in element.child("NeuralOutputs").all("NeuralOutput"):
        name = entry.need("outputNeuron")
        if name not in known:
            raise malformed(entry, f"outputNeuron {name!r} is no neuron")
        pairs.append((name, expression_in(entry.child("DerivedField"))))
    return pairs


def _number(element: Element, setting: Setting, known: set[str]) -> Callable[[Mapping[str, float]], Outcome]:
    name, expression = only(_outputs(element, known), element, "NeuralOutput elements")
    if expression.tag == "FieldRef":
        return lambda values: Outcome(values[name])
    if expression.tag != "NormContinuous":
        raise refuse(
            expression, f"{expression.tag} on the output of a regression", "Use FieldRef or NormContinuous."
        )
    points = [(pair.number("norm"), pair.number("orig")) for pair in expression.all("LinearNorm")]
    if len(points) < 2 or len({norm for norm, _ in points}) < len(points):
        raise malformed(expression, "its LinearNorm points cannot be turned back")
    points.sort()
    return lambda values: Outcome(interpolate(points, values[name]))


def _class(element: Element, setting: Setting, known: set[str]) -> Callable[[Mapping[str, float]], Outcome]:
    neurons: dict[str, str] = {}
    for name, expression in _outputs(element, known):
        if expression.tag != "NormDiscrete":
            raise refuse(expression, f"{expression.tag} on the output of a classifier", "Use NormDiscrete.")
        neurons[expression.need("value")] = name
    return _vote(element, setting.classes, neurons)


def _vote(
    element: Element, classes: Sequence[str], neurons: Mapping[str, str]
) -> Callable[[Mapping[str, float]], Outcome]:
    if sorted(neurons) != sorted(classes):
        raise malformed(element, f"its outputs are for {sorted(neurons)}, the classes are {list(classes)}")
    order = [neurons[name] for name in classes]
    return lambda values: from_probabilities(classes, [values[name] for name in order])
