"""An inference copy of a live module, made without touching it: the export works on the copy alone."""

from __future__ import annotations

import contextlib
import copy
import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch

from paritygate.converter.errors import ExportError


def unwrap(module: torch.nn.Module) -> tuple[torch.nn.Module, list[str]]:
    """The module inside DistributedDataParallel, DataParallel and torch.compile, and what was taken off."""
    taken: list[str] = []
    while True:
        kind = type(module).__name__
        if isinstance(module, torch.jit.ScriptModule):
            return module, taken
        inner = module.__dict__.get("_modules", {}).get(
            "_orig_mod" if kind == "OptimizedModule" else "module"
        )
        if kind not in ("OptimizedModule", "DistributedDataParallel", "DataParallel") or inner is None:
            return module, taken
        taken.append(kind)
        module = inner


def inference_copy(module: torch.nn.Module) -> torch.nn.Module:
    """A copy on the CPU, all submodules in evaluation mode, weights and sharing of weights as they are.

    The copy shares no tensor with the original. Tensors on a device are copied to the CPU one by one, so the
    device needs no extra memory.

    Raises:
        ExportError: If weights are sharded over ranks or not materialised, or the module cannot be copied.
    """
    _refuse_absent(module)
    memo: dict[int, Any] = {}
    for tensor in _tensors(module):
        memo.setdefault(id(tensor), _cpu_twin(tensor))
    try:
        twin = copy.deepcopy(module, memo)
    except Exception as error:
        raise ExportError(
            f"the model cannot be copied, and the export never works on your own object: "
            f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else 'no text'}. Keep locks and "
            f"files out of the module, or export from a checkpoint with a factory."
        ) from error
    twin.eval()
    return twin


def double_copy(module: torch.nn.Module) -> torch.nn.Module:
    """A copy in double precision, of tensors that are mere attributes too."""
    return _converted_copy(module, lambda t: t.double() if t.is_floating_point() else t)


def float_copy(module: torch.nn.Module) -> torch.nn.Module:
    """A copy in which every bfloat16 tensor is float32, which holds the same values exactly."""
    return _converted_copy(module, lambda t: t.float() if t.dtype is torch.bfloat16 else t)


def _converted_copy(
    module: torch.nn.Module, convert: Callable[[torch.Tensor], torch.Tensor]
) -> torch.nn.Module:
    twin = copy.deepcopy(module)._apply(convert)
    for part in twin.modules():
        for name, value in list(vars(part).items()):
            if isinstance(value, torch.Tensor):
                setattr(part, name, convert(value))
    return twin


def _tensors(module: torch.nn.Module) -> Iterator[torch.Tensor]:
    for part in module.modules():
        for group in (part._parameters, part._buffers, vars(part)):
            yield from (value for value in group.values() if isinstance(value, torch.Tensor))


def _cpu_twin(tensor: torch.Tensor) -> torch.Tensor:
    data = tensor.detach().to("cpu", copy=True)
    if isinstance(tensor, torch.nn.Parameter):
        return torch.nn.Parameter(data, requires_grad=tensor.requires_grad)
    return data


def _refuse_absent(module: torch.nn.Module) -> None:
    for name, tensor in (*module.named_parameters(), *module.named_buffers()):
        if type(tensor).__name__ == "DTensor" or type(tensor.data).__name__ == "DTensor":
            raise ExportError(
                f"weight {name!r} is sharded over ranks (DTensor); save a full state dict and export that "
                f"checkpoint with a factory."
            )
        if tensor.is_meta or isinstance(tensor, torch.nn.parameter.UninitializedTensorMixin):
            raise ExportError(
                f"weight {name!r} holds no values yet (meta or lazy); load or run the model first."
            )


@contextlib.contextmanager
def untouched_process() -> Iterator[None]:
    """Put back what belongs to the whole process: random states, grad mode, default dtype."""
    python, numpy = random.getstate(), np.random.get_state()
    devices = list(range(torch.cuda.device_count())) if torch.cuda.is_initialized() else []
    default = torch.get_default_dtype()
    try:
        with torch.random.fork_rng(devices=devices), torch.no_grad():
            yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)
        torch.set_default_dtype(default)
