"""Write an ONNX file with weights straight from the arrays that hold them.

Weights that are put into a message are copied there, and once more when it is serialised; for a large model that
is much of what its conversion takes. Here a message without weights is serialised, and the weights are appended in
protobuf's own form, one after the other. Any reader finds them where they belong, since the order of fields in a
message is free.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from paritygate.converter.exporters.base import ConversionRequest
from paritygate.converter.graph.weights import SMALLEST_APART_BYTES, set_aside
from paritygate.converter.graph.wire import head
from paritygate.converter.types import Array, DType

_GRAPH_OF_MODEL, _INITIALIZER_OF_GRAPH, _DATA_OF_TENSOR = 7, 5, 9


def save_model(model: onnx.ModelProto, weights: Mapping[str, Array], request: ConversionRequest) -> None:
    """Write a model; large weights in sum go to a file beside it.

    Args:
        model: Without the weights; those that it holds are constants of the program.
        weights: Their values; those that no node uses are left out.
        request: Where to, and from which sum on a side file is used.
    """
    used = names_used(model.graph)
    arrays = {name: array for name, array in weights.items() if name in used}
    size = sum(array.nbytes for array in arrays.values())
    size += sum(len(tensor.raw_data) for tensor in model.graph.initializer)
    if size <= request.external_data_threshold_bytes:
        _write(model, [(_message(name, array), array) for name, array in arrays.items()], request.path)
        return
    side = request.path.with_name(f"{request.path.name}.data")
    with side.open("wb") as file:
        for tensor in model.graph.initializer:
            if len(tensor.raw_data) >= SMALLEST_APART_BYTES:
                data = tensor.raw_data
                tensor.ClearField("raw_data")
                set_aside(tensor, data, file)
        parts = []
        for name, array in arrays.items():
            message = _message(name, array)
            if array.nbytes >= SMALLEST_APART_BYTES:
                set_aside(message, _bytes_of(array), file)
            parts.append((message, array if array.nbytes < SMALLEST_APART_BYTES else None))
    _write(model, parts, request.path)


def names_used(graph: onnx.GraphProto) -> set[str]:
    """The names of the values that nodes of a graph use, those inside of branches too."""
    used: set[str] = set()
    for node in graph.node:
        used |= set(node.input)
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.GRAPH:
                used |= names_used(attribute.g)
    return used


def _message(name: str, array: Array) -> onnx.TensorProto:
    return onnx.TensorProto(name=name, data_type=DType.from_numpy(array.dtype).onnx, dims=array.shape)


def _bytes_of(array: Array) -> memoryview:
    flat: Any = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    return memoryview(flat)


def _write(model: onnx.ModelProto, weights: list[tuple[onnx.TensorProto, Array | None]], path: Path) -> None:
    graph = model.graph.SerializeToString(deterministic=True)
    rest = onnx.ModelProto()
    rest.CopyFrom(model)
    rest.ClearField("graph")
    parts = [_initializer(message, array) for message, array in weights]
    length = len(graph) + sum(len(part) for pieces in parts for part in pieces)
    with path.open("wb") as file:
        file.write(rest.SerializeToString(deterministic=True))
        file.write(head(_GRAPH_OF_MODEL, length))
        file.write(graph)
        for pieces in parts:
            file.writelines(pieces)


def _initializer(message: onnx.TensorProto, array: Array | None) -> list[Any]:
    """A weight as a field of a graph: what precedes its bytes, and these."""
    start = message.SerializeToString(deterministic=True)
    if array is None:
        return [head(_INITIALIZER_OF_GRAPH, len(start)), start]
    data = _bytes_of(array)
    start += head(_DATA_OF_TENSOR, data.nbytes)
    return [head(_INITIALIZER_OF_GRAPH, len(start) + data.nbytes), start, data]
