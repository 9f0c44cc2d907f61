"""Numbers of an estimator that it compares its inputs with, and that float32 does not have."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from paritygate.converter.errors import ExportError
from paritygate.converter.exporters._sklearn.conversion import parts


def check_compared(estimator: Any, example: Mapping[str, Any] | None, notes: list[str]) -> None:
    """Refuse, or note, a comparison that hangs on the type in which the features come.

    NumPy compares float32 data with a Python number in float32: 0.3 is no less than `np.float32(0.3)` then, and is
    in float64. An estimator is asked in float64 (`EstimatorModel.run`), so that a user of float32 data would be
    answered otherwise than by scikit-learn at just those values.

    Args:
        estimator: The fitted estimator.
        example: What the user showed, as it came; None if nothing.
        notes: Takes one sentence where the user showed no float32.

    Raises:
        ExportError: If the user showed float32.
    """
    found = next(_compared(estimator), None)
    if found is None:
        return
    kind, parameter, number = found
    rounded = f"np.float32({number!r})"
    if any(np.asarray(value).dtype == np.float32 for value in (example or {}).values()):
        raise ExportError(
            f"{kind} compares features with {parameter}={number!r}, which float32 does not have, and the example "
            f"is float32: NumPy rounds the number there, and does not for float64 data. Fit it with "
            f"{parameter}={rounded}, or show float64 if that is what scikit-learn gets."
        )
    notes.append(
        f"{kind} compares features with {parameter}={number!r}, which float32 does not have: the graph answers as "
        f"scikit-learn does for float64 data. For float32 data fit it with {parameter}={rounded}."
    )


def _compared(estimator: Any) -> Iterator[tuple[str, str, float]]:
    """Class, parameter and number of each such comparison, wherever in the estimator it is made."""
    for _, part in parts(estimator):
        kind = type(part).__name__
        for parameter in ("missing_values", "threshold") if kind == "Binarizer" else ("missing_values",):
            number = getattr(part, parameter, None)
            if isinstance(number, float) and np.isfinite(number) and float(np.float32(number)) != number:
                yield kind, parameter, float(number)
