"""Keep the length of a sequence open through GRU and LSTM layers.

torch.export works out their output sizes by running the layers step by step, which fixes the length at that of the
example, although the ONNX GRU and LSTM take any. Their sizes are told here instead, for the time of a capture.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch


@contextlib.contextmanager
def open_sequence_lengths() -> Iterator[None]:
    """Tell torch's shape reasoning the output sizes of GRU and LSTM, for this block only.

    The tables are internal to torch: where a version has them no more, lengths are fixed as before, and demoted.
    """
    with contextlib.ExitStack() as stack:
        aten = torch.ops.aten
        for operator, rule in ((aten.gru.input, _gru_sizes), (aten.lstm.input, _lstm_sizes)):
            stack.enter_context(_sizes_told_by(operator, rule))
        yield


@contextlib.contextmanager
def _sizes_told_by(operator: Any, rule: Callable[..., Any]) -> Iterator[None]:
    """Put a rule where torch.export looks (python kernels) and where run_decompositions looks (fake rules)."""
    kernels, cache = getattr(operator, "py_kernels", None), getattr(operator, "_dispatch_cache", None)
    fast = _fast_rules()
    if kernels is None or cache is None or fast is None or operator in fast:
        yield
        return
    key = torch._C.DispatchKey
    before = dict(kernels)
    kernels.update({k: rule for k in (key.CompositeImplicitAutograd, key.Autograd) if k in kernels})
    fast[operator] = _in_mode(rule)
    cache.clear()
    try:
        yield
    finally:
        fast.pop(operator, None)
        kernels.clear()
        kernels.update(before)
        cache.clear()


def _fast_rules() -> dict[Any, Any] | None:
    try:
        from torch._subclasses.fake_impls import get_fast_op_impls
    except ImportError:
        return None
    rules: dict[Any, Any] = get_fast_op_impls()
    return rules


def _in_mode(rule: Callable[..., Any]) -> Callable[..., Any]:
    def told(mode: Any, *args: Any, **kwargs: Any) -> Any:
        with mode:
            return rule(*args, **kwargs)

    return told


def _gru_sizes(sequence: torch.Tensor, hidden: torch.Tensor, *rest: Any) -> tuple[torch.Tensor, ...]:
    """aten::gru.input(input, hx, params, has_biases, num_layers, dropout, train, bidirectional, batch_first)."""
    return _layer_output(sequence, hidden, bidirectional=rest[5]), torch.empty_like(hidden)


def _lstm_sizes(
    sequence: torch.Tensor, state: Sequence[torch.Tensor], *rest: Any
) -> tuple[torch.Tensor, ...]:
    """aten::lstm.input: as gru.input, with a hidden and a cell state; a projection shows in the hidden size."""
    hidden, cell = state
    output = _layer_output(sequence, hidden, bidirectional=rest[5])
    return output, torch.empty_like(hidden), torch.empty_like(cell)


def _layer_output(sequence: torch.Tensor, hidden: torch.Tensor, *, bidirectional: bool) -> torch.Tensor:
    width = hidden.shape[2] * (2 if bidirectional else 1)
    return sequence.new_empty((*sequence.shape[:2], width))
