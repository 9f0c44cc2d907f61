"""JAX and Flax: functions with parameters and modules; the process number is JAX's own."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, ClassVar

from paritygate.train_hooks.errors import ModelRefused
from paritygate.train_hooks.hooks.base import Hook
from paritygate.train_hooks.hooks.ranks import ALONE
from paritygate.train_hooks.types import Rank


class JaxHook(Hook):
    """`(function, params)`, `(linen module, variables)`, nnx modules, and functions that work with JAX."""

    framework: ClassVar[str] = "jax"

    def owns(self, model: Any) -> bool:
        """Whether it is a model of JAX; a path or a factory's name is none."""
        if "jax" not in sys.modules or isinstance(model, str | Path):
            return False
        from paritygate.converter.exporters.jax import JaxExporter

        return JaxExporter().recognises(model)

    def rank(self) -> Rank:
        """What jax.distributed says; alone where the script has not initialised it."""
        jax = sys.modules["jax"]
        if not jax.distributed.is_initialized():
            return ALONE
        return Rank(jax.process_index(), jax.process_count())

    def unwrap(self, model: Any) -> Any:
        """The model itself, unless arrays of it lie in part on devices of other processes."""
        jax = sys.modules["jax"]
        for leaf in jax.tree_util.tree_leaves(_state(model)):
            if isinstance(leaf, jax.Array) and not (leaf.is_fully_addressable or leaf.is_fully_replicated):
                raise ModelRefused(
                    "the model's arrays are spread over processes, and rank 0 holds a part only; gather them "
                    "first (jax.experimental.multihost_utils.process_allgather) or export a checkpoint."
                )
        return model


def _state(model: Any) -> Any:
    nnx = sys.modules.get("flax.nnx")
    return nnx.state(model) if nnx is not None and isinstance(model, nnx.Module) else model
