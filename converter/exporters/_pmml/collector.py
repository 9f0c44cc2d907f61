"""The cyclic garbage collector out of the way while a large document is built."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def collector_paused() -> Iterator[None]:
    """Pause the collector, which else walks millions of living elements again and again: half of the time.

    What is made meanwhile stays alive, so there is nothing to find; a collector that was off before stays off.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
