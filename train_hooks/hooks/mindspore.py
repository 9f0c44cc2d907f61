"""MindSpore: the user's network inside the cells of training and of data parallel work."""

from __future__ import annotations

import os
import sys
from typing import Any, ClassVar

from paritygate.train_hooks.errors import ModelRefused
from paritygate.train_hooks.hooks.base import Hook
from paritygate.train_hooks.hooks.ranks import ALONE, rank_from_msrun, rank_from_torch
from paritygate.train_hooks.types import Rank

_WRAPPERS = ("TrainOneStepCell", "TrainOneStepWithLossScaleCell", "WithLossCell", "WithEvalCell")
_INNER = ("network", "_backbone", "_network")


class MindSporeHook(Hook):
    """Models that are `mindspore.nn.Cell`s, and `mindspore.Model` around one."""

    framework: ClassVar[str] = "mindspore"

    def owns(self, model: Any) -> bool:
        """Whether it is a cell."""
        mindspore = sys.modules.get("mindspore")
        return mindspore is not None and isinstance(model, mindspore.nn.Cell | mindspore.Model)

    def rank(self) -> Rank:
        """The rank in the process group if there is one, else what `msrun` left in the environment."""
        return _rank_of_group() or rank_from_msrun(os.environ) or rank_from_torch(os.environ) or ALONE

    def unwrap(self, model: Any) -> Any:
        """The network inside every wrapper, however they are stacked."""
        import mindspore

        if isinstance(model, mindspore.Model):
            model = model.predict_network or model.train_network
        while (inner := _inside(model)) is not None:
            model = inner
        for name, parameter in model.parameters_and_names():
            if getattr(parameter, "sliced", False):
                raise ModelRefused(
                    f"parameter {name} is sliced over the ranks, and the export runs on rank 0 alone; save it "
                    "with mindspore.save_checkpoint(integrated_save=True), load that into a plain cell, and pass "
                    "that."
                )
        return model


def _inside(model: Any) -> Any | None:
    """What one wrapper holds, or None if this is the user's cell."""
    if not any(kind.__name__ in _WRAPPERS for kind in type(model).__mro__):
        return None
    return next((model._cells[name] for name in _INNER if name in model._cells), None)


def _rank_of_group() -> Rank | None:
    communication = sys.modules.get("mindspore.communication")
    if communication is None or not communication.GlobalComm.INITED:
        return None
    return Rank(communication.get_rank(), communication.get_group_size())
