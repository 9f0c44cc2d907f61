"""A whole document as an ONNX model: its fields in, the planned outputs out."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import onnx
from onnx import helper

from paritygate.converter.exporters._pmml.declarations import Field, data_fields
from paritygate.converter.exporters._pmml.elements import Document, Element, main_model, refuse
from paritygate.converter.exporters._pmml.emission.ensembles import ensemble_emitter
from paritygate.converter.exporters._pmml.emission.expressions import emit_derived
from paritygate.converter.exporters._pmml.emission.graph import ML, ML_OPSET, Column, Graph
from paritygate.converter.exporters._pmml.emission.models import Emit, Place, Result, enter, finish
from paritygate.converter.exporters._pmml.emission.networks import emit_network
from paritygate.converter.exporters._pmml.emission.regressions import emit_regression
from paritygate.converter.exporters._pmml.emission.scope import Fields, rounded_to_single
from paritygate.converter.exporters._pmml.emission.trees import emit_tree
from paritygate.converter.exporters._pmml.outputs import NO_LABEL, PREDICTED, PROBABILITIES, Output
from paritygate.converter.types import DType, TensorSpec

_DOUBLE, _INT64 = onnx.TensorProto.DOUBLE, onnx.TensorProto.INT64
_IR_VERSIONS = {13: 7, 14: 7, 15: 8, 16: 8, 17: 8, 18: 8, 19: 9, 20: 9, 21: 10, 22: 10, 23: 11}


def _emitters() -> dict[str, Emit]:
    emitters: dict[str, Emit] = {
        "TreeModel": emit_tree,
        "RegressionModel": emit_regression,
        "NeuralNetwork": emit_network,
    }
    emitters["MiningModel"] = ensemble_emitter(emitters)
    return emitters


def emit_document(
    document: Document,
    inputs: Sequence[TensorSpec],
    fields: Sequence[str],
    outputs: Sequence[Output],
    opset: int,
) -> onnx.ModelProto:
    """Write a document as ONNX.

    Args:
        document: The file.
        inputs: One column each for the fields, or one matrix with a column for each.
        fields: The active fields in order.
        outputs: What to give.
        opset: Version of the default operator set.

    Raises:
        UnsupportedOperator: If something in it has no form here; the text names the element and its line.
    """
    graph = Graph(opset, [spec.name for spec in inputs])
    declared = data_fields(document.root)
    known = _columns(graph, inputs, fields, declared)
    element = main_model(document)
    entry = enter(
        element, graph, declared, Fields(graph, known, {}, emit_derived), nested=False,
        dictionary=document.root.find("TransformationDictionary"),
    )  # fmt: skip
    result = finish(element, entry, _emitters()[element.tag](element, entry.place))
    values = [_output(output, entry.place, result) for output in outputs]
    graph.finish_texts()
    return _model(graph, inputs, outputs, values, len(entry.place.classes))


def _columns(
    graph: Graph, inputs: Sequence[TensorSpec], fields: Sequence[str], declared: Mapping[str, Field]
) -> dict[str, Column]:
    known: dict[str, Column] = {}
    for index, name in enumerate(fields):
        spec = inputs[0] if len(inputs) == 1 else inputs[index]
        own = spec.name
        if len(inputs) == 1 and len(fields) > 1:
            own = graph.op("Gather", spec.name, graph.ints(index), axis=1)
        field = declared[name]
        if spec.dtype is DType.STRING:
            column = _text(graph, own, field)
        else:
            number = own if spec.dtype is DType.FLOAT64 else graph.cast(own, _DOUBLE)
            if field.data_type == "float" and spec.dtype is DType.FLOAT64:
                number = rounded_to_single(graph, number)
            column = Column(number, field.data_type, spec.dtype.is_floating)
        known[name] = column
        graph.rows = graph.rows or column.name
    return known


def _text(graph: Graph, own: str, field: Field) -> Column:
    code = graph.encoded(own)
    if "" in field.valid:
        return Column(code, "string", False)
    empty = graph.op("Equal", code, graph.number(graph.code("")))
    return Column(graph.where(empty, graph.number(math.nan), code), "string", True)


# --- outputs ------------------------------------------------------------------------------------------------


def _output(output: Output, place: Place, result: Result) -> str:
    graph = place.graph
    if output.kind == PROBABILITIES:
        assert result.shares is not None, "the plan knows whether there are probabilities"
        return result.shares
    if output.kind == PREDICTED and place.classes:
        return _flat(graph, _label(graph, output.dtype, place.classes, result))
    if output.element is None:
        return _flat(graph, result.number)
    column = place.fields.column(output.name, output.element)
    if output.dtype is DType.STRING:
        return _flat(graph, _decoded(graph, column, output.element))
    return _flat(
        graph,
        graph.cast(column.name, output.dtype.onnx) if output.dtype is not DType.FLOAT64 else column.name,
    )


def _decoded(graph: Graph, column: Column, element: Element) -> str:
    if not column.closed:
        raise refuse(element, "an output that hands a text input on", "Remove the OutputField.")
    return graph.decoded(column)


def _flat(graph: Graph, name: str) -> str:
    return graph.op("Reshape", name, graph.ints(-1))


def _label(graph: Graph, dtype: DType, classes: Sequence[str], result: Result) -> str:
    """The class of each row in the output's type; index -1 picks the entry for no result."""
    if dtype is DType.INT64:
        table = np.array([*(int(float(name)) for name in classes), NO_LABEL], dtype=np.int64)
    elif dtype is DType.FLOAT64:
        table = np.array([*map(float, classes), math.nan], dtype=np.float64)
    else:
        table = np.array([*classes, ""], dtype=object)
    return graph.op("Gather", graph.constant(table), result.label, axis=0)


def _model(
    graph: Graph,
    inputs: Sequence[TensorSpec],
    outputs: Sequence[Output],
    values: Sequence[str],
    num_classes: int,
) -> onnx.ModelProto:
    given = []
    for index, (output, value) in enumerate(zip(outputs, values, strict=True)):
        name = f"{graph.prefix}/output_{index}"
        graph.nodes.append(helper.make_node("Identity", [value], [name], name=name))
        shape = [None, num_classes] if output.kind == PROBABILITIES else [None]
        given.append(helper.make_tensor_value_info(name, output.dtype.onnx, shape))
    taken = [helper.make_tensor_value_info(spec.name, spec.dtype.onnx, spec.shape) for spec in inputs]
    opsets = [helper.make_opsetid("", graph.opset), helper.make_opsetid(ML, ML_OPSET)]
    proto = helper.make_graph(graph.nodes, "pmml", taken, given, graph.initializers)
    return helper.make_model(
        proto, opset_imports=opsets, ir_version=_IR_VERSIONS[graph.opset], producer_name="paritygate"
    )
