"""A Keras model as a source: what it takes and gives, called in inference mode."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from paritygate.converter.config import ExportConfig
from paritygate.converter.errors import ExportError
from paritygate.converter.exporters._keras.calls import is_sequential, packed_call, training_off
from paritygate.converter.exporters._keras.twin import twin_builder
from paritygate.converter.exporters._tensorflow.callables import open_callable
from paritygate.converter.exporters._tensorflow.inputs import declared_shapes, own_example
from paritygate.converter.exporters._tensorflow.model import TensorFlowModel
from paritygate.converter.exporters._tensorflow.structure import unused_name
from paritygate.converter.exporters._tensorflow.values import source_dtype
from paritygate.converter.exporters.base import SourceInput, SourceModel, Weights
from paritygate.converter.exporters.binding import declared_inputs
from paritygate.converter.types import Feeds


def is_keras_model(source: Any) -> bool:
    """Whether it is a model of `keras` or of `tf_keras`; imports neither."""
    return any(
        kind.__name__ == "Model" and kind.__module__.split(".")[0] in ("keras", "tf_keras")
        for kind in type(source).__mro__
    )


@dataclass(frozen=True)
class Described:
    """What a Keras model says of itself, whatever backend it runs on.

    Attributes:
        inputs: What it takes, with the sizes that the user declared.
        example: The user's example, if there is one.
        outputs: Names of its outputs by position.
        output_shapes: Sizes of its outputs, see `TensorFlowModel`.
        ranges: Rows of the embeddings that its inputs index.
    """

    inputs: tuple[SourceInput, ...]
    example: Feeds | None
    outputs: list[str]
    output_shapes: list[list[int | None]]
    ranges: dict[str, tuple[int, int]]


def describe(model: Any, config: ExportConfig) -> Described | None:
    """What a model says of itself; None if it was written as a class that does not say what it takes.

    Raises:
        ExportError: If it has no weights yet, or the user's words or example do not fit.
    """
    if not model.built:
        raise ExportError(
            f"Keras model {model.name!r} has no weights yet: it was never called. Call it once on real inputs "
            "(or train it) before exporting it."
        )
    symbolic = getattr(model, "inputs", None)
    if not symbolic:
        return None
    names: list[str] = []
    for tensor in symbolic:
        names.append(unused_name(_layer_name(tensor), set(names)))
    given = (_source_input(model, tensor, name) for tensor, name in zip(symbolic, names, strict=True))
    inputs = declared_shapes(config, tuple(given))
    return Described(
        inputs=inputs,
        example=None if declared_inputs(config.inputs) is not None else own_example(config, names),
        outputs=[_layer_name(tensor) for tensor in model.outputs],
        output_shapes=_output_shapes(model),
        ranges=_embedding_rows(model, symbolic, names),
    )


def open_model(model: Any, config: ExportConfig, weights: Weights) -> SourceModel:
    """A Keras model that runs on the tensorflow backend, or one of tf_keras.

    Raises:
        ExportError: If it has no weights yet, or does not say what it takes and nobody else does.
    """
    described = describe(model, config)
    if described is None:
        return open_callable(model, training_off(model), model.call, config, weights)
    return TensorFlowModel(
        call=packed_call(model),
        inputs=described.inputs,
        dims_are_declared=True,
        example=described.example,
        weights=weights,
        positional_names=described.outputs,
        output_shapes=described.output_shapes,
        build_twin=twin_builder(model, trust=config.trust),
        ranges=described.ranges,
        traces_anew=True,
    )


def _source_input(model: Any, tensor: Any, name: str) -> SourceInput:
    shape = [None if dim is None else int(dim) for dim in tensor.shape]
    if is_sequential(model) and shape:
        # A Sequential that was built by its first call holds that call's batch size, which nobody declared.
        shape[0] = None
    return SourceInput(name, source_dtype(tensor.dtype), tuple(shape))


def _output_shapes(model: Any) -> list[list[int | None]]:
    """Sizes of the outputs in the order of the answer, batch left open; nothing for answers with keys.

    Keras lists the outputs of a dict by sorted key, the answer holds them in the dict's own order.
    """
    answer = None if is_sequential(model) else model.output
    if isinstance(answer, Mapping) or (
        isinstance(answer, list | tuple) and len(answer) != len(model.outputs)
    ):
        return []
    shapes = [[None if dim is None else int(dim) for dim in tensor.shape] for tensor in model.outputs]
    return [[None, *shape[1:]] if shape else [] for shape in shapes]


def _layer_name(tensor: Any) -> str:
    history = tensor._keras_history
    layer = history.operation if hasattr(history, "operation") else history.layer
    return without_count(str(layer.name), type(layer).__name__)


def without_count(name: str, kind: str) -> str:
    """A layer's name without the number that Keras gave it: `dense_4` is `dense`.

    The number counts what was built before in the same process, so the same script gives the same model another
    one each time it runs. A name that a person chose stays.
    """
    words = re.sub(r"([a-z])([A-Z])", r"\1_\2", re.sub(r"(.)([A-Z][a-z]+)", r"\1_\2", kind)).lower()
    own = (words, "input") if kind == "InputLayer" else (words,)
    return next((word for word in own if re.fullmatch(rf"{word}_\d+", name)), name)


def _embedding_rows(model: Any, symbolic: Sequence[Any], names: Sequence[str]) -> dict[str, tuple[int, int]]:
    """For each input that an Embedding indexes: the rows that it has."""
    rows: dict[str, tuple[int, int]] = {}
    for layer in model.layers:
        if type(layer).__name__ != "Embedding":
            continue
        try:
            indexed = layer.input
        except (AttributeError, ValueError):  # used in several places, so it has no one input
            continue
        for tensor, name in zip(symbolic, names, strict=True):
            if tensor is indexed:
                rows[name] = (0, min(rows.get(name, (0, layer.input_dim - 1))[1], layer.input_dim - 1))
    return rows
