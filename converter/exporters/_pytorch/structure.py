"""What a PyTorch model takes and gives, in the terms of `exporters.calls`."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import torch

from paritygate.converter.exporters import calls
from paritygate.converter.exporters._pytorch.tensors import as_tensor
from paritygate.converter.types import TensorSpec

CallPlan: TypeAlias = "calls.CallPlan[torch.Tensor]"


def plan_calls(module: torch.nn.Module, example: Any) -> list[CallPlan]:
    """The calls of `forward` that an example may stand for; see `CallPlanner.plans`."""
    return _planner(module).plans(example)


def plan_declared(module: torch.nn.Module, specs: Sequence[TensorSpec]) -> CallPlan:
    """Plan a call of `forward` from declared inputs; see `CallPlanner.declared`."""
    return _planner(module).declared(specs)


def flatten_output(result: Any) -> tuple[list[tuple[str, torch.Tensor]], dict[str, Any]]:
    """What a model gave as named tensors, and the rest; see `calls.flatten_output`."""
    return calls.flatten_output(result, lambda value: isinstance(value, torch.Tensor))


def parameter_names(module: torch.nn.Module) -> list[str]:
    """Every name that a model's forward takes."""
    return list(_signature(module).parameters)


def _planner(module: torch.nn.Module) -> calls.CallPlanner[torch.Tensor]:
    return calls.CallPlanner(calls.Parameters(_signature(module)), _tensor, "forward")


def _tensor(value: Any) -> torch.Tensor | None:
    return as_tensor(value) if isinstance(value, torch.Tensor | np.ndarray | np.generic) else None


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
