"""Where the time of an export goes: stages are marked in the code and counted only while somebody measures."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar


class _Clock:
    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self.running: list[str] = []
        self._since = time.perf_counter()

    def turn(self) -> None:
        """Book the time since the last turn on the innermost stage."""
        now = time.perf_counter()
        if self.running:
            name = self.running[-1]
            self.seconds[name] = self.seconds.get(name, 0.0) + now - self._since
        self._since = now


_CLOCK: ContextVar[_Clock | None] = ContextVar("paritygate_stage_clock", default=None)


@contextmanager
def stage(name: str) -> Iterator[None]:
    """Mark what runs inside as one stage; the time of a stage inside another counts for the inner one alone."""
    clock = _CLOCK.get()
    if clock is None:
        yield
        return
    clock.turn()
    clock.running.append(name)
    try:
        yield
    finally:
        clock.turn()
        clock.running.pop()


@contextmanager
def measured_stages() -> Iterator[dict[str, float]]:
    """Seconds by name of stage of what runs inside, in this thread."""
    clock = _Clock()
    token = _CLOCK.set(clock)
    try:
        yield clock.seconds
    finally:
        _CLOCK.reset(token)
