"""Cells: a copy to work on, the same in double precision, and the state of the process put back."""

from __future__ import annotations

import contextlib
import copy
import random
from collections.abc import Iterator
from typing import Any

import mindspore as ms
import numpy as np

from paritygate.converter.errors import ExportError


def inference_copy(cell: Any) -> Any:
    """A copy of a cell in evaluation mode down to the last one; shares no weight with the original.

    Raises:
        ExportError: If weights have no values yet or are sliced over devices, or the cell cannot be copied.
    """
    for name, parameter in cell.parameters_and_names():
        if parameter.has_init:  # values drawn now would be neither the user's nor anybody's
            raise ExportError(
                f"weight {name!r} has no value yet; train the cell, load a checkpoint into it, or call its "
                "init_parameters_data() first."
            )
        if getattr(parameter, "sliced", False):
            raise ExportError(
                f"weight {name!r} is sliced over devices; gather it (ms.save_checkpoint with "
                f"integrated_save=True) and export that checkpoint with a factory."
            )
    try:
        twin = _copied(cell)
    except Exception as error:
        lines = str(error).splitlines()
        raise ExportError(
            f"the cell cannot be copied, and the export never works on your own object: {type(error).__name__}: "
            f"{lines[0] if lines else 'no text'}. Keep locks and files out of the cell, or export from a "
            f"checkpoint with a factory."
        ) from error
    twin.set_train(False)
    return twin


def _copied(cell: Any) -> Any:
    """A deep copy but for primitives, which are as they were made; some of MindSpore's own cannot be copied."""
    primitives = [each for _, part in cell.cells_and_names() for each in part._primitives.values()]
    return copy.deepcopy(cell, {id(each): each for each in primitives if each is not None})


def double_copy(cell: Any) -> Any:
    """A copy in double precision, of tensors that are mere attributes too."""
    twin = _copied(cell)
    for parameter in twin.get_parameters():
        if parameter.dtype in (ms.float32, ms.float16, ms.bfloat16):
            parameter.set_dtype(ms.float64)
    for _, part in twin.cells_and_names():
        for name, value in list(vars(part).items()):
            if type(value) is ms.Tensor and value.dtype in (ms.float32, ms.float16, ms.bfloat16):
                setattr(part, name, value.astype(ms.float64))
    return twin


@contextlib.contextmanager
def untouched_process() -> Iterator[None]:
    """Put back what belongs to the whole process: random states and MindSpore's mode."""
    python, numpy, mode = random.getstate(), np.random.get_state(), ms.get_context("mode")
    seed = ms.get_rng_state() if hasattr(ms, "get_rng_state") else None
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)
        if seed is not None:
            ms.set_rng_state(seed)
        if ms.get_context("mode") != mode:
            ms.set_context(mode=mode)


@contextlib.contextmanager
def in_mode(mode: int) -> Iterator[None]:
    """Work in eager or in graph mode."""
    before = ms.get_context("mode")
    if before == mode:
        yield
        return
    ms.set_context(mode=mode)
    try:
        yield
    finally:
        ms.set_context(mode=before)
