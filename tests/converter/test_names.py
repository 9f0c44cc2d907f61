"""Which of our names people mean."""

from __future__ import annotations

import pytest

from paritygate.converter.exporters import EXPORTERS, get_exporter
from paritygate.converter.names import _SAID, meant


@pytest.mark.parametrize(
    ("name", "ours"),
    [
        ("torch", "pytorch"),
        ("PyTorch", "pytorch"),
        ("tf", "tensorflow"),
        ("tensorflow-cpu", "tensorflow"),
        ("tensorfow", "tensorflow"),
        ("scikit-learn", "sklearn"),
        ("scikitlearn", "sklearn"),
        ("paddlepaddle", "paddle"),
        ("flax", "jax"),
        ("lightgmb", "lightgbm"),
        ("mxnet", None),
        ("", None),
    ],
)
def test_what_people_write_is_one_of_ours_or_unclear(name: str, ours: str | None) -> None:
    assert meant(name, EXPORTERS) == ours


def test_every_name_that_people_use_leads_to_an_exporter() -> None:
    assert set(_SAID.values()) <= set(EXPORTERS)


def test_only_names_that_are_known_are_told() -> None:
    assert meant("torch", ["jax", "keras"]) is None


def test_an_unknown_framework_is_refused_with_the_name_that_is_meant() -> None:
    with pytest.raises(
        ValueError, match=r"unknown framework 'tf'\. Did you mean 'tensorflow'\? Expected one of jax"
    ):
        get_exporter("tf")
