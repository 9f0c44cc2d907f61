"""Categories that an estimator does not know, or that its inputs cannot hold, in words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from paritygate.converter.exporters._sklearn.known import is_nan, known_by_input
from paritygate.converter.exporters._sklearn.texts import takes_texts
from paritygate.converter.exporters.base import SourceInput
from paritygate.converter.types import DType, Feeds

_NAMED = 6
"""Categories that an error names at most."""


def unknown_category(estimator: Any, inputs: Sequence[SourceInput], feeds: Feeds) -> str | None:
    """Which value is none of the categories that somebody insists on, and what to give; None without any."""
    if takes_texts(estimator):  # any word may come
        return None
    required = known_by_input(estimator, inputs, strictly=True)
    for spec in inputs:
        for column, pool in enumerate(required[spec.name]):
            values = feeds[spec.name][:, column].tolist() if pool else ()
            unknown = [value for value in values if not is_nan(value) and value not in pool]
            if unknown:
                place = f" in column {column}" if len(required[spec.name]) > 1 else ""
                return f"input {spec.name!r} holds {unknown[0]!r}{place}, {_why_unknown(spec, pool)}"
    return None


def rounded_categories(estimator: Any, inputs: Sequence[SourceInput]) -> list[str]:
    """A note for each input that rounds categories, so that some are not known and others are one."""
    notes = []
    for spec, columns in zip(inputs, known_by_input(estimator, inputs).values(), strict=True):
        pool = next((pool for pool in columns if _rounds(spec, pool)), None)
        if pool is not None:
            notes.append(
                f"Input {spec.name!r} is float32, which does not have all categories that the model knows; "
                f"give them as they are ({_exact_words(spec, pool)})."
            )
    return notes


def _rounds(spec: SourceInput, pool: Sequence[Any]) -> bool:
    return spec.dtype is DType.FLOAT32 and any(float(np.float32(value)) != value for value in pool)


def _exact_words(spec: SourceInput, pool: Sequence[Any]) -> str:
    exact = "int64" if all(float(value).is_integer() for value in pool) else "float64"
    words = f"{spec.name}:{exact}[batch,{spec.shape[-1]}]"
    return f"--input '{words}', inputs={words!r}"


def _why_unknown(spec: SourceInput, pool: Sequence[Any]) -> str:
    if _rounds(spec, pool):
        return (
            "since float32 does not have all categories that the model was fitted on; give them as they are "
            f"({_exact_words(spec, pool)})"
        )
    shown = ", ".join(repr(value) for value in pool[:_NAMED]) + (", ..." if len(pool) > _NAMED else "")
    told = f"where the model knows {shown} only"
    if not spec.dtype.is_integer:
        return told
    low, high = int(min(pool)), int(max(pool))
    if len(pool) != high - low + 1:
        return told
    return f"{told}; keep to that (--integer-range {spec.name}={low}:{high}, integer_ranges=)"
