"""Properties that a split must have for every key and every ramp."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paritygate.mesh.routing import Facts, bucket_of, choose, compile_table
from paritygate.mesh.types import BUCKETS, Rollout, Route, Weight, percent_text
from support.rollouts import request_headers, rollout, rollouts

KEYS = 100_000
RAMP = (1, 50, 100, 500, 1000, 2500, 3333, 5000, 7500, 9999, 10_000)


@pytest.fixture(scope="module")
def versions_by_weight() -> dict[int, list[int]]:
    """The version of each of 100,000 users, at each step of a ramp, through the whole public path."""
    users = [Facts({"x-user": f"user-{n}"}) for n in range(KEYS)]
    found = {}
    for points in RAMP:
        table = compile_table(rollout(f"{{1: {percent_text(BUCKETS - points)}, 2: {percent_text(points)}}}"))
        found[points] = [choose(table, user).version for user in users]
    return found


@pytest.mark.parametrize("points", RAMP)
def test_shares_lie_within_binomial_bounds(points: int, versions_by_weight: dict[int, list[int]]) -> None:
    share = points / BUCKETS
    spread = math.sqrt(KEYS * share * (1 - share))
    assert abs(versions_by_weight[points].count(2) - KEYS * share) <= 5 * spread


@pytest.mark.parametrize(("smaller", "larger"), list(pairwise(RAMP)))
def test_growing_a_weight_only_adds_users(
    smaller: int, larger: int, versions_by_weight: dict[int, list[int]]
) -> None:
    before, after = versions_by_weight[smaller], versions_by_weight[larger]
    went_back = [n for n in range(KEYS) if before[n] == 2 and after[n] == 1]
    joined = sum(1 for n in range(KEYS) if before[n] == 1 and after[n] == 2)
    assert (went_back, joined > 0) == ([], True)


def test_buckets_are_evenly_filled() -> None:
    """Chi-square over 100 groups of buckets; its 0.9999 quantile at 99 degrees of freedom is 161."""
    counts = [0] * 100
    for n in range(KEYS):
        counts[bucket_of(f"user-{n}".encode()) // 100] += 1
    expected = KEYS / 100
    assert sum((count - expected) ** 2 / expected for count in counts) < 161


@settings(max_examples=120, deadline=None)
@given(rollouts(), request_headers(), st.integers(0, BUCKETS - 1))
def test_the_same_facts_get_the_same_answer(found: Rollout, headers: dict[str, str], draw: int) -> None:
    facts = Facts(headers, {}, draw)
    assert choose(compile_table(found), facts) == choose(compile_table(found), facts)


@settings(max_examples=120, deadline=None)
@given(rollouts(), request_headers(), st.integers(0, BUCKETS - 1))
def test_the_answer_is_a_version_with_a_share(found: Rollout, headers: dict[str, str], draw: int) -> None:
    decision = choose(compile_table(found), Facts(headers, {}, draw))
    route = next(route for route in found.routes if route.name == decision.rule)
    assert {w.version: w.basis_points for w in route.weights}[decision.version] == decision.share > 0


@settings(max_examples=120, deadline=None)
@given(rollouts(), request_headers(), st.integers(0, BUCKETS - 1))
def test_a_drawn_decision_says_so(found: Rollout, headers: dict[str, str], draw: int) -> None:
    decision = choose(compile_table(found), Facts(headers, {}, draw))
    has_key = found.sticky is not None and found.sticky.name in headers
    assert decision.keyed is has_key
    assert has_key or (decision.bucket == draw and "drawn at random" in decision.reason)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 2000), min_size=1, max_size=4), st.data())
def test_growing_any_candidate_sends_nobody_back_to_stable(shares: list[int], data: st.DataObject) -> None:
    grown = [share + data.draw(st.integers(0, 500)) for share in shares]
    before, after = _table(shares), _table(grown)
    for bucket in range(0, BUCKETS, 7):
        facts = Facts(draw=bucket)
        assert choose(before, facts).version == 1 or choose(after, facts).version != 1


def _table(shares: list[int]):  # type: ignore[no-untyped-def]
    weights = [Weight(version, share) for version, share in enumerate(shares, start=2)]
    weights.append(Weight(1, BUCKETS - sum(shares)))
    return compile_table(Rollout("digits", 1, (Route("default", (), tuple(weights)),)))
