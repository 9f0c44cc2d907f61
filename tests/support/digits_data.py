"""Handwritten digits out of scikit-learn's wheel, for framework environments that lack scikit-learn."""

from __future__ import annotations

import gzip
from typing import Any

import numpy as np

from support.model_packages import unpacked


def digits() -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """float32[1797, 8, 8, 1] pictures between 0 and 1, and int64[1797] what they show."""
    file = unpacked("scikit-learn") / "sklearn" / "datasets" / "data" / "digits.csv.gz"
    with gzip.open(file, "rt") as lines:
        table = np.loadtxt(lines, delimiter=",", dtype=np.float32)
    return table[:, :-1].reshape(-1, 8, 8, 1) / 16, table[:, -1].astype(np.int64)
