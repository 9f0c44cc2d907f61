"""Models whose inputs are known only from the user's example or words."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from paritygate.converter.config import ExportConfig
from paritygate.converter.errors import ExportError
from paritygate.converter.exporters._tensorflow.calls import Call
from paritygate.converter.exporters._tensorflow.model import TensorFlowModel
from paritygate.converter.exporters.base import SourceInput, SourceModel, Weights
from paritygate.converter.exporters.binding import bind_example, declared_inputs
from paritygate.converter.types import DType


def open_callable(
    source: Any,
    answer: Callable[..., Any],
    function: Callable[..., Any],
    config: ExportConfig,
    weights: Weights,
) -> SourceModel:
    """A model whose inputs are known only from the user's example or words."""
    if config.inputs is None:
        raise ExportError(
            f"{type(source).__name__} does not say what it takes. Give an example (inputs=array, tuple or dict) "
            "or words (inputs='x:float32[batch,3]')."
        )
    parameters = _call_parameters(function)
    declared = declared_inputs(config.inputs)
    if declared is not None:
        names = [spec.name for spec in declared]
        inputs = tuple(SourceInput(spec.name, spec.dtype, spec.shape) for spec in declared)
        call = _call_by_name(answer, parameters, names)
        return TensorFlowModel(
            call=call, inputs=inputs, dims_are_declared=True, weights=weights, traces_anew=True
        )
    if isinstance(config.inputs, Mapping):
        names = [str(name) for name in config.inputs]
        call = _call_by_name(answer, parameters, names)
    else:
        count = len(config.inputs) if isinstance(config.inputs, tuple | list) else 1
        names, call = _call_by_position(answer, parameters, count)
    example = bind_example(config.inputs, names)
    assert example is not None
    inputs = tuple(SourceInput(n, DType.from_numpy(example[n].dtype), example[n].shape) for n in names)
    return TensorFlowModel(call=call, inputs=inputs, example=example, weights=weights, traces_anew=True)


def _call_parameters(function: Callable[..., Any]) -> list[str]:
    own = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    found = inspect.signature(function).parameters.values()
    return [p.name for p in found if p.kind in own and p.name not in ("self", "training", "mask")]


def _call_by_name(answer: Callable[..., Any], parameters: Sequence[str], names: Sequence[str]) -> Call:
    if set(names) <= set(parameters):
        return lambda tensors: answer(**dict(zip(names, tensors, strict=True)))
    if len(names) == 1:
        return lambda tensors: answer(tensors[0])
    if len(parameters) == 1:
        return lambda tensors: answer(dict(zip(names, tensors, strict=True)))
    raise ExportError(
        f"the inputs are named {list(names)}, but the model's call takes {list(parameters)}; use those names, "
        "or give a tuple in that order."
    )


def _call_by_position(
    answer: Callable[..., Any], parameters: Sequence[str], count: int
) -> tuple[list[str], Call]:
    if count <= len(parameters):
        return list(parameters[:count]), lambda tensors: answer(*tensors)
    if len(parameters) == 1:
        return [f"{parameters[0]}_{k}" for k in range(count)], lambda tensors: answer(list(tensors))
    raise ExportError(f"the example has {count} arrays, but the model's call takes {list(parameters)}.")
