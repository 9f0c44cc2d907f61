"""NeuralNetwork as matrices: one of weights for each layer, over whatever neurons it is connected from."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import onnx

from paritygate.converter.exporters._pmml.elements import Element, malformed, only, refuse
from paritygate.converter.exporters._pmml.emission.expressions import KINDS, emit_derived, piecewise
from paritygate.converter.exporters._pmml.emission.graph import Graph
from paritygate.converter.exporters._pmml.emission.models import Place, Result, elected, nothing_where
from paritygate.converter.exporters._pmml.emission.special import arctangent
from paritygate.converter.types import Array

_DOUBLE = onnx.TensorProto.DOUBLE


class _Neurons:
    """The neurons so far, in the matrices that they were computed as."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.blocks: list[tuple[list[str], str]] = []

    def add(self, ids: list[str], name: str) -> None:
        """One more layer: float64[rows, neurons]."""
        self.blocks.append((ids, name))

    def covering(self, wanted: set[str]) -> tuple[list[str], str]:
        """A matrix that holds the wanted neurons, and the ids of its columns: one layer where that is enough."""
        for ids, name in reversed(self.blocks):
            if wanted <= set(ids):
                return ids, name
        ids = [entry for block, _ in self.blocks for entry in block]
        return ids, self.graph.side_by_side([name for _, name in self.blocks])

    def one(self, wanted: str) -> str:
        """The column of one neuron."""
        ids, name = self.covering({wanted})
        if wanted not in ids:
            raise KeyError(wanted)
        return self.graph.op("Gather", name, self.graph.ints(ids.index(wanted)), axis=1)


def emit_network(element: Element, place: Place) -> Result:
    """A NeuralNetwork."""
    graph = place.graph
    inputs = element.child("NeuralInputs").all("NeuralInput")
    columns = [emit_derived(place.fields, entry.child("DerivedField")) for entry in inputs]
    if any(column.data_type == "string" for column in columns):
        raise refuse(element, "a text as neural input", "Use NormDiscrete.")
    missing = graph.either(*map(graph.missing, columns))
    neurons = _Neurons(graph)
    neurons.add(
        [entry.need("id") for entry in inputs], graph.side_by_side([column.name for column in columns])
    )
    for layer in element.all("NeuralLayer"):
        _emit_layer(layer, element, neurons)
    result = _classes(element, place, neurons) if place.classes else _number(element, neurons)
    return result if missing is None else nothing_where(graph, missing, result, len(place.classes))


def _emit_layer(layer: Element, network: Element, neurons: _Neurons) -> None:
    graph = neurons.graph
    members = layer.all("Neuron")
    connected = {con.need("from") for neuron in members for con in neuron.all("Con")}
    ids, matrix = neurons.covering(connected)
    at = {name: k for k, name in enumerate(ids)}
    weights = np.zeros((len(ids), len(members)))
    linked = np.zeros((len(ids), len(members)))
    for column, neuron in enumerate(members):
        for con in neuron.all("Con"):
            if con.need("from") not in at:
                raise malformed(con, f"{con.get('from')!r} is no neuron before it")
            weights[at[con.need("from")], column] += con.number("weight")
            linked[at[con.need("from")], column] = 1.0
    activation = layer.get("activationFunction") or network.need("activationFunction")
    if activation == "radialBasis":
        values = _radial(layer, network, graph, matrix, weights, linked)
    else:
        biases = np.array([[neuron.number("bias", 0.0) for neuron in members]], dtype=np.float64)
        z = graph.op("Add", graph.product(matrix, weights), graph.constant(biases))
        values = _activated(layer, network, graph, activation, z)
    method = layer.get("normalizationMethod") or network.get("normalizationMethod", "none")
    if method == "softmax":
        values = graph.op("Softmax", values, axis=1)
    elif method == "simplemax":
        values = graph.op("Div", values, graph.sum_of(values, 1))
    neurons.add([neuron.need("id") for neuron in members], values)


def _radial(
    layer: Element, network: Element, graph: Graph, matrix: str,
    weights: Array, linked: Array,
) -> str:  # fmt: skip
    """altitude ** fan-in * exp(-sum (input - weight)**2 / (2 width**2)) over the inputs that are connected."""
    columns = []
    for k, neuron in enumerate(layer.all("Neuron")):
        holder = next((e for e in (neuron, layer, network) if "width" in e.attributes), neuron)
        used = np.flatnonzero(linked[:, k])
        inputs = graph.op("Gather", matrix, graph.ints(*map(int, used)), axis=1)
        away = graph.op("Sub", inputs, graph.constant(weights[used, k][None, :]))
        distance = graph.sum_of(graph.op("Mul", away, away), 1)
        altitude = (layer if "altitude" in layer.attributes else network).number("altitude", 1.0)
        scaled = graph.op("Div", distance, graph.number(-2.0 * holder.number("width") ** 2))
        height = graph.number(len(used) * math.log(altitude))
        columns.append(graph.op("Exp", graph.op("Add", height, scaled)))
    return graph.side_by_side(columns)


def _gauss(graph: Graph, z: str) -> str:
    return graph.op("Exp", graph.op("Neg", graph.op("Mul", z, z)))


def _elliott(graph: Graph, z: str) -> str:
    return graph.op("Div", z, graph.op("Add", graph.number(1.0), graph.op("Abs", z)))


def _arctan(graph: Graph, z: str) -> str:
    # A quotient of columns: a scalar factor would be folded into the next MatMul (Graph.product).
    turned = arctangent(graph, z)
    return graph.op("Div", turned, graph.filled(math.pi / 2.0))


_ACTIVATIONS: dict[str, Callable[[Graph, str], str]] = {
    "logistic": lambda graph, z: graph.op("Sigmoid", z),
    "tanh": lambda graph, z: graph.op("Tanh", z),
    "identity": lambda graph, z: z,
    "exponential": lambda graph, z: graph.op("Exp", z),
    "reciprocal": lambda graph, z: graph.op("Reciprocal", z),
    "square": lambda graph, z: graph.op("Mul", z, z),
    "Gauss": _gauss,
    "sine": lambda graph, z: graph.op("Sin", z),
    "cosine": lambda graph, z: graph.op("Cos", z),
    "Elliott": _elliott,
    "arctan": lambda graph, z: _arctan(graph, z),
    "rectifier": lambda graph, z: graph.op("Relu", z),
}


def _activated(layer: Element, network: Element, graph: Graph, name: str, z: str) -> str:
    if name == "threshold":
        holder = layer if "threshold" in layer.attributes else network
        return graph.cast(graph.op("Greater", z, graph.number(holder.number("threshold", 0.0))), _DOUBLE)
    if name not in _ACTIVATIONS:
        raise refuse(
            layer, f"activationFunction {name!r}", f"{', '.join(_ACTIVATIONS)}, threshold, radialBasis are."
        )
    return _ACTIVATIONS[name](graph, z)


def _outputs(element: Element) -> list[tuple[str, Element]]:
    found = []
    for entry in element.child("NeuralOutputs").all("NeuralOutput"):
        holder = entry.child("DerivedField")
        expressions = holder.all(*KINDS)
        found.append((entry.need("outputNeuron"), only(expressions, holder, "expressions")))
    return found


def _number(element: Element, neurons: _Neurons) -> Result:
    name, expression = only(_outputs(element), element, "NeuralOutput elements")
    column = neurons.one(name)
    if expression.tag == "FieldRef":
        return Result(column)
    if expression.tag != "NormContinuous":
        raise refuse(
            expression, f"{expression.tag} on the output of a regression", "Use FieldRef or NormContinuous."
        )
    points = sorted((pair.number("norm"), pair.number("orig")) for pair in expression.all("LinearNorm"))
    return Result(piecewise(neurons.graph, column, points))


def _classes(element: Element, place: Place, neurons: _Neurons) -> Result:
    by_class = {expression.get("value"): name for name, expression in _outputs(element)}
    columns = [neurons.one(by_class[name]) for name in place.classes]
    return elected(place.graph, place.graph.side_by_side(columns))
