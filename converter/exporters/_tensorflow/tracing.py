"""Trace a TensorFlow callable with the open sizes open, and say which of them it cannot leave open."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Protocol

from paritygate.converter.errors import ConverterError, ExportError
from paritygate.converter.exporters._tensorflow.imports import telling_line
from paritygate.converter.exporters.base import DimCannotVary
from paritygate.converter.exporters.blame import to_blame
from paritygate.converter.types import Dim, TensorSpec


class Traceable(Protocol):
    """Makes the `tf.function` of a model, and its signature, from the inputs."""

    def __call__(self, inputs: Sequence[TensorSpec], *, autograph: bool) -> tuple[Any, list[Any]]: ...


def traced(
    traceable: Traceable, inputs: Sequence[TensorSpec], fixed: Sequence[TensorSpec]
) -> tuple[Any, list[Any]]:
    """The `tf.function` of a model that was traced with its named sizes open, and that signature.

    Code that TensorFlow's autograph has to rewrite first (`len(x)`, an `if` on a tensor, outside any `tf.function`
    of the user's) is given to it where the code as it stands cannot be traced.

    Args:
        traceable: The model.
        inputs: Its inputs, open sizes by name.
        fixed: The same at the sizes of the example.

    Raises:
        DimCannotVary: If its Python code needs to know a size (`range(x.shape[0])`).
        ExportError: If it cannot be traced at fixed sizes either.
    """
    found = _tried(traceable, inputs)
    if not isinstance(found, Exception):
        return found
    at_fixed = _tried(traceable, fixed)
    if isinstance(at_fixed, Exception):
        raise ExportError(f"TensorFlow cannot trace it into a graph: {telling_line(at_fixed)}") from at_fixed
    dims = list(dict.fromkeys(dim for spec in inputs for dim in spec.shape if isinstance(dim, str)))
    blamed = to_blame(
        dims, lambda opened: not isinstance(_tried(traceable, _with(inputs, fixed, opened)), Exception)
    )
    raise DimCannotVary(blamed, f"TensorFlow cannot trace it open: {telling_line(found)}") from found


def _tried(traceable: Traceable, inputs: Sequence[TensorSpec]) -> tuple[Any, list[Any]] | Exception:
    """The function, traced, and its signature; or what the trace of the code as it stands raised."""
    refused: Exception | None = None
    for autograph in (False, True):
        function, signature = traceable(inputs, autograph=autograph)
        try:
            function.get_concrete_function(*signature)
        except (ConverterError, MemoryError):  # says nothing of the sizes
            raise
        except Exception as error:  # noqa: BLE001 - given back: a verdict on these sizes, or told
            refused = refused or error
        else:
            return function, signature
    assert refused is not None  # neither way returned
    return refused


def _with(
    inputs: Sequence[TensorSpec], fixed: Sequence[TensorSpec], opened: Iterable[str]
) -> list[TensorSpec]:
    """The inputs with only some of their sizes open."""
    kept = set(opened)
    return [
        TensorSpec(spec.name, spec.dtype, tuple(d if d in kept else s for d, s in _pairs(spec, at)))
        for spec, at in zip(inputs, fixed, strict=True)
    ]


def _pairs(spec: TensorSpec, at: TensorSpec) -> Iterator[tuple[Dim, Dim]]:
    return zip(spec.shape, at.shape, strict=True)
