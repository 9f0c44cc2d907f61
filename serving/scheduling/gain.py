"""Whether it pays to run requests together: measured on the runs themselves, again and again.

Many models on a CPU compute eight items in one run slower than in eight, and nothing in a config tells.
"""

from __future__ import annotations

import statistics
from collections import deque

_SAMPLES = 8
_AGAIN_AFTER = 1024


class BatchGain:
    """Nanoseconds an item, of requests that ran alone and of requests that ran together."""

    def __init__(self) -> None:
        self._alone: deque[float] = deque(maxlen=_SAMPLES)
        self._together: deque[float] = deque(maxlen=_SAMPLES)
        self._since_asked = 0

    @property
    def wants_together(self) -> bool:
        """Whether the next requests are to run together: to learn what it takes, or because it takes less."""
        if len(self._alone) < _SAMPLES:
            return False
        return len(self._together) < _SAMPLES or self.pays

    @property
    def pays(self) -> bool:
        """Whether items that ran together took no longer than items alone; true as long as nothing is known."""
        if len(self._alone) < _SAMPLES or len(self._together) < _SAMPLES:
            return True
        return statistics.median(self._together) <= statistics.median(self._alone)

    def saw(self, num_requests: int, num_items: int, run_ns: int) -> None:
        """Take note of a run; after many the way that is not taken is tried again."""
        samples = self._alone if num_requests == 1 else self._together
        samples.append(run_ns / max(1, num_items))
        self._since_asked += 1
        if self._since_asked >= _AGAIN_AFTER:
            self._since_asked = 0
            (self._alone if self.pays else self._together).clear()
