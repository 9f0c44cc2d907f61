"""PaddlePaddle: what data parallelism put around a layer is taken off; layers spread over ranks are refused."""

from __future__ import annotations

import os
import sys
from typing import Any, ClassVar

from paritygate.train_hooks.errors import ModelRefused
from paritygate.train_hooks.hooks.base import Hook
from paritygate.train_hooks.hooks.ranks import ALONE, rank_from_paddle, rank_from_torch
from paritygate.train_hooks.types import Rank

_WHOLE = {"DataParallel": "_layers", "ShardingParallel": "_layers", "GroupShardedStage2": "_layer"}
"""Wrappers of `paddle.distributed` under which every rank holds all weights, and where the layer lies in each."""

_SPREAD = ("GroupShardedStage3", "PipelineLayer")
"""Layers of `paddle.distributed` of which every rank holds a part."""


class PaddleHook(Hook):
    """Models that are `paddle.nn.Layer`s."""

    framework: ClassVar[str] = "paddle"

    def owns(self, model: Any) -> bool:
        """Whether it is a layer."""
        paddle = sys.modules.get("paddle")
        return paddle is not None and isinstance(model, paddle.nn.Layer)

    def rank(self) -> Rank:
        """What paddle.distributed.launch has set, else what a torchrun-like starter has."""
        return rank_from_paddle(os.environ) or rank_from_torch(os.environ) or ALONE

    def unwrap(self, model: Any) -> Any:
        """The layer inside every wrapper, however they are stacked."""
        _refuse_spread(model)
        while (attribute := _WHOLE.get(_distributed_kind(model) or "")) is not None:
            model = getattr(model, attribute)
        return model


def _distributed_kind(layer: Any) -> str | None:
    """Which of the classes above a layer is of; a class of the user's own is none, whatever its name."""
    names = (
        kind.__name__ for kind in type(layer).__mro__ if kind.__module__.startswith("paddle.distributed.")
    )
    return next((name for name in names if name in _WHOLE or name in _SPREAD), None)


def _refuse_spread(model: Any) -> None:
    """Refuse what no rank holds whole: gathering it takes all ranks, and only one is here.

    Raises:
        ModelRefused: With what to do instead.
    """
    for name, layer in model.named_sublayers(include_self=True):
        if (kind := _distributed_kind(layer)) in _SPREAD:
            _raise_spread(f"layer {name or 'model'} is {kind}")
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if tensor.is_dist():
            _raise_spread(f"{name} is a distributed tensor")
        if getattr(tensor, "is_distributed", False):
            _raise_spread(f"{name} is one part of a tensor-parallel weight")


def _raise_spread(what: str) -> None:
    raise ModelRefused(
        f"the model is spread over the ranks ({what}), and the export runs on rank 0 alone; save its weights "
        "whole (paddle.distributed.save_state_dict, or layer.get_all_parameters() under sharding stage 3), load "
        "them into a plain layer, and pass that."
    )
