"""Interleaved timing: A and B by turns, medians, and the ratio of each pair; drift of the machine cancels out."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Ratio:
    """What was compared, and how they came out.

    Attributes:
        name: What A is, over what B is.
        a_us: Median microseconds of one call of A.
        b_us: Median microseconds of one call of B.
        ratio: Median over the rounds of A / B.
        low: Smallest ratio of a round.
        high: Largest ratio of a round.
    """

    name: str
    a_us: float
    b_us: float
    ratio: float
    low: float
    high: float

    def __str__(self) -> str:
        return (
            f"{self.name:<62} {self.a_us:>12,.1f} us {self.b_us:>12,.1f} us "
            f"ratio {self.ratio:>8.2f} ({self.low:.2f} to {self.high:.2f})"
        )


def compare(
    name: str, a: Callable[[], object], b: Callable[[], object], *, rounds: int, calls_a: int, calls_b: int
) -> Ratio:
    """Time A and B by turns after one unmeasured call of each."""
    a(), b()
    pairs = [(_per_call_us(a, calls_a), _per_call_us(b, calls_b)) for _ in range(rounds)]
    ratios = [first / second for first, second in pairs]
    return Ratio(
        name,
        statistics.median(first for first, _ in pairs),
        statistics.median(second for _, second in pairs),
        statistics.median(ratios),
        min(ratios),
        max(ratios),
    )


def _per_call_us(call: Callable[[], object], times: int) -> float:
    started = time.perf_counter()
    for _ in range(times):
        call()
    return 1e6 * (time.perf_counter() - started) / times
