# ruff: noqa: E501
from __future__ import annotations

import pytest
import xxhash

from paritygate.mesh.routing import Facts, bucket_of, bucket_text, choose, compile_table
from paritygate.mesh.types import HeaderMatch, Match, MatchKind, Rollout, Route, Weight
from support.rollouts import rollout


def table_matching(*headers: HeaderMatch) -> Rollout:
    return Rollout(
        "digits",
        1,
        (Route("r", (Match(headers),), (Weight(2, 10_000),)), Route("d", (), (Weight(1, 10_000),))),
    )


def fits(condition: HeaderMatch, value: str | None) -> bool:
    headers = {} if value is None else {condition.name: value}
    return choose(compile_table(table_matching(condition)), Facts(headers)).version == 2


@pytest.mark.parametrize(
    ("kind", "value", "given", "expected"),
    [
        (MatchKind.EXACT, "a", "a", True),
        (MatchKind.EXACT, "a", "A", False),
        (MatchKind.EXACT, "a", "ab", False),
        (MatchKind.EXACT, "a", None, False),
        (MatchKind.EXACT, "ü", "ü".encode().decode("latin-1"), True),
        (MatchKind.PREFIX, "te", "team", True),
        (MatchKind.PREFIX, "te", "Team", False),
        (MatchKind.PREFIX, "team", "te", False),
        (MatchKind.PREFIX, "te", None, False),
        (MatchKind.REGEX, "t.*m", "team", True),
        (MatchKind.REGEX, "t.*m", "teams", False),
        (MatchKind.REGEX, ".{4}", "üü".encode().decode("latin-1"), True),
        (MatchKind.REGEX, ".*", None, False),
        (MatchKind.PRESENT, "", "", True),
        (MatchKind.PRESENT, "", "x", True),
        (MatchKind.PRESENT, "", None, False),
    ],
    ids=str,
)
def test_each_kind_of_match(kind: MatchKind, value: str, given: str | None, expected: bool) -> None:
    assert fits(HeaderMatch("x", kind, value), given) is expected


def test_conditions_of_one_match_must_all_hold() -> None:
    table = compile_table(
        table_matching(HeaderMatch("a", MatchKind.PRESENT), HeaderMatch("b", MatchKind.EXACT, "1"))
    )
    found = [choose(table, Facts(h)).version for h in ({"a": ""}, {"b": "1"}, {"a": "", "b": "1"})]
    assert found == [1, 1, 2]


def test_one_of_several_matches_is_enough_and_the_first_route_wins() -> None:
    routes = (
        "{name: one, match: [{headers: {a: {exact: x}}}, {headers: {b: {exact: x}}}], weights: {2: 100}}, "
        "{name: two, match: {headers: {c: {present: true}}}, weights: {3: 100}}, "
    )
    table = compile_table(rollout("{1: 100}", routes=routes))
    found = [choose(table, Facts(h)).rule for h in ({"b": "x", "c": "y"}, {"c": "y"}, {"a": "y"})]
    assert found == ["one", "two", "default"]


def test_header_names_in_a_file_know_no_case() -> None:
    table = compile_table(
        rollout("{1: 100}", routes="{match: {headers: {X-TESTER: {exact: A}}}, weights: {2: 100}}, ")
    )
    assert choose(table, Facts({"x-tester": "A"})).version == 2


@pytest.mark.parametrize(
    ("sticky", "facts", "key"),
    [
        ("{header: X-User}", Facts({"x-user": "bob"}), b"bob"),
        ("{header: x-user}", Facts({"x-user": "zo\u00c3\u00ab"}), "zo\u00eb".encode()),
        ("{header: x-user}", Facts({"x-user": "\u20ac"}), "\u20ac".encode()),
        ("{parameter: user}", Facts(parameters={"user": "zo\u00eb"}), "zo\u00eb".encode()),
        ("{parameter: user}", Facts(parameters={"user": 17}), b"17"),
        ("{header: x-user}", Facts({"x-user": ""}, draw=7), b""),
        ("{parameter: user}", Facts(parameters={"user": ""}, draw=7), b""),
    ],
)
def test_the_bucket_is_xxh64_of_the_exact_bytes(sticky: str, facts: Facts, key: bytes) -> None:
    decision = choose(compile_table(rollout(sticky=sticky)), facts)
    assert (decision.bucket, decision.keyed) == (xxhash.xxh64_intdigest(key, seed=0) % 10_000, True)


@pytest.mark.parametrize(
    ("sticky", "facts", "missing"),
    [
        ("", Facts(draw=7), "the rollout names no sticky key"),
        ("{header: x-user}", Facts(draw=7), "no header 'x-user' in the request"),
        ("{parameter: u}", Facts({"u": "a"}, draw=7), "no parameter 'u' in the request"),
        ("{parameter: u}", Facts(parameters={"u": 1.5}, draw=7), "parameter 'u' is a float, and only text and whole numbers are keys"),
        ("{parameter: u}", Facts(parameters={"u": True}, draw=7), "parameter 'u' is a bool, and only text and whole numbers are keys"),
    ],
)  # fmt: skip
def test_without_a_key_the_draw_decides_and_the_decision_says_so(
    sticky: str, facts: Facts, missing: str
) -> None:
    decision = choose(compile_table(rollout(sticky=sticky)), facts)
    assert (decision.bucket, decision.keyed, decision.missing) == (7, False, missing)
    assert f"bucket 0007 drawn at random ({missing})" in decision.reason


@pytest.mark.parametrize(
    ("draw", "version"), [(0, 2), (2999, 2), (3000, 3), (3000 + 1499, 3), (4500, 1), (9999, 1)]
)
def test_versions_lie_over_the_buckets_candidates_first(draw: int, version: int) -> None:
    table = compile_table(rollout("{1: 55, 2: 30, 3: 15}", sticky=""))
    assert choose(table, Facts(draw=draw)).version == version


@pytest.mark.parametrize("draw", [0, 5000, 9999])
def test_a_version_without_a_share_gets_nothing(draw: int) -> None:
    table = compile_table(rollout("{2: 0, 3: 100, 1: 0}", sticky=""))
    assert choose(table, Facts(draw=draw)).version == 3


@pytest.mark.parametrize("draw", [-1, 10_000])
def test_a_draw_outside_the_buckets_is_refused(draw: int) -> None:
    with pytest.raises(ValueError, match=f"draw must be a whole number from 0 to 9999, got {draw}"):
        choose(compile_table(rollout(sticky="")), Facts(draw=draw))


def test_a_decision_tells_its_reason() -> None:
    decision = choose(compile_table(rollout("{1: 90, 2: 10}")), Facts({"x-user": "bob"}))
    assert decision.reason == "route 'default': bucket 0027 of the key lies in the 10 % of version 2"


def test_the_formula_never_changes() -> None:
    """Fixed figures: a change here would send every user of every running rollout elsewhere."""
    assert [bucket_of(key) for key in (b"", b"bob", b"alice", b"user-1")] == [6921, 27, 9289, 6856]
    assert bucket_text(7) == "0007"
