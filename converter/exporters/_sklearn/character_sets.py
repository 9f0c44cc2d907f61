"""Which characters an expression of one character matches, asked of Python itself."""

from __future__ import annotations

import re
from functools import lru_cache

import numpy as np

from paritygate.converter.exporters._sklearn.expressions import MAX_SETS
from paritygate.converter.types import Array


@lru_cache(maxsize=MAX_SETS + 4)
def members(expression: str, flags: int) -> Array:
    """bool[0x110000], by code point: the characters that an expression of one character matches."""
    found = "".join(re.findall(expression, _every_character(), flags))
    held = np.zeros(0x110000, np.bool_)
    held[np.frombuffer(found.encode("utf-32-le"), np.uint32)] = True
    return held


def word() -> Array:
    r"""bool[0x110000]: the letters of words, `\w`."""
    return members(r"[\w]", 0)


@lru_cache(maxsize=1)
def _every_character() -> str:
    codes = np.concatenate([np.arange(0xD800), np.arange(0xE000, 0x110000)])
    return codes.astype("<u4").tobytes().decode("utf-32-le")
