from __future__ import annotations

import json

import pytest

from paritygate.mesh.errors import RolloutInvalid
from paritygate.mesh.explain import Explanation, explain, parse_request
from paritygate.mesh.routing import Facts, choose, compile_table
from support.rollouts import rollout

ROUTES = (
    "{name: testers, match: {headers: {x-tester: {exact: a}, x-plan: {present: true}}}, weights: {2: 100}}, "
)


def explained(request: str, weights: str = "{1: 90, 2: 10}") -> Explanation:
    return explain(rollout(weights, routes=ROUTES), parse_request(request))


def test_every_step_is_told() -> None:
    assert explained("headers: {X-User: bob, x-tester: b}").steps == (
        "route 'testers' does not: x-plan is present does not hold (the header is absent), "
        "x-tester exact 'a' does not hold (got 'b')",
        "route 'default' takes it: it takes every request",
        "bucket 0027 = xxh64(b'bob') mod 10000: header 'x-user'",
        "version 2 has 10 %: buckets 0000 to 0999",
    )


def test_a_taken_match_is_named() -> None:
    found = explained("headers: {x-user: bob, x-tester: a, x-plan: pro}")
    assert (found.rule, found.version) == ("testers", 2)
    assert found.steps[0] == "route 'testers' takes it: x-plan is present and x-tester exact 'a'"


def test_without_key_and_draw_all_shares_are_shown() -> None:
    found = explained("headers: {}")
    assert (found.version, found.bucket, found.keyed) == (None, None, False)
    assert (
        found.steps[-1]
        == "chance decides, because no header 'x-user' in the request: 10 % version 2, 90 % version 1"
    )


def test_without_key_and_draw_a_lone_version_is_certain() -> None:
    assert explained("headers: {}", "{2: 0, 1: 100}").version == 1


def test_a_draw_stands_for_chance() -> None:
    found = explained("draw: 999")
    assert (found.version, found.bucket, found.keyed) == (2, 999, False)


@pytest.mark.parametrize("user", [f"user-{n}" for n in range(20)])
def test_the_explanation_agrees_with_the_choice(user: str) -> None:
    request = parse_request(json.dumps({"headers": {"X-User": user}}))
    decision = choose(compile_table(rollout("{1: 50, 2: 50}")), Facts(request.headers))
    found = explain(rollout("{1: 50, 2: 50}"), request)
    assert (found.version, found.bucket, found.rule) == (decision.version, decision.bucket, decision.rule)


def test_an_explanation_is_plain_json() -> None:
    assert json.loads(json.dumps(explained("draw: 1").to_json()))["shares"] == {"2": "10", "1": "90"}


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("[]", r"must be a mapping with headers, parameters, draw @ \$"),
        ("header: {}", r"unknown key 'header'; did you mean 'headers'\? @ \$"),
        ("headers: [a]", r"must be a mapping of names to values @ \$\.headers"),
        ("headers: {a: 1}", r"header 'a' must be text; put it in quotes @ \$\.headers\.a"),
        ("headers: {a: x, A: y}", r"header 'A' is given twice; names know no case @ \$\.headers\.A"),
        ("draw: 10000", r"draw must be a whole number from 0 to 9999, got 10000 @ \$\.draw"),
        ("draw: true", r"draw must be a whole number"),
    ],
)
def test_faults_of_a_request_file_are_named(text: str, fault: str) -> None:
    with pytest.raises(RolloutInvalid, match=fault):
        parse_request(text)
