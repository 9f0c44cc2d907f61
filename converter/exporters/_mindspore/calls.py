"""Nested inputs and outputs of a cell as flat lists of named arrays, and the text of a cell that unpacks them.

A graph has a flat list of named inputs and outputs; a cell takes and gives tuples and dicts, and MindSpore exports
no dict. So the user's cell is put into one that is written for its call, in a file, since MindSpore compiles what
it can read from one.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import mindspore as ms
import numpy as np

from paritygate.converter.errors import ExportError
from paritygate.converter.exporters._mindspore.scopes import WRAPPED
from paritygate.converter.types import Array, TensorSpec


@dataclass(frozen=True)
class Leaf:
    """A place for the flat input of this number."""

    index: int


@dataclass
class CallPlan:
    """How flat arrays become one call of a cell.

    Attributes:
        names: The flat inputs' names in order.
        arrays: The example arrays in the same order; empty where the inputs are only declared.
        constants: Parts of the example that are no tensors, by name; they are fixed in the graph.
        arguments: What goes in by position, with leaves for tensors.
        keywords: What goes in by name.
    """

    names: list[str] = field(default_factory=list)
    arrays: list[Array] = field(default_factory=list)
    constants: dict[str, Any] = field(default_factory=dict)
    arguments: list[Any] = field(default_factory=list)
    keywords: dict[str, Any] = field(default_factory=dict)

    def call(self, cell: Callable[..., Any], tensors: Sequence[Any]) -> Any:
        """The cell's answer to flat tensors."""
        arguments = [_rebuilt(part, tensors) for part in self.arguments]
        keywords = {name: _rebuilt(part, tensors) for name, part in self.keywords.items()}
        return cell(*arguments, **keywords)

    def text(self) -> str:
        """The call of the wrapped cell as a line of Python, the flat inputs called `x0`, `x1`, ..."""
        parts = [_text(part) for part in self.arguments]
        parts += [f"{name}={_text(part)}" for name, part in self.keywords.items()]
        return f"self.{WRAPPED}({', '.join(parts)})"

    def take(self, name: str, value: Any) -> Any:
        """A template of a value in which each tensor is a leaf."""
        if isinstance(value, ms.Tensor | np.ndarray | np.generic):
            self.names.append(unique(name, self.names))
            self.arrays.append(to_array(value))
            return Leaf(len(self.names) - 1)
        if isinstance(value, Mapping):
            return {key: self.take(f"{name}_{key}", part) for key, part in value.items()}
        if isinstance(value, tuple | list):
            return type(value)(self.take(f"{name}_{index}", part) for index, part in enumerate(value))
        if value is not None and not isinstance(value, bool | int | float | str):
            raise ExportError(
                f"input {name!r} is a {type(value).__name__}; expected a tensor, an array, a number, or a dict, "
                f"list or tuple of them."
            )
        self.constants[name] = value
        return value


def to_array(value: Any) -> Array:
    """A tensor of MindSpore as an array, bfloat16 too."""
    if not isinstance(value, ms.Tensor):
        return np.asarray(value)
    if value.dtype == ms.bfloat16:
        import ml_dtypes

        wide: Array = value.astype(ms.float32).asnumpy()
        return wide.astype(ml_dtypes.bfloat16)
    array: Array = value.asnumpy()
    return array


def to_tensor(array: Array) -> Any:
    """An array as a tensor of MindSpore of the same type."""
    if array.dtype.name == "bfloat16":
        return ms.Tensor(array.astype(np.float32)).astype(ms.bfloat16)
    return ms.Tensor(np.ascontiguousarray(array).reshape(array.shape))


def unique(name: str, taken: Sequence[str]) -> str:
    """The name itself, or with the first number that makes it unlike the taken ones."""
    fresh, number = name, 1
    while fresh in taken:
        number += 1
        fresh = f"{name}_{number}"
    return fresh


def plan_example(cell: Any, example: Any) -> CallPlan:
    """The call that an example stands for.

    Args:
        cell: The cell, whose `construct` says what it takes.
        example: An array or tensor; a tuple or list, for inputs by position; or a dict. A dict goes in by name
            where its keys are parameters of `construct`; else its values by position under its keys as names,
            where there are as many parameters; else the dict itself is the one argument.

    Raises:
        ExportError: If the example cannot be a call of this cell.
    """
    names = parameter_names(cell)
    plan = CallPlan()
    if not isinstance(example, Mapping):
        values = list(example) if isinstance(example, tuple | list) else [example]
        named = [names[k] if names and k < len(names) else f"input_{k}" for k in range(len(values))]
        plan.arguments = [plan.take(name, value) for name, value in zip(named, values, strict=True)]
    elif names is not None and all(key in names for key in example):
        plan.keywords = {str(key): plan.take(str(key), value) for key, value in example.items()}
    elif names is None or len(names) >= len(example) > 1 or (len(names) == len(example)):
        plan.arguments = [plan.take(str(key), value) for key, value in example.items()]
    elif len(names) == 1:
        plan.arguments = [{key: plan.take(str(key), value) for key, value in example.items()}]
    else:
        raise ExportError(
            f"the example has the inputs {list(example)}, but construct takes {names}; use those names, or give a "
            f"tuple in that order."
        )
    if not plan.names:
        raise ExportError("the example holds no tensor; give at least one array or tensor as an input.")
    return plan


def plan_declared(cell: Any, specs: Sequence[TensorSpec]) -> CallPlan:
    """Plan a call from declared inputs: by name where all are parameters of `construct`, else in order."""
    names = parameter_names(cell)
    plan = CallPlan(names=[spec.name for spec in specs])
    if names is not None and all(name in names for name in plan.names):
        plan.keywords = {name: Leaf(index) for index, name in enumerate(plan.names)}
    else:
        plan.arguments = [Leaf(index) for index in range(len(specs))]
    return plan


def parameter_names(cell: Any) -> list[str] | None:
    """What a cell's `construct` takes, or None where it does not say (a loaded graph, `*inputs`)."""
    parameters = list(inspect.signature(type(cell).construct).parameters.values())[1:]
    if any(each.kind in (each.VAR_POSITIONAL, each.VAR_KEYWORD) for each in parameters):
        return None
    return [each.name for each in parameters]


def _rebuilt(part: Any, tensors: Sequence[Any]) -> Any:
    if isinstance(part, Leaf):
        return tensors[part.index]
    if isinstance(part, dict):
        return {key: _rebuilt(value, tensors) for key, value in part.items()}
    return type(part)(_rebuilt(value, tensors) for value in part) if isinstance(part, tuple | list) else part


def _text(part: Any) -> str:
    if isinstance(part, Leaf):
        return f"x{part.index}"
    if isinstance(part, dict):
        return "{" + ", ".join(f"{key!r}: {_text(value)}" for key, value in part.items()) + "}"
    if isinstance(part, tuple):
        return "(" + "".join(f"{_text(value)}, " for value in part) + ")"
    if isinstance(part, list):
        return "[" + ", ".join(map(_text, part)) + "]"
    return repr(part)


# --- outputs ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Output:
    """One tensor among what a cell gives.

    Attributes:
        name: Its flat name.
        path: The text that reaches it from the whole answer, such as `["logits"][0]`.
    """

    name: str
    path: str


def flatten_output(result: Any) -> tuple[list[tuple[Output, Any]], dict[str, Any]]:
    """What a cell gave as named tensors in order, and the named parts that are no tensors.

    A single tensor is `output`; members of a tuple or list are `output_0`, `output_1`, ...; keys and nested places
    join with `_`. None is left out.
    """
    tensors: list[tuple[Output, Any]] = []
    others: dict[str, Any] = {}
    _walk("", "", result, tensors, others)
    return tensors, others


def _walk(
    name: str, path: str, value: Any, tensors: list[tuple[Output, Any]], others: dict[str, Any]
) -> None:
    if isinstance(value, ms.Tensor):
        taken = [output.name for output, _ in tensors]
        tensors.append((Output(unique(name or "output", taken), path), value))
    elif isinstance(value, Mapping):
        for key, part in value.items():
            _walk(f"{name}_{key}" if name else str(key), f"{path}[{key!r}]", part, tensors, others)
    elif isinstance(value, tuple | list):
        for index, part in enumerate(value):
            _walk(f"{name or 'output'}_{index}", f"{path}[{index}]", part, tensors, others)
    elif value is not None:
        others[name or "output"] = value


_WRAPPER = '''"""The user's cell behind flat inputs and outputs; written for one export."""

from mindspore import nn


class Flat(nn.Cell):
    def __init__(self, source):
        super().__init__(auto_prefix=False)
        self.{wrapped} = source

    def construct(self, {inputs}):
        answer = {call}
        return ({outputs},)
'''


def wrapper_source(plan: CallPlan, outputs: Sequence[Output]) -> str:
    """The text of a module with a cell `Flat(source)` whose inputs and outputs are flat."""
    return _WRAPPER.format(
        wrapped=WRAPPED,
        inputs=", ".join(f"x{index}" for index in range(len(plan.names))),
        call=plan.text(),
        outputs=", ".join(f"answer{output.path}" for output in outputs),
    )
