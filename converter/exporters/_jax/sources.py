"""What a user calls a model, as one function: functions with parameters, nnx modules, linen modules."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from paritygate.converter.errors import ExportError, SourceError

Function = Callable[..., Any]


@dataclass(frozen=True)
class Callee:
    """A model as a function without training state.

    Attributes:
        function: Answers inputs; a call changes nothing.
        notes: Sentences for the manifest.
        vary_random: The same with every stream of random numbers begun elsewhere; None where it holds none.
        state_changes: Given inputs, the names of running statistics that a call would change.
    """

    function: Function
    notes: tuple[str, ...] = ()
    vary_random: Function | None = None
    state_changes: Callable[..., list[str]] | None = None


def is_linen(model: Any) -> bool:
    """Whether a model is a flax.linen module."""
    return _has_base(model, "flax.linen.module", "Module")


def is_nnx(model: Any) -> bool:
    """Whether a model is a flax.nnx module."""
    return _has_base(model, "flax.nnx.module", "Module")


def _has_base(model: Any, module: str, name: str) -> bool:
    return any(kind.__module__ == module and kind.__name__ == name for kind in type(model).__mro__)


def open_callee(model: Any) -> Callee:
    """A model in memory as a function in inference mode.

    Raises:
        SourceError: If it is no model that this exporter takes.
        ExportError: If its parameters are missing.
    """
    if isinstance(model, tuple) and len(model) == 2:
        return _from_pair(*model)
    if is_nnx(model):
        return _from_nnx(model)
    if is_linen(model):
        return _from_bound(model)
    if callable(model):
        return Callee(model)
    raise SourceError(
        f"a {type(model).__name__} is no JAX source; expected a function, (function, params), a flax.nnx module, "
        f"a flax.linen module with its variables, an Orbax or msgpack checkpoint with a factory, or "
        f"module:factory."
    )


def _from_pair(model: Any, params: Any) -> Callee:
    if is_linen(model):
        return _from_linen(model, params)
    if not callable(model):
        raise SourceError(
            f"a pair of {type(model).__name__} and {type(params).__name__} is no JAX source; expected "
            f"(function, params) or (linen module, variables)."
        )
    arrays = jax.tree_util.tree_map(
        lambda leaf: jax.numpy.asarray(leaf) if isinstance(leaf, np.ndarray) else leaf, params
    )
    return Callee(functools.partial(model, arrays))


def _from_bound(module: Any) -> Callee:
    if module.scope is None:
        raise ExportError(
            f"the linen module {type(module).__name__} has no variables; give (module, variables), or "
            f"module.bind(variables)."
        )
    return _from_linen(*module.unbind())


def _from_linen(module: Any, variables: Any) -> Callee:
    if module.scope is not None:
        module, _ = module.unbind()
    if not isinstance(variables, Mapping):
        raise SourceError(
            f"the variables of {type(module).__name__} are a {type(variables).__name__}; expected a dict such as "
            f"{{'params': ...}}."
        )
    held = variables if "params" in variables or not variables else {"params": variables}
    frozen = jax.tree_util.tree_map(lambda leaf: leaf, dict(held))

    def answer(*args: Any, **kwargs: Any) -> Any:
        # Nothing is mutable and no random stream is given: a module that trains cannot answer at all.
        return module.apply(frozen, *args, **kwargs)

    answer.__signature__ = inspect.signature(module.__call__)  # type: ignore[attr-defined]
    return Callee(answer)


def _from_nnx(module: Any) -> Callee:
    from flax import nnx

    graph, state = nnx.split(module)
    twin = nnx.merge(graph, state)  # variables of its own over the same arrays, which never change
    twin.eval()
    graph, state = nnx.split(twin)

    def called(values: Any) -> Function:
        def answer(*args: Any, **kwargs: Any) -> Any:
            return nnx.merge(graph, values)(*args, **kwargs)

        answer.__signature__ = inspect.signature(twin.__call__)  # type: ignore[attr-defined]
        return answer

    def changes(*args: Any, **kwargs: Any) -> list[str]:
        probe = nnx.merge(graph, state)
        probe(*args, **kwargs)
        after = dict(jax.tree_util.tree_flatten_with_path(nnx.state(probe, nnx.BatchStat))[0])
        before = dict(jax.tree_util.tree_flatten_with_path(nnx.state(twin, nnx.BatchStat))[0])
        return [
            jax.tree_util.keystr(path)
            for path, value in before.items()
            if not np.array_equal(np.asarray(value), np.asarray(after.get(path)), equal_nan=True)
        ]

    random = nnx.state(twin, nnx.RngKey)
    if not jax.tree_util.tree_leaves(random):
        return Callee(called(state), state_changes=changes)
    other = nnx.merge(graph, state)
    moved = jax.tree_util.tree_map(lambda key: jax.random.fold_in(key, 1), nnx.state(other, nnx.RngKey))
    nnx.update(other, moved)
    return Callee(called(state), vary_random=called(nnx.split(other)[1]), state_changes=changes)
