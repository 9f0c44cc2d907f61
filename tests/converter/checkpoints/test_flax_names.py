"""Which entries of a Flax checkpoint are training's own, and which are layers that a model misses."""

from __future__ import annotations

import pytest

from paritygate.converter.checkpoints.flax import _is_training

_KEPT_BY_TRAINING = [
    ("opt_state", "0", "mu"), ("optimizer", "count"), ("tx",), ("ema_params", "Dense_0", "kernel"), ("step",),
    ("global_step",), ("rngs", "dropout"), ("dropout_rng",), ("metrics", "loss"), ("key",), ("epoch",),
]  # fmt: skip
_LAYERS = [
    ("step_embed", "kernel"), ("opt_head", "kernel"), ("key", "kernel"), ("loss_head", "bias"), ("count", "bias"),
    ("temaki", "kernel"), ("stepwise",), ("keypoints", "kernel"), ("params", "Dense_0", "kernel"),
]  # fmt: skip


@pytest.mark.parametrize("name", _KEPT_BY_TRAINING, ids=".".join)
def test_what_training_keeps_is_not_missed(name: tuple[str, ...]) -> None:
    assert _is_training(name)


@pytest.mark.parametrize("name", _LAYERS, ids=".".join)
def test_a_layer_is_a_layer_whatever_words_are_in_its_name(name: tuple[str, ...]) -> None:
    assert not _is_training(name)
