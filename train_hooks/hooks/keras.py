"""Keras models: variables of a distribution strategy are read locally, without the other workers."""

from __future__ import annotations

import os
import sys
from typing import Any, ClassVar

from paritygate.train_hooks.errors import ModelRefused
from paritygate.train_hooks.hooks.base import Hook
from paritygate.train_hooks.hooks.ranks import ALONE, rank_from_tf_config, rank_from_torch
from paritygate.train_hooks.types import Rank


class KerasHook(Hook):
    """Models of `keras`, on any of its backends, and of `tf_keras`."""

    framework: ClassVar[str] = "keras"

    def owns(self, model: Any) -> bool:
        """Whether it is a Keras model of either package."""
        kinds = (("keras", "Model"), ("tf_keras", "Model"))
        known = [(sys.modules[package], name) for package, name in kinds if package in sys.modules]
        return any(isinstance(model, getattr(package, name)) for package, name in known)

    def rank(self) -> Rank:
        """What TF_CONFIG says, else what a torchrun-like starter says (Keras on another backend)."""
        return rank_from_tf_config(os.environ) or rank_from_torch(os.environ) or ALONE

    def unwrap(self, model: Any) -> Any:
        """The model itself, or a copy outside the strategy that it was built in.

        Under MultiWorkerMirroredStrategy, a look at some variables (running means of batch normalisation) is an
        all-reduce, which would wait for workers that have gone on. So the copy has those of worker 0.
        """
        if not any(is_distributed(variable) for variable in model.variables):
            return model
        return _copy_outside(model)


def is_distributed(variable: Any) -> bool:
    """Whether a distribution strategy holds one part of the variable on each device.

    Asked of the variable itself first: any other look at it (hasattr, too) would read it, on all workers.
    """
    tensorflow = sys.modules.get("tensorflow")
    if tensorflow is None:
        return False
    values = tensorflow.distribute.DistributedValues
    return isinstance(variable, values) or isinstance(getattr(variable, "_value", None), values)


def _local_value(variable: Any) -> Any:
    """float[...] of one variable, as this worker's first device holds it."""
    if not is_distributed(variable):
        return variable.numpy()
    distributed = sys.modules["tensorflow"].distribute.DistributedValues
    backing = variable if isinstance(variable, distributed) else variable._value
    return backing.values[0].numpy()


def _copy_outside(model: Any) -> Any:
    """A model of the same configuration and weights, with plain variables."""
    try:
        copy = type(model).from_config(model.get_config())
        if not copy.built:
            copy.build(model.input_shape)
    except (NotImplementedError, TypeError, ValueError, AttributeError) as error:
        raise ModelRefused(
            f"{type(model).__name__} was built under a distribution strategy and cannot be copied outside it "
            f"({str(error).splitlines()[0]}); give it get_config and from_config, or pass a plain model with its "
            "weights."
        ) from error
    copy.set_weights([_local_value(variable) for variable in model.weights])
    return copy
