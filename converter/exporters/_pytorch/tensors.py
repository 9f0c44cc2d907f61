"""Arrays to torch tensors and back, bfloat16 included, which numpy itself does not know."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import torch

from paritygate.converter.errors import ExportError
from paritygate.converter.types import Array, DType


def tensor_from_array(array: Array) -> torch.Tensor:
    """A CPU tensor of the same dtype that shares no memory with the array."""
    array = np.array(array, order="C", copy=True)
    if array.dtype == ml_dtypes.bfloat16:
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def array_from_tensor(tensor: torch.Tensor) -> Array:
    """An array of the same dtype that shares no memory with the tensor.

    Raises:
        ExportError: If no array can have this dtype or layout.
    """
    dense = tensor.detach()
    if dense.layout is not torch.strided:
        raise ExportError(
            f"the model gives a {dense.layout} tensor; served models give dense ones (to_dense())."
        )
    dense = dense.cpu().resolve_conj().resolve_neg().clone(memory_format=torch.contiguous_format)
    if dense.dtype is torch.bfloat16:
        bits: Array = dense.view(torch.int16).numpy()
        return bits.view(ml_dtypes.bfloat16)
    try:
        array: Array = dense.numpy()
    except TypeError as error:
        raise ExportError(
            f"the model gives a tensor of {dense.dtype}, which no served model can give."
        ) from error
    return array


def as_tensor(value: Any) -> torch.Tensor:
    """A leaf of the user's example as a CPU tensor."""
    if isinstance(value, torch.Tensor):
        return value.detach().to("cpu", copy=True)
    return tensor_from_array(np.asarray(value))


def dtype_of(tensor: torch.Tensor, name: str) -> DType:
    """The element type of an input.

    Raises:
        ExportError: If models cannot take it.
    """
    try:
        return DType(str(tensor.dtype).removeprefix("torch."))
    except ValueError as error:
        raise ExportError(
            f"input {name!r} is {tensor.dtype}, which no served model can take; expected one of "
            f"{[d.value for d in DType]}."
        ) from error
