"""The data of the quickstart: scikit-learn's handwritten digits, split once and for all."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from paritygate.converter.types import Array

NUM_TEST = 400
"""Images kept from training; the quickstart's users send these, one user an image first."""

_SPLIT_SEED = 7


@dataclass(frozen=True)
class Split:
    """Images and labels.

    Attributes:
        images: float32[n, 1, 8, 8], in 0..1.
        labels: int64[n], the digit.
    """

    images: Array
    labels: Array


def load_splits() -> tuple[Split, Split]:
    """The training and the test images; the same split on every machine."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    images = (digits.images / 16.0).astype(np.float32)[:, np.newaxis]
    labels = digits.target.astype(np.int64)
    order = np.random.default_rng(_SPLIT_SEED).permutation(len(images))
    test, train = order[:NUM_TEST], order[NUM_TEST:]
    return Split(images[train], labels[train]), Split(images[test], labels[test])
