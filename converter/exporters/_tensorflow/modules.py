"""`tf.Module`s and `tf.function`s in memory."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from paritygate.converter.config import ExportConfig
from paritygate.converter.errors import ExportError, SourceError
from paritygate.converter.exporters._tensorflow.callables import open_callable
from paritygate.converter.exporters._tensorflow.inputs import declared_shapes, own_example
from paritygate.converter.exporters._tensorflow.model import TensorFlowModel
from paritygate.converter.exporters._tensorflow.values import source_dtype
from paritygate.converter.exporters.base import SourceInput, SourceModel, Weights
from paritygate.converter.exporters.binding import declared_inputs

_EAGER = "tensorflow.python.eager.polymorphic_function"


def is_module(source: Any) -> bool:
    """Whether it is a `tf.Module`; imports nothing."""
    return _is_kind(source, "Module", "tensorflow.python.module.module")


def is_function(source: Any) -> bool:
    """Whether it is a `tf.function`, also one that is bound to an object; imports nothing."""
    return _is_kind(source, "Function", f"{_EAGER}.polymorphic_function")


def is_concrete(source: Any) -> bool:
    """Whether it is a traced `tf.function`, such as a signature of a SavedModel; imports nothing."""
    return _is_kind(source, "ConcreteFunction", f"{_EAGER}.concrete_function")


def _is_kind(source: Any, name: str, module: str) -> bool:
    return any(kind.__name__ == name and kind.__module__ == module for kind in type(source).__mro__)


def open_module(module: Any, config: ExportConfig, weights: Weights) -> SourceModel:
    """A `tf.Module`, by the signature of its `__call__` or by the user's example.

    Raises:
        SourceError: If it cannot be called.
    """
    if not callable(module):
        functions = [name for name, value in vars(type(module)).items() if is_function(value)]
        instead = (
            f"one of its functions: {', '.join(functions)}" if functions else "a tf.function that uses it"
        )
        raise SourceError(
            f"a {type(module).__qualname__} cannot be called, so nothing says what to convert. Give it a "
            f"__call__, or pass {instead}."
        )
    return _open(module, module, module.__call__, config, weights)


def open_function(function: Any, config: ExportConfig, weights: Weights) -> SourceModel:
    """A `tf.function`, by its signature or by the user's example."""
    return _open(function, function, function.python_function, config, weights)


def _open(
    source: Any,
    answer: Callable[..., Any],
    function: Callable[..., Any],
    config: ExportConfig,
    weights: Weights,
) -> SourceModel:
    signature = getattr(source, "input_signature", None) or getattr(function, "input_signature", None)
    if signature is None:
        return open_callable(source, answer, function, config, weights)
    specs, _ = signature if _is_pair(signature) else (signature, {})
    _refuse_other_kinds(source, specs)
    parameters = [name for name in inspect.signature(function).parameters if name != "self"]
    return open_specs(
        answer, [(spec.name or parameters[k], spec) for k, spec in enumerate(specs)], config, weights
    )


def _refuse_other_kinds(source: Any, specs: Sequence[Any]) -> None:
    """Refuse ragged and sparse tensors, and structures of tensors, as inputs."""
    strange = [spec for spec in specs if type(spec).__name__ not in ("TensorSpec", "BoundedTensorSpec")]
    if strange:
        raise ExportError(
            f"{getattr(source, '__name__', type(source).__name__)} takes a {type(strange[0]).__name__}; served "
            "models take dense tensors, one by one. Wrap it in a tf.function that takes those."
        )


def open_specs(
    answer: Callable[..., Any],
    specs: list[tuple[str, Any]],
    config: ExportConfig,
    weights: Weights,
    notes: list[str] | None = None,
) -> TensorFlowModel:
    """A callable of positional tensors that says itself what it takes.

    Args:
        answer: The callable.
        specs: The name and `tf.TensorSpec` of each of its arguments, in order.
        config: The user's words on sizes, and an example.
        weights: Where the weights are from.
        notes: Sentences for the manifest.
    """
    names = [name for name, _ in specs]
    inputs = tuple(
        SourceInput(name, source_dtype(spec.dtype), _sizes(name, spec, config)) for name, spec in specs
    )
    return TensorFlowModel(
        call=lambda tensors: answer(*tensors),
        inputs=declared_shapes(config, inputs),
        dims_are_declared=True,
        example=None if declared_inputs(config.inputs) is not None else own_example(config, names),
        weights=weights,
        notes=notes if notes is not None else [],
    )


def _sizes(name: str, spec: Any, config: ExportConfig) -> tuple[int | None, ...]:
    if spec.shape.rank is not None:
        return tuple(spec.shape.as_list())
    said = next((d.shape for d in declared_inputs(config.inputs) or () if d.name == name), None)
    if said is None:
        raise ExportError(
            f"the model takes {name!r} with any number of axes; a served model has a fixed number. Say which: "
            f"--input {name}:{source_dtype(spec.dtype).value}[batch,3] (inputs=)."
        )
    return tuple(None for _ in said)


def _is_pair(signature: Any) -> bool:
    return len(signature) == 2 and isinstance(signature[1], Mapping)
