"""Paddle's global switches, set for a while and put back."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator


@contextlib.contextmanager
def dynamic_mode() -> Iterator[None]:
    """Run layers as Python runs them; without gradients, on the device where their weights are."""
    import paddle

    static = not paddle.in_dynamic_mode()
    if static:
        paddle.disable_static()
    try:
        with paddle.no_grad():
            yield
    finally:
        if static:
            paddle.enable_static()


@contextlib.contextmanager
def static_mode(*, old: bool) -> Iterator[None]:
    """Run saved programs; those of paddle 2 (`.pdmodel`) in its old form, weights in a scope of their own."""
    import paddle

    dynamic = paddle.in_dynamic_mode()
    paddle.enable_static()
    try:
        with paddle.pir_utils.OldIrGuard() if old else contextlib.nullcontext():
            yield
    finally:
        if dynamic:
            paddle.disable_static()


@contextlib.contextmanager
def default_float64() -> Iterator[None]:
    """What a layer creates without naming a dtype is double for a while."""
    import paddle

    before = paddle.get_default_dtype()
    paddle.set_default_dtype("float64")
    try:
        yield
    finally:
        paddle.set_default_dtype(before)
