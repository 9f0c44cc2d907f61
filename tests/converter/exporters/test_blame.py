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


def test_a_conversion_that_does_not_repeat_itself_still_blames_one() -> None:
    answers = iter([False, False, True, True])
    assert to_blame(["h", "w"], lambda _: next(answers)) == "h"
