from __future__ import annotations

import re

import pytest

from paritygate.mesh.dialects.istio_buckets import bound_of, regex_below


@pytest.mark.parametrize(
    ("bound", "regex"),
    [
        (1, "0000"),
        (10, "000[0-9]"),
        (1000, "0[0-9]{3}"),
        (501, "0[0-4][0-9]{2}|0500"),
        (3333, "[0-2][0-9]{3}|3[0-2][0-9]{2}|33[0-2][0-9]|333[0-2]"),
        (9999, "[0-8][0-9]{3}|9[0-8][0-9]{2}|99[0-8][0-9]|999[0-8]"),
    ],
)
def test_expressions_are_short_and_readable(bound: int, regex: str) -> None:
    assert regex_below(bound) == regex


@pytest.mark.parametrize("bound", [*range(1, 120), *range(150, 9999, 97), 9998, 9999])
def test_an_expression_fits_the_buckets_below_its_bound_and_no_other(bound: int) -> None:
    pattern = re.compile(regex_below(bound))
    assert [b for b in range(10_000) if pattern.fullmatch(f"{b:04d}")] == list(range(bound))


@pytest.mark.parametrize("text", ["", "0", "00000", "000", " 0000", "none-v2", "-001", "0000\n"])
def test_nothing_but_four_digits_fits(text: str) -> None:
    assert re.fullmatch(regex_below(9999), text) is None


@pytest.mark.parametrize("bound", [1, 7, 1000, 4711, 9999])
def test_a_bound_is_read_from_what_an_expression_fits(bound: int) -> None:
    assert bound_of(regex_below(bound)) == bound


def test_a_bound_is_read_however_the_expression_is_written() -> None:
    assert bound_of("^0\\d\\d\\d$") == 1000


@pytest.mark.parametrize("regex", ["1[0-9]{3}", "000[1-9]", "0[0-9]{3}|5000"])
def test_an_expression_with_holes_has_no_bound(regex: str) -> None:
    with pytest.raises(ValueError, match="does not stand for the buckets below a bound"):
        bound_of(regex)


@pytest.mark.parametrize("bound", [0, -1, 10_000])
def test_bounds_that_need_no_expression_are_refused(bound: int) -> None:
    with pytest.raises(ValueError, match="bound must be from 1 to 9999"):
        regex_below(bound)
