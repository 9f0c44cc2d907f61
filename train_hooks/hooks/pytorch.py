"""PyTorch: DDP, DataParallel and torch.compile are taken off; sharded models are refused."""

from __future__ import annotations

import os
import sys
from typing import Any, ClassVar

from paritygate.train_hooks.errors import ModelRefused
from paritygate.train_hooks.hooks.base import Hook
from paritygate.train_hooks.hooks.ranks import ALONE, rank_from_tf_config, rank_from_torch
from paritygate.train_hooks.types import Rank


class PyTorchHook(Hook):
    """Models that are `torch.nn.Module`s."""

    framework: ClassVar[str] = "pytorch"

    def owns(self, model: Any) -> bool:
        """Whether it is a module."""
        torch = sys.modules.get("torch")
        return torch is not None and isinstance(model, torch.nn.Module)

    def rank(self) -> Rank:
        """The rank in the process group if there is one, else what the environment says."""
        distributed = sys.modules.get("torch.distributed")
        if distributed is not None and distributed.is_available() and distributed.is_initialized():
            return Rank(distributed.get_rank(), distributed.get_world_size())
        return rank_from_torch(os.environ) or rank_from_tf_config(os.environ) or ALONE

    def unwrap(self, model: Any) -> Any:
        """The module inside every wrapper, however they are stacked."""
        _refuse_sharded(model)
        while (inner := _inside(model)) is not None:
            model = inner
        return model


def _inside(model: Any) -> Any | None:
    """What one wrapper holds, or None if this is the user's module."""
    import torch

    if isinstance(model, torch.nn.parallel.DistributedDataParallel | torch.nn.DataParallel):
        return model.module
    if isinstance(model, torch.jit.ScriptModule):
        return None  # wraps nothing, and its parts are no plain dict
    # torch.compile's wrapper; its class lies in a module that need not be imported to know it.
    return model._modules.get("_orig_mod")


def _refuse_sharded(model: Any) -> None:
    """Refuse FSDP: gathering its parameters takes all ranks, and only one is here.

    Raises:
        ModelRefused: With what to do instead.
    """
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        if hasattr(tensor, "placements"):
            _raise_sharded(f"parameter {name} is a DTensor")
    for name, module in model.named_modules():
        if any(kind.__name__ == "FullyShardedDataParallel" for kind in type(module).__mro__):
            _raise_sharded(f"module {name or 'model'} is FullyShardedDataParallel")


def _raise_sharded(what: str) -> None:
    raise ModelRefused(
        f"the model is sharded over the ranks ({what}), and the export runs on rank 0 alone; on every rank call "
        "torch.distributed.checkpoint.state_dict.get_model_state_dict(model, options=StateDictOptions("
        "full_state_dict=True, cpu_offload=True)), load the result into a plain module, and pass that."
    )
