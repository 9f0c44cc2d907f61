"""Numbers on which boosters are trained in the tests: five features, the fourth one categories, with gaps."""

from __future__ import annotations

from typing import Any

import numpy as np

_RNG = np.random.default_rng(3)

FULL: Any = _RNG.normal(size=(400, 5)).astype(np.float32)
FULL[:, 3] = _RNG.integers(0, 9, 400)
GAPS: Any = FULL.copy()
GAPS[:, :3][_RNG.random((400, 3)) < 0.1] = np.nan
ZEROS: Any = np.where(_RNG.random(GAPS.shape) < 0.2, np.float32(0), GAPS)
"""With gaps, and every fifth number zero."""

TWO: Any = ((FULL[:, 0] > 0) ^ np.isin(FULL[:, 3], [2, 5, 7])).astype(int)
THREE: Any = TWO + (FULL[:, 1] > 0.5)
AMOUNT: Any = FULL[:, 0] * 3 + FULL[:, 1] ** 2 + 50
WORDS: Any = np.array(["no", "yes", "maybe"], dtype=object)[THREE]
