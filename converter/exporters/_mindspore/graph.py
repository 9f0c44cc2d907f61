"""From a MindIR program to an ONNX model, but for its weights, which `writing` adds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx

from paritygate.converter.errors import ExportError
from paritygate.converter.exporters._mindspore.emitter import Call, Emitter, Refusing
from paritygate.converter.exporters._mindspore.mindir import Program
from paritygate.converter.exporters._mindspore.scopes import Scope
from paritygate.converter.exporters._mindspore.translate import Translator, Unsupported
from paritygate.converter.exporters._mindspore.values import Abstract, Known, Tensor, Value
from paritygate.converter.exporters._mindspore.writing import names_used
from paritygate.converter.types import Array, DType, TensorSpec

IR_VERSION = 9
"""The format version that came with opset 18's successor; every runtime that we support reads it."""


def build_model(
    program: Program,
    inputs: Sequence[TensorSpec],
    outputs: Sequence[str],
    weights: Mapping[str, Array],
    opset: int,
    unsupported: Unsupported,
) -> tuple[onnx.ModelProto, list[str]]:
    """Translate a program; gives the model without weights, and the cells that raise an error for some inputs.

    Args:
        program: What MindSpore compiled.
        inputs: The graph inputs, under the source's own names.
        outputs: Names of the outputs, in order.
        weights: Values of the weights by their own names; only types and sizes are looked at.
        opset: The operator set to declare.
        unsupported: Makes the error for a node without ONNX form.

    Raises:
        ExportError: If a node has no ONNX form, or the program does nothing but raise an error.
    """
    emitter = Emitter([*(spec.name for spec in inputs), *outputs, *weights])
    translator = Translator(program, emitter, unsupported)
    tensors = [
        Tensor(
            spec.name,
            Abstract(spec.dtype.numpy, tuple(d if isinstance(d, int) else None for d in spec.shape)),
        )
        for spec in inputs
    ]
    named = {
        full: Tensor(own, Abstract(weights[own].dtype, weights[own].shape))
        for full, own in program.parameters.items()
        if own in weights
    }
    emitter.kinds |= {tensor.name: tensor.abstract for tensor in (*tensors, *named.values())}
    try:
        values = translator.outputs(tensors, named)
    except Refusing as error:
        raise ExportError(
            "the cell raises an error whatever its inputs are; let it give tensors, at least for some."
        ) from error
    call = Call(emitter, emitter.main, "Return", tuple(values), {}, None, Scope("", ""))
    infos = []
    for name, value in zip(outputs, values, strict=True):
        given = call.name(value)
        emitter.main.nodes.append(onnx.helper.make_node("Identity", [given], [name], name=f"give_{name}"))
        infos.append(
            onnx.helper.make_tensor_value_info(
                name, DType.from_numpy(call.dtype_of(value)).onnx, _sizes(value)
            )
        )
    graph = onnx.helper.make_graph(emitter.main.nodes, "mindspore", _inputs(inputs), infos)
    used = names_used(graph)
    graph.initializer.extend(tensor for tensor in emitter.initializers if tensor.name in used)
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", opset)])
    model.ir_version = IR_VERSION
    return model, sorted(translator.refuses)


def _sizes(value: Value) -> list[int | None] | None:
    """The sizes of an output where its rank is known; they are declared anew from what the source gives."""
    if isinstance(value, Tensor):
        return None if value.abstract.shape is None else list(value.abstract.shape)
    return list(np.asarray(value.value).shape) if isinstance(value, Known) else None


def _inputs(inputs: Sequence[TensorSpec]) -> list[onnx.ValueInfoProto]:
    return [onnx.helper.make_tensor_value_info(spec.name, spec.dtype.onnx, spec.shape) for spec in inputs]
