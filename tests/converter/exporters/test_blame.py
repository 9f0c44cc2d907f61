"""Which open size is fixed where a conversion cannot leave all of them open."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from paritygate.converter.exporters.blame import to_blame


@pytest.mark.parametrize(
    ("fixed", "blamed"),
    [
        (["h"], "h"),
        (["w"], "w"),
        (["h", "w"], "h"),
        (["batch", "w"], "batch"),
        (["batch", "h", "w"], "batch"),
    ],
)
def test_no_size_is_blamed_that_can_stay_open(fixed: list[str], blamed: str) -> None:
    def works(opened: Iterable[str]) -> bool:
        return not set(opened) & set(fixed)

    assert to_blame(["batch", "h", "w"], works) == blamed
