"""Nested inputs and outputs as flat lists of named tensors, and back.

A graph has a flat list of named inputs and outputs; a PyTorch model takes and gives dicts, tuples, dataclasses and
whatever stands in them. Names say the path: `mask`, `images_0`, `output_1`, `encoder_last_hidden_state`.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from paritygate.converter.errors import ExportError
from paritygate.converter.exporters._pytorch.tensors import as_tensor
from paritygate.converter.types import TensorSpec


@dataclass(frozen=True)
class _Leaf:
    index: int


@dataclass
class CallPlan:
    """How flat tensors become one call of the model's forward.

    Attributes:
        names: The flat inputs' names in order.
        tensors: The example tensors in the same order; empty where the inputs are only declared.
        constants: Parts of the example that are no tensors, by name; they are fixed in the graph.
    """

    names: list[str] = field(default_factory=list)
    tensors: list[torch.Tensor] = field(default_factory=list)
    constants: dict[str, Any] = field(default_factory=dict)
    _args: list[Any] = field(default_factory=list)
    _kwargs: dict[str, Any] = field(default_factory=dict)

    def call(self, module: torch.nn.Module, leaves: Sequence[torch.Tensor]) -> Any:
        """The model's answer to flat inputs."""
        args = [_rebuild(part, leaves) for part in self._args]
        kwargs = {name: _rebuild(part, leaves) for name, part in self._kwargs.items()}
        return module(*args, **kwargs)

    def source_text(self, called: str, leaf: Callable[[int], str]) -> str:
        """The same call as a line of TorchScript, whose syntax for it is Python's."""
        parts = [_text(part, leaf) for part in self._args]
        parts += [f"{name}={_text(part, leaf)}" for name, part in self._kwargs.items()]
        return f"{called}({', '.join(parts)})"

    def _take(self, name: str, value: Any) -> Any:
        """A template of a value in which each tensor is a numbered hole."""
        if isinstance(value, torch.Tensor | np.ndarray | np.generic):
            return self._hole(name, as_tensor(value))
        if isinstance(value, Mapping):
            return {
                key: self._take(f"{name}_{key}" if name else str(key), part) for key, part in value.items()
            }
        if isinstance(value, tuple | list):
            parts = [self._take(f"{name}_{index}", part) for index, part in enumerate(value)]
            return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
        if value is not None and not isinstance(value, bool | int | float | str):
            raise ExportError(
                f"input {name!r} is a {type(value).__name__}; expected a tensor, an array, a number, or a "
                f"dict, list or tuple of them."
            )
        self.constants[name] = value
        return value

    def _hole(self, name: str, tensor: torch.Tensor) -> _Leaf:
        self.names.append(unique(name, self.names))
        self.tensors.append(tensor)
        return _Leaf(len(self.names) - 1)


def _rebuild(part: Any, leaves: Sequence[torch.Tensor]) -> Any:
    if isinstance(part, _Leaf):
        return leaves[part.index]
    if isinstance(part, dict):
        return {key: _rebuild(value, leaves) for key, value in part.items()}
    if isinstance(part, tuple | list):
        parts = [_rebuild(value, leaves) for value in part]
        return type(part)(*parts) if hasattr(part, "_fields") else type(part)(parts)
    return part


def _text(part: Any, leaf: Callable[[int], str]) -> str:
    if isinstance(part, _Leaf):
        return leaf(part.index)
    if isinstance(part, dict):
        return "{" + ", ".join(f"{key!r}: {_text(value, leaf)}" for key, value in part.items()) + "}"
    if isinstance(part, list):
        return "[" + ", ".join(_text(value, leaf) for value in part) + "]"
    if isinstance(part, tuple):
        return "(" + "".join(f"{_text(value, leaf)}, " for value in part) + ")"
    return repr(part)


def unique(name: str, taken: Sequence[str]) -> str:
    """The name itself, or with the first number that makes it unlike the taken ones."""
    fresh, number = name, 1
    while fresh in taken:
        number += 1
        fresh = f"{name}_{number}"
    return fresh


def plan_calls(module: torch.nn.Module, example: Any) -> list[CallPlan]:
    """The calls that an example may stand for, the likeliest first.

    Args:
        module: The model.
        example: An array or tensor; a tuple or list, for positional inputs; or a dict. A dict goes in by keyword
            where its keys are parameters of `forward`; else its values go in by position under its keys as names,
            where there are as many parameters; else the dict itself is the one argument.

    Raises:
        ExportError: If the example cannot be a call of this model.
    """
    parameters = _Parameters(module)
    if isinstance(example, Mapping):
        plans = _plan_mapping(parameters, example)
    else:
        values = list(example) if isinstance(example, tuple | list) else [example]
        plans = [_positional({parameters.name(index): value for index, value in enumerate(values)})]
    if any(not plan.names for plan in plans):
        raise ExportError("the example holds no tensor; give at least one array or tensor as an input.")
    return plans


def _plan_mapping(parameters: _Parameters, example: Mapping[Any, Any]) -> list[CallPlan]:
    if parameters.take_keywords(example):
        plan = CallPlan()
        plan._kwargs = {str(key): plan._take(str(key), value) for key, value in example.items()}
        return [plan]
    plans = []
    if parameters.required <= len(example) <= len(parameters.positional):
        plans.append(_positional({str(key): value for key, value in example.items()}))
    if parameters.required <= 1 and parameters.positional:
        whole = CallPlan()
        whole._args = [whole._take("", example)]
        plans.append(whole)
    if not plans:
        raise ExportError(
            f"the example has the inputs {list(example)}, but forward takes {parameters.positional}; "
            f"use those names, or give a tuple in that order."
        )
    return plans


def _positional(values: Mapping[str, Any]) -> CallPlan:
    plan = CallPlan()
    plan._args = [plan._take(name, value) for name, value in values.items()]
    return plan


def plan_declared(module: torch.nn.Module, specs: Sequence[TensorSpec]) -> CallPlan:
    """Plan a call from declared inputs: by keyword where all names are parameters of `forward`, else in order."""
    plan = CallPlan(names=[spec.name for spec in specs])
    if _Parameters(module).take_keywords(dict.fromkeys(plan.names)):
        plan._kwargs = {name: _Leaf(index) for index, name in enumerate(plan.names)}
    else:
        plan._args = [_Leaf(index) for index in range(len(specs))]
    return plan


def parameter_names(module: torch.nn.Module) -> list[str]:
    """Every name that a model's forward takes."""
    return list(_signature(module).parameters)


class _Parameters:
    """The parameters of a model's forward, as far as it tells them."""

    def __init__(self, module: torch.nn.Module) -> None:
        self.positional: list[str] = []
        self.required = 0
        self._keywords: list[str] = []
        self._var_positional: str | None = None
        self._var_keyword = False
        for parameter in _signature(module).parameters.values():
            self._add(parameter)

    def _add(self, parameter: inspect.Parameter) -> None:
        kind = parameter.kind
        if kind is parameter.VAR_POSITIONAL:
            self._var_positional = parameter.name
        elif kind is parameter.VAR_KEYWORD:
            self._var_keyword = True
        else:
            self.required += parameter.default is parameter.empty
            if kind is not parameter.KEYWORD_ONLY:
                self.positional.append(parameter.name)
            if kind is not parameter.POSITIONAL_ONLY:
                self._keywords.append(parameter.name)

    def take_keywords(self, given: Mapping[Any, Any]) -> bool:
        return all(isinstance(key, str) and (self._var_keyword or key in self._keywords) for key in given)

    def name(self, index: int) -> str:
        if index < len(self.positional):
            return self.positional[index]
        return f"{self._var_positional or 'input'}_{index - len(self.positional)}"


def _signature(module: torch.nn.Module) -> inspect.Signature:
    """What a model's forward takes; a script says it in its schema, not in Python's way."""
    if not isinstance(module, torch.jit.ScriptModule):
        return inspect.signature(module.forward)
    return inspect.Signature(
        [
            inspect.Parameter(
                argument.name,
                inspect.Parameter.KEYWORD_ONLY
                if argument.kwarg_only
                else inspect.Parameter.POSITIONAL_OR_KEYWORD,
                default=argument.default_value if argument.has_default_value() else inspect.Parameter.empty,
            )
            for argument in module.forward.schema.arguments[1:]
        ]
    )


def flatten_output(result: Any) -> tuple[list[tuple[str, torch.Tensor]], dict[str, Any]]:
    """What a model gave as named tensors in order, and the named parts that are no tensors.

    A single tensor is `output`; members of a top tuple or list are `output_0`, `output_1`, ...; keys, fields and
    nested places join with `_`. None is left out. A tensor given twice counts twice.
    """
    tensors: list[tuple[str, torch.Tensor]] = []
    others: dict[str, Any] = {}
    _walk("", result, tensors, others)
    return tensors, others


def _walk(name: str, value: Any, tensors: list[tuple[str, torch.Tensor]], others: dict[str, Any]) -> None:
    if isinstance(value, torch.Tensor):
        tensors.append((unique(name or "output", [known for known, _ in tensors]), value))
    elif value is not None:
        members = _members(value)
        if members is None:
            others[name or "output"] = value
            return
        for key, part in members:
            stem = name if name or not isinstance(key, int) else "output"
            _walk(f"{stem}_{key}" if stem else str(key), part, tensors, others)


def _members(value: Any) -> list[tuple[Any, Any]] | None:
    if isinstance(value, Mapping):
        return list(value.items())
    names = getattr(value, "_fields", None)
    if isinstance(value, tuple) and names is not None:
        return list(zip(names, value, strict=True))
    if isinstance(value, tuple | list):
        return list(enumerate(value))
    if dataclasses.is_dataclass(value):
        return [(f.name, getattr(value, f.name)) for f in dataclasses.fields(value)]
    return None
