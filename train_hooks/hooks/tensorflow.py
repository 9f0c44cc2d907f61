"""`tf.Module`s, `tf.function`s and loaded SavedModels."""

from __future__ import annotations

import os
import sys
from typing import Any, ClassVar

from paritygate.converter.exporters import get_exporter
from paritygate.train_hooks.errors import ModelRefused
from paritygate.train_hooks.hooks.base import Hook
from paritygate.train_hooks.hooks.keras import is_distributed
from paritygate.train_hooks.hooks.ranks import ALONE, rank_from_tf_config
from paritygate.train_hooks.types import Rank


class TensorFlowHook(Hook):
    """What TensorFlow itself traces; Keras models belong to the hook of Keras."""

    framework: ClassVar[str] = "tensorflow"

    def owns(self, model: Any) -> bool:
        """Whether it is a `tf.Module` that is no Keras model, a `tf.function`, or a loaded SavedModel."""
        return "tensorflow" in sys.modules and get_exporter(self.framework).recognises(model)

    def rank(self) -> Rank:
        """What TF_CONFIG says."""
        return rank_from_tf_config(os.environ) or ALONE

    def unwrap(self, model: Any) -> Any:
        """The model itself; one with variables of a strategy cannot be copied outside it.

        Raises:
            ModelRefused: If a distribution strategy holds its variables.
        """
        if any(is_distributed(variable) for variable in getattr(model, "variables", ())):
            raise ModelRefused(
                f"{type(model).__name__} was built under a distribution strategy, and a look at its variables may "
                "wait for workers that have gone on. Build one outside it, give it the values, pass that."
            )
        return model
