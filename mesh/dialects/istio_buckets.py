"""Buckets as regular expressions: "less than w" over four digits, and back.

A mesh can compare texts and not numbers, so the gateway's header carries the bucket as four digits and the mesh
matches it by an expression such as `0[0-9]{3}` for the first 1,000 buckets.
"""

from __future__ import annotations

import functools

from paritygate.mesh.patterns import Pattern
from paritygate.mesh.routing import bucket_text
from paritygate.mesh.types import BUCKETS

_DIGITS = len(bucket_text(BUCKETS - 1))


def regex_below(bound: int) -> str:
    """The expression that fits the four-digit texts of all buckets below `bound`, 1 to 9999, and nothing else.

    One alternative a digit: the digits before it as they are, a smaller digit here, anything behind.
    """
    if not 0 < bound < BUCKETS:
        raise ValueError(f"bound must be from 1 to {BUCKETS - 1}, got {bound}")
    digits = bucket_text(bound)
    parts = [
        digits[:place] + _digit_below(int(digit)) + _any_digits(_DIGITS - place - 1)
        for place, digit in enumerate(digits)
        if digit != "0"
    ]
    return "|".join(parts)


@functools.lru_cache(maxsize=1024)  # ten thousand comparisons each
def bound_of(regex: str) -> int:
    """The bound that an expression stands for, however it is written.

    Raises:
        ValueError: If the buckets that it fits are not all those below some bound.
    """
    pattern = Pattern(regex)
    fitting = [bucket for bucket in range(BUCKETS) if pattern.fits(bucket_text(bucket).encode("ascii"))]
    if fitting != list(range(len(fitting))):
        raise ValueError(f"regex '{regex[:80]}' does not stand for the buckets below a bound")
    return len(fitting)


def _digit_below(digit: int) -> str:
    return "0" if digit == 1 else f"[0-{digit - 1}]"


def _any_digits(count: int) -> str:
    if count == 0:
        return ""
    return "[0-9]" if count == 1 else f"[0-9]{{{count}}}"
