"""Nested inputs and outputs as flat lists of named tensors, and back.

A graph has a flat list of named inputs and outputs; a model takes and gives dicts, tuples, dataclasses and what
stands in them. Names say the path: `mask`, `images_0`, `output_1`, `encoder_last_hidden_state`. What a tensor is,
each framework says itself.
"""

from __future__ import annotations

import dataclasses
import difflib
import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from paritygate.converter.errors import ExportError
from paritygate.converter.types import TensorSpec

T = TypeVar("T")

_ALIKE = 0.75
"""How alike two names are, of 1, when one is taken for the other mistyped."""


@dataclass(frozen=True)
class Leaf:
    """A place for the flat input of this number."""

    index: int


@dataclass
class CallPlan(Generic[T]):
    """How flat tensors become one call.

    Attributes:
        names: The flat inputs' names in order.
        tensors: The example's tensors in the same order; empty where the inputs are only declared.
        constants: Parts of the example that are no tensors, by name; they are fixed in the graph.
        args: What goes in by position, with leaves for tensors.
        kwargs: What goes in by name.
    """

    names: list[str] = field(default_factory=list)
    tensors: list[T] = field(default_factory=list)
    constants: dict[str, Any] = field(default_factory=dict)
    args: list[Any] = field(default_factory=list)
    kwargs: dict[str, Any] = field(default_factory=dict)

    def call(self, function: Callable[..., Any], leaves: Sequence[Any]) -> Any:
        """The function's answer to flat inputs."""
        args = [_rebuilt(part, leaves) for part in self.args]
        kwargs = {name: _rebuilt(part, leaves) for name, part in self.kwargs.items()}
        return function(*args, **kwargs)

    def text(self, called: str, leaf: Callable[[int], str]) -> str:
        """The same call as a line of Python, in which `leaf(k)` stands for the flat input k."""
        parts = [_text(part, leaf) for part in self.args]
        parts += [f"{name}={_text(part, leaf)}" for name, part in self.kwargs.items()]
        return f"{called}({', '.join(parts)})"


class Parameters:
    """The parameters of a function, as far as it tells them.

    Attributes:
        positional: Names that may go in by position.
        keywords: Names that may go in by keyword.
        required: How many have no default.
    """

    def __init__(self, signature: inspect.Signature, *, given: Collection[str] = ()) -> None:
        """Read a signature; `given` names what the caller sets where an example does not."""
        self.positional: list[str] = []
        self.keywords: list[str] = []
        self.required = 0
        self._var_positional: str | None = None
        self._var_keyword = False
        for parameter in signature.parameters.values():
            self._add(parameter, parameter.name in given)

    def _add(self, parameter: inspect.Parameter, given: bool) -> None:
        kind = parameter.kind
        if kind is parameter.VAR_POSITIONAL:
            self._var_positional = parameter.name
        elif kind is parameter.VAR_KEYWORD:
            self._var_keyword = True
        else:
            self.required += parameter.default is parameter.empty and not given
            if kind is not parameter.KEYWORD_ONLY:
                self.positional.append(parameter.name)
            if kind is not parameter.POSITIONAL_ONLY:
                self.keywords.append(parameter.name)

    @property
    def take_more(self) -> bool:
        """Whether more arguments may go in by position than there are names for."""
        return self._var_positional is not None

    def take_keywords(self, given: Mapping[Any, Any]) -> bool:
        """Whether all keys are names that go in by keyword."""
        return all(isinstance(key, str) and (self._var_keyword or key in self.keywords) for key in given)

    def misnamed(self, given: Sequence[Any]) -> str | None:
        """What is wrong with names that would go in by position, in a sentence; None if they are clearly new ones.

        Some names that are parameters beside others that are none, or a name like that of a parameter elsewhere,
        are mistyped: by position they would change places in silence.
        """
        own = [key for key in given if key in self.keywords]
        for index, key in enumerate(map(str, given)):
            near = difflib.get_close_matches(key, self.keywords, n=1, cutoff=_ALIKE)
            elsewhere = bool(near) and self.positional[index : index + 1] != near
            if (own and key not in self.keywords) or (elsewhere and not own):
                meant = f", and none {key!r}: is {near[0]!r} meant?" if near else f", and none {key!r}."
                return f"takes {self.keywords}{meant}"
        return None

    def name(self, index: int) -> str:
        """What the argument at a position is called."""
        if index < len(self.positional):
            return self.positional[index]
        return f"{self._var_positional or 'input'}_{index - len(self.positional)}"


@dataclass(frozen=True)
class CallPlanner(Generic[T]):
    """Reads examples as calls of one function.

    Attributes:
        parameters: The function's.
        as_tensor: The tensor that a value is, or None.
        called: What is called, for messages: `forward`, `the function`.
    """

    parameters: Parameters
    as_tensor: Callable[[Any], T | None]
    called: str

    def plans(self, example: Any) -> list[CallPlan[T]]:
        """The calls that an example may stand for, the likeliest first.

        Args:
            example: A tensor or array; a tuple or list, for positional inputs; or a dict. A dict goes in by
                keyword where its keys are parameters; else its values go in by position under its keys as names,
                where there are as many parameters; else the dict itself is the one argument.

        Raises:
            ExportError: If the example cannot be a call.
        """
        if isinstance(example, Mapping):
            plans = self._of_mapping(example)
        else:
            values = list(example) if isinstance(example, tuple | list) else [example]
            plans = [self._positional({self.parameters.name(k): value for k, value in enumerate(values)})]
        if any(not plan.names for plan in plans):
            raise ExportError("the example holds no tensor; give at least one array or tensor as an input.")
        return plans

    def declared(self, specs: Sequence[TensorSpec]) -> CallPlan[T]:
        """Plan a call from declared inputs: by keyword where all names are parameters, else in order.

        Raises:
            ExportError: If a name seems to be a mistyped parameter.
        """
        plan: CallPlan[T] = CallPlan(names=[spec.name for spec in specs])
        if self.parameters.take_keywords(dict.fromkeys(plan.names)):
            plan.kwargs = {name: Leaf(index) for index, name in enumerate(plan.names)}
        else:
            self._refuse_misnamed(plan.names)
            plan.args = [Leaf(index) for index in range(len(specs))]
        return plan

    def _of_mapping(self, example: Mapping[Any, Any]) -> list[CallPlan[T]]:
        parameters = self.parameters
        if parameters.take_keywords(example):
            plan: CallPlan[T] = CallPlan()
            plan.kwargs = {str(key): self._take(plan, str(key), value) for key, value in example.items()}
            return [plan]
        plans = []
        dict_alone = parameters.required <= 1 and bool(parameters.positional)
        if not dict_alone:
            self._refuse_misnamed(list(example))
        fits = parameters.required <= len(example) and (
            parameters.take_more or len(example) <= len(parameters.positional)
        )
        if fits and parameters.misnamed(list(example)) is None:
            plans.append(self._positional({str(key): value for key, value in example.items()}))
        if dict_alone:
            whole: CallPlan[T] = CallPlan()
            whole.args = [self._take(whole, "", example)]
            plans.append(whole)
        if not plans:
            raise ExportError(
                f"the example has the inputs {list(example)}, but {self.called} takes {parameters.positional}; "
                f"use those names, or give a tuple in that order."
            )
        return plans

    def _refuse_misnamed(self, names: Sequence[Any]) -> None:
        fault = self.parameters.misnamed(names)
        if fault is not None:
            raise ExportError(
                f"the example has the inputs {list(names)}, but {self.called} {fault} Use its names, or give the "
                "inputs in order, all under names of your own or as a tuple."
            )

    def _positional(self, values: Mapping[str, Any]) -> CallPlan[T]:
        plan: CallPlan[T] = CallPlan()
        plan.args = [self._take(plan, name, value) for name, value in values.items()]
        return plan

    def _take(self, plan: CallPlan[T], name: str, value: Any) -> Any:
        """A template of a value in which each tensor is a leaf."""
        tensor = self.as_tensor(value)
        if tensor is not None:
            plan.names.append(unique(name, plan.names))
            plan.tensors.append(tensor)
            return Leaf(len(plan.names) - 1)
        if isinstance(value, Mapping):
            stem = f"{name}_" if name else ""
            return {key: self._take(plan, f"{stem}{key}", part) for key, part in value.items()}
        if isinstance(value, tuple | list):
            return _like(value, [self._take(plan, f"{name}_{k}", part) for k, part in enumerate(value)])
        if value is not None and not isinstance(value, bool | int | float | str):
            raise ExportError(
                f"input {name!r} is a {type(value).__name__}; expected a tensor, an array, a number, or a "
                f"dict, list or tuple of them."
            )
        plan.constants[name] = value
        return value


def unique(name: str, taken: Collection[str]) -> str:
    """The name itself, or with the first number that makes it unlike the taken ones."""
    fresh, number = name, 1
    while fresh in taken:
        number += 1
        fresh = f"{name}_{number}"
    return fresh


def flatten_output(
    result: Any,
    is_tensor: Callable[[Any], bool],
    members: Callable[[Any], list[tuple[Any, Any]] | None] | None = None,
) -> tuple[list[tuple[str, Any]], dict[str, Any]]:
    """What a model gave as named tensors in order, and the named parts that are no tensors.

    A single tensor is `output`; members of a top tuple or list are `output_0`, `output_1`, ...; keys, fields and
    nested places join with `_`. None is left out. A tensor given twice counts twice.

    Args:
        result: The answer.
        is_tensor: Whether a part is a tensor.
        members: Keys and parts of containers that are not Python's own, or None for what is none.
    """
    tensors: list[tuple[str, Any]] = []
    others: dict[str, Any] = {}

    def walk(name: str, value: Any) -> None:
        if is_tensor(value):
            tensors.append((unique(name or "output", [known for known, _ in tensors]), value))
            return
        parts = _members(value)
        if parts is None and members is not None:
            parts = members(value)
        if parts is None:
            others[name or "output"] = value
            return
        for key, part in parts:
            stem = name if name or not isinstance(key, int) else "output"
            walk(f"{stem}_{key}" if stem else str(key), part)

    walk("", result)
    return tensors, {name: value for name, value in others.items() if value is not None}


def _members(value: Any) -> list[tuple[Any, Any]] | None:
    if isinstance(value, Mapping):
        return list(value.items())
    names = getattr(value, "_fields", None)
    if isinstance(value, tuple) and names is not None:
        return list(zip(names, value, strict=True))
    if isinstance(value, tuple | list):
        return list(enumerate(value))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return [(f.name, getattr(value, f.name)) for f in dataclasses.fields(value)]
    return None


def _like(container: Any, parts: list[Any]) -> Any:
    kind: Any = type(container)
    return kind(*parts) if hasattr(container, "_fields") else kind(parts)


def _rebuilt(part: Any, leaves: Sequence[Any]) -> Any:
    if isinstance(part, Leaf):
        return leaves[part.index]
    if isinstance(part, dict):
        return {key: _rebuilt(value, leaves) for key, value in part.items()}
    if isinstance(part, tuple | list):
        return _like(part, [_rebuilt(value, leaves) for value in part])
    return part


def _text(part: Any, leaf: Callable[[int], str]) -> str:
    if isinstance(part, Leaf):
        return leaf(part.index)
    if isinstance(part, dict):
        return "{" + ", ".join(f"{key!r}: {_text(value, leaf)}" for key, value in part.items()) + "}"
    if isinstance(part, list):
        return "[" + ", ".join(_text(value, leaf) for value in part) + "]"
    if isinstance(part, tuple):
        return "(" + "".join(f"{_text(value, leaf)}, " for value in part) + ")"
    return repr(part)
