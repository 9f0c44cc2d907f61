from __future__ import annotations

from decimal import Decimal

import pytest

from paritygate.mesh.types import basis_points_from_percent, percent_text
from support.rollouts import rollout


@pytest.mark.parametrize(
    ("percent", "points"),
    [
        ("0", 0),
        ("100", 10_000),
        ("33.33", 3333),
        ("0.01", 1),
        ("99.99", 9999),
        ("12.50", 1250),
        ("1e1", 1000),
    ],
)
def test_percents_become_basis_points_exactly(percent: str, points: int) -> None:
    assert basis_points_from_percent(Decimal(percent)) == points


@pytest.mark.parametrize(
    "percent", ["33.333", "0.001", "33.3300000000000000000000000000000000000001", "1e-9999"]
)
def test_a_third_decimal_is_refused_however_far_behind_it_stands(percent: str) -> None:
    with pytest.raises(ValueError, match="more than two decimals"):
        basis_points_from_percent(Decimal(percent))


@pytest.mark.parametrize("percent", ["-0.01", "100.01", "nan", "inf", "-inf", "1e9999"])
def test_percents_outside_zero_to_hundred_are_refused(percent: str) -> None:
    with pytest.raises(ValueError, match="from 0 to 100"):
        basis_points_from_percent(Decimal(percent))


def test_every_share_survives_the_way_through_its_text() -> None:
    assert all(basis_points_from_percent(Decimal(percent_text(points))) == points for points in range(10_001))


def test_versions_are_those_of_all_weights_and_the_stable_one() -> None:
    found = rollout("{3: 100, 7: 0}", stable=1)
    assert (found.versions, found.candidates) == ((1, 3, 7), (3, 7))


@pytest.mark.parametrize(("weights", "expected"), [("{1: 100, 2: 0}", True), ("{1: 99.99, 2: 0.01}", False)])
def test_a_rollout_knows_whether_everything_goes_to_stable(weights: str, expected: bool) -> None:
    assert rollout(weights).all_on_stable is expected


def test_all_to_keeps_key_and_topology() -> None:
    before = rollout(
        topology="gateway-header", routes="{match: {headers: {a: {exact: b}}}, weights: {2: 100}}, "
    )
    after = before.all_to(2)
    assert after == rollout("{2: 100}", stable=2, topology="gateway-header")
