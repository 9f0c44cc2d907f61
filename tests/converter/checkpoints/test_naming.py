"""Names of entries are judged by their words, not by letters inside of them."""

from __future__ import annotations

import pytest

from paritygate.converter.checkpoints.naming import is_averaged, is_of_training


@pytest.mark.parametrize(
    "name",
    ["ema", "model_ema", "ema_state_dict", "modelEMA", "EMAModel", "SWAModel", "averaged_model", "swa.model"],
)
def test_averaged_weights_are_known_by_a_word(name: str) -> None:
    assert is_averaged(name)


@pytest.mark.parametrize("name", ["semantic_head", "remap", "schema", "swapped", "averager", "thema"])
def test_letters_inside_a_word_say_nothing(name: str) -> None:
    assert not is_averaged(name)


@pytest.mark.parametrize(
    "name", ["optimizer", "optim_state", "optimizer_states", "lr_schedulers", "grad_scaler"]
)
def test_the_state_of_training_is_known_when_every_word_says_so(name: str) -> None:
    assert is_of_training(name)


@pytest.mark.parametrize("name", ["optimal_model", "target_scaler", "model", "state_dict", "scaled_net"])
def test_networks_are_not_taken_for_the_state_of_training(name: str) -> None:
    assert not is_of_training(name)
