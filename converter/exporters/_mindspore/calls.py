"""Nested inputs and outputs of a cell as flat lists of named arrays, and the text of a cell that unpacks them.

A graph has a flat list of named inputs and outputs; a cell takes and gives tuples and dicts, and MindSpore exports
no dict. So the user's cell is put into one that is written for its call, in a file, since MindSpore compiles what
it can read from one.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import mindspore as ms
import numpy as np

from paritygate.converter.exporters import calls
from paritygate.converter.exporters._mindspore.scopes import WRAPPED
from paritygate.converter.types import Array, TensorSpec

CallPlan: TypeAlias = "calls.CallPlan[Array]"


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


def plan_example(cell: Any, example: Any) -> CallPlan:
    """The likeliest call of `construct` that an example stands for; see `CallPlanner.plans`."""
    return _planner(cell).plans(example)[0]


def plan_declared(cell: Any, specs: Sequence[TensorSpec]) -> CallPlan:
    """Plan a call of `construct` from declared inputs; see `CallPlanner.declared`."""
    return _planner(cell).declared(specs)


def _planner(cell: Any) -> calls.CallPlanner[Array]:
    signature = inspect.signature(type(cell).construct)
    without_self = signature.replace(parameters=list(signature.parameters.values())[1:])
    return calls.CallPlanner(calls.Parameters(without_self), _array, "construct")


def _array(value: Any) -> Array | None:
    return to_array(value) if isinstance(value, ms.Tensor | np.ndarray | np.generic) else None


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
        tensors.append((Output(calls.unique(name or "output", taken), path), value))
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
        call=plan.text(f"self.{WRAPPED}", "x{}".format),
        outputs=", ".join(f"answer{output.path}" for output in outputs),
    )
