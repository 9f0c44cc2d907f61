"""What a JAX function takes and gives, in the terms of `exporters.calls`, with the switches of training set."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np

from paritygate.converter.exporters import calls
from paritygate.converter.types import Array, TensorSpec

_SWITCHES = {
    "deterministic": True, "use_running_average": True, "inference": True, "eval": True, "eval_mode": True,
    "train": False, "training": False, "is_training": False, "is_train": False,
}  # fmt: skip
"""Arguments that say whether a model trains or answers, with the value that makes it answer."""


@dataclass
class CallPlan:
    """How flat arrays become one call.

    Attributes:
        plan: Everything that the example says.
        switches: Arguments that were set so that the model answers and does not train.
    """

    plan: calls.CallPlan[Array]
    switches: dict[str, bool] = field(default_factory=dict)

    @property
    def names(self) -> list[str]:
        """The flat inputs' names in order."""
        return self.plan.names

    @property
    def arrays(self) -> list[Array]:
        """The example arrays in the same order; empty where the inputs are only declared."""
        return self.plan.tensors

    @property
    def constants(self) -> dict[str, Any]:
        """Parts of the example that are no arrays, by name; they are fixed in the graph."""
        return self.plan.constants

    def call(self, function: Callable[..., Any], leaves: Sequence[Any]) -> Any:
        """The function's answer to flat inputs."""
        return self.plan.call(lambda *args, **kwargs: function(*args, **kwargs, **self.switches), leaves)


def plan_calls(function: Callable[..., Any], example: Any) -> list[CallPlan]:
    """The calls that an example may stand for; see `CallPlanner.plans`."""
    planner = _planner(function)
    return [_switched(planner.parameters, plan) for plan in planner.plans(example)]


def plan_declared(function: Callable[..., Any], specs: Sequence[TensorSpec]) -> CallPlan:
    """Plan a call from declared inputs; see `CallPlanner.declared`."""
    planner = _planner(function)
    return _switched(planner.parameters, planner.declared(specs))


def _planner(function: Callable[..., Any]) -> calls.CallPlanner[Array]:
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # some callables of C do not tell
        several = inspect.Parameter("input", inspect.Parameter.VAR_POSITIONAL)
        signature = inspect.Signature([several])
    return calls.CallPlanner(calls.Parameters(signature, given=_SWITCHES), _array, "the function")


def _array(value: Any) -> Array | None:
    return np.asarray(value) if isinstance(value, jax.Array | np.ndarray | np.generic) else None


def _switched(parameters: calls.Parameters, plan: calls.CallPlan[Array]) -> CallPlan:
    """The plan with every training switch set that the example leaves alone."""
    given = set(plan.kwargs) | set(parameters.positional[: len(plan.args)])
    left = [name for name in parameters.keywords if name in _SWITCHES.keys() - given]
    return CallPlan(plan, {name: _SWITCHES[name] for name in left})


def flatten_output(result: Any) -> tuple[list[tuple[str, Any]], dict[str, Any]]:
    """What a function gave as named arrays, and the rest; a number is an array, as it is for JAX.

    See `calls.flatten_output`; containers that are registered with JAX are taken apart too.
    """
    return calls.flatten_output(result, _is_array, _registered)


def _is_array(value: Any) -> bool:
    return isinstance(value, jax.Array | np.ndarray | np.generic | bool | int | float | complex)


def _registered(value: Any) -> list[tuple[Any, Any]] | None:
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
