"""Nested inputs and outputs as flat lists of named arrays, and back.

A graph has a flat list of named inputs and outputs; a JAX function takes and gives dicts, tuples, dataclasses and
whatever stands in them. Names say the path: `mask`, `images_0`, `output_1`, `encoder_last_hidden`.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np

from paritygate.converter.errors import ExportError
from paritygate.converter.types import TensorSpec

_SWITCHES = {
    "deterministic": True, "use_running_average": True, "inference": True, "eval": True, "eval_mode": True,
    "train": False, "training": False, "is_training": False, "is_train": False,
}  # fmt: skip
"""Arguments that say whether a model trains or answers, with the value that makes it answer."""


@dataclass(frozen=True)
class _Leaf:
    index: int


@dataclass
class CallPlan:
    """How flat arrays become one call.

    Attributes:
        names: The flat inputs' names in order.
        arrays: The example arrays in the same order; empty where the inputs are only declared.
        constants: Parts of the example that are no arrays, by name; they are fixed in the graph.
        switches: Arguments that were set so that the model answers and does not train.
    """

    names: list[str] = field(default_factory=list)
    arrays: list[np.ndarray[Any, Any]] = field(default_factory=list)
    constants: dict[str, Any] = field(default_factory=dict)
    switches: dict[str, bool] = field(default_factory=dict)
    _args: list[Any] = field(default_factory=list)
    _kwargs: dict[str, Any] = field(default_factory=dict)

    def call(self, function: Callable[..., Any], leaves: Sequence[Any]) -> Any:
        """The function's answer to flat inputs."""
        args = [_rebuild(part, leaves) for part in self._args]
        kwargs = {name: _rebuild(part, leaves) for name, part in self._kwargs.items()}
        return function(*args, **kwargs, **self.switches)

    def _take(self, name: str, value: Any) -> Any:
        """A template of a value in which each array is a numbered hole."""
        if isinstance(value, jax.Array | np.ndarray | np.generic):
            self.names.append(unique(name, self.names))
            self.arrays.append(np.asarray(value))
            return _Leaf(len(self.names) - 1)
        if isinstance(value, Mapping):
            return {
                key: self._take(f"{name}_{key}" if name else str(key), part) for key, part in value.items()
            }
        if isinstance(value, tuple | list):
            parts = [self._take(f"{name}_{index}", part) for index, part in enumerate(value)]
            return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
        if value is not None and not isinstance(value, bool | int | float | str):
            raise ExportError(
                f"input {name!r} is a {type(value).__name__}; expected an array, a number, or a dict, list or "
                f"tuple of them."
            )
        self.constants[name] = value
        return value


def _rebuild(part: Any, leaves: Sequence[Any]) -> Any:
    if isinstance(part, _Leaf):
        return leaves[part.index]
    if isinstance(part, dict):
        return {key: _rebuild(value, leaves) for key, value in part.items()}
    if isinstance(part, tuple | list):
        parts = [_rebuild(value, leaves) for value in part]
        return type(part)(*parts) if hasattr(part, "_fields") else type(part)(parts)
    return part


def unique(name: str, taken: Sequence[str]) -> str:
    """The name itself, or with the first number that makes it unlike the taken ones."""
    fresh, number = name, 1
    while fresh in taken:
        number += 1
        fresh = f"{name}_{number}"
    return fresh


def plan_calls(function: Callable[..., Any], example: Any) -> list[CallPlan]:
    """The calls that an example may stand for, the likeliest first.

    Args:
        function: What will be called.
        example: An array; a tuple or list, for positional inputs; or a dict. A dict goes in by keyword where its
            keys are parameters; else by position under its keys as names, where there are as many parameters;
            else the dict itself is the one argument.

    Raises:
        ExportError: If the example cannot be a call of this function.
    """
    parameters = _Parameters(function)
    if isinstance(example, Mapping):
        plans = _plan_mapping(parameters, example)
    else:
        values = list(example) if isinstance(example, tuple | list) else [example]
        plans = [_positional({parameters.name(index): value for index, value in enumerate(values)})]
    if any(not plan.names for plan in plans):
        raise ExportError("the example holds no array; give at least one array as an input.")
    return [parameters.switched(plan) for plan in plans]


def plan_declared(function: Callable[..., Any], specs: Sequence[TensorSpec]) -> CallPlan:
    """Plan a call from declared inputs: by keyword where all names are parameters, else in order."""
    parameters = _Parameters(function)
    plan = CallPlan(names=[spec.name for spec in specs])
    if parameters.take_keywords(dict.fromkeys(plan.names)):
        plan._kwargs = {name: _Leaf(index) for index, name in enumerate(plan.names)}
    else:
        plan._args = [_Leaf(index) for index in range(len(specs))]
    return parameters.switched(plan)


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
            f"the example has the inputs {list(example)}, but the function takes {parameters.positional}; "
            f"use those names, or give a tuple in that order."
        )
    return plans


def _positional(values: Mapping[str, Any]) -> CallPlan:
    plan = CallPlan()
    plan._args = [plan._take(name, value) for name, value in values.items()]
    return plan


class _Parameters:
    """The parameters of a function, as far as it tells them."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.positional: list[str] = []
        self.required = 0
        self._keywords: list[str] = []
        self._var_positional: str | None = None
        self._var_keyword = False
        try:
            found = list(inspect.signature(function).parameters.values())
        except (TypeError, ValueError):  # some callables of C do not tell
            self._var_positional, self._var_keyword = "input", False
            found = []
        for parameter in found:
            self._add(parameter)

    def _add(self, parameter: inspect.Parameter) -> None:
        kind = parameter.kind
        if kind is parameter.VAR_POSITIONAL:
            self._var_positional = parameter.name
        elif kind is parameter.VAR_KEYWORD:
            self._var_keyword = True
        else:
            needed = parameter.default is parameter.empty and parameter.name not in _SWITCHES
            self.required += needed
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

    def switched(self, plan: CallPlan) -> CallPlan:
        """The plan with every training switch set that the example leaves alone."""
        given = set(plan._kwargs) | set(self.positional[: len(plan._args)])
        plan.switches = {name: _SWITCHES[name] for name in self._keywords if name in _SWITCHES.keys() - given}
        return plan


def flatten_output(result: Any) -> tuple[list[tuple[str, Any]], dict[str, Any]]:
    """What a function gave as named arrays in order, and the named parts that are no arrays.

    A single array is `output`; members of a top tuple or list are `output_0`, `output_1`, ...; keys, fields and
    nested places join with `_`. None is left out; a number is an array, as it is for JAX.
    """
    arrays: list[tuple[str, Any]] = []
    others: dict[str, Any] = {}
    _walk("", result, arrays, others)
    return arrays, others


def _walk(name: str, value: Any, arrays: list[tuple[str, Any]], others: dict[str, Any]) -> None:
    if isinstance(value, jax.Array | np.ndarray | np.generic | bool | int | float | complex):
        arrays.append((unique(name or "output", [known for known, _ in arrays]), value))
    elif value is not None:
        members = _members(value)
        if members is None:
            others[name or "output"] = value
            return
        for key, part in members:
            stem = name if name or not isinstance(key, int) else "output"
            _walk(f"{stem}_{key}" if stem else str(key), part, arrays, others)


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
    paths, _ = jax.tree_util.tree_flatten_with_path(value, is_leaf=lambda part: part is not value)
    if len(paths) == 1 and not paths[0][0]:
        return None
    return [(_key(path[0]), part) for path, part in paths]


def _key(entry: Any) -> Any:
    """The bare key of a step into a registered container."""
    for attribute in ("name", "key", "idx"):
        if hasattr(entry, attribute):
            return getattr(entry, attribute)
    return str(entry).strip(".[]'")
