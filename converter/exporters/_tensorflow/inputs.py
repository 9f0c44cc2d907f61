"""Inputs as a TensorFlow model declares them, made narrower by the user's words."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np

from paritygate.converter.config import ExportConfig
from paritygate.converter.errors import ExportError
from paritygate.converter.exporters.base import SourceInput
from paritygate.converter.exporters.binding import bind_example, declared_inputs
from paritygate.converter.types import Feeds


def own_example(config: ExportConfig, names: Sequence[str]) -> Feeds | None:
    """The user's example under the model's own names; it may be given under the names of `input_names`."""
    example = config.inputs
    if (
        isinstance(example, Mapping)
        and config.input_names is not None
        and set(example) == set(config.input_names)
    ):
        example = [example[name] for name in config.input_names]
    return bind_example(example, names)


def declared_shapes(config: ExportConfig, inputs: tuple[SourceInput, ...]) -> tuple[SourceInput, ...]:
    """The model's inputs with the sizes and names of sizes that `config.inputs` declares in words."""
    declared = declared_inputs(config.inputs)
    if declared is None:
        return inputs
    said = ", ".join(
        f"{i.name}: {i.dtype.value}{['open' if d is None else d for d in i.shape]}" for i in inputs
    )
    names = config.input_names or [spec.name for spec in inputs]
    if [spec.name for spec in declared] != list(names):
        raise ExportError(f"inputs declares {', '.join(map(str, declared))}, but the model takes {said}.")
    for spec, own in zip(declared, inputs, strict=True):
        fits = len(spec.shape) == len(own.shape) and all(
            o is None or o == d for o, d in zip(own.shape, spec.shape, strict=True)
        )
        if spec.dtype is not own.dtype or not fits:
            raise ExportError(f"inputs declares {spec}, but the model takes {said}.")
    return tuple(replace(own, shape=spec.shape) for spec, own in zip(declared, inputs, strict=True))


@contextmanager
def variables_kept(source: Any) -> Iterator[None]:
    """Put back every variable that running the model changed: counters, running statistics, seeds."""
    variables = list(getattr(source, "variables", ()))
    before = [np.array(variable.numpy()) for variable in variables]
    try:
        yield
    finally:
        for variable, value in zip(variables, before, strict=True):
            if variable.numpy().tobytes() != value.tobytes():
                variable.assign(value)
