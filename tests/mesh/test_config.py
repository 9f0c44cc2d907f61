# ruff: noqa: E501  (tables of whole error texts read better in one line)
from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings

from paritygate.mesh.config import (
    load_rollout,
    parse_rollout,
    render_rollout,
    rollout_from_value,
    rollout_to_value,
)
from paritygate.mesh.errors import RolloutInvalid
from paritygate.mesh.types import (
    HeaderMatch,
    KeySource,
    Match,
    MatchKind,
    Rollout,
    Route,
    StickyKey,
    Topology,
    Weight,
)
from support.rollouts import rollout, rollouts

HEAD = "schema: paritygate.rollout/v1\nmodel: digits\nstable: 1\n"


def faults_of(text: str) -> list[str]:
    with pytest.raises(RolloutInvalid) as caught:
        parse_rollout(text, source="rollout.yaml")
    assert str(caught.value).startswith("rollout.yaml: ")
    assert "\n" not in str(caught.value)
    return [str(fault) for fault in caught.value.faults]


def test_a_whole_file_is_read() -> None:
    text = """
schema: paritygate.rollout/v1
model: digits
stable: 1
topology: gateway-header
sticky: {header: X-User}
routes:
  - name: testers
    match:
      - headers: {X-Tester: {exact: a}, accept: {present: true}}
      - headers: {cookie: {regex: ".*group=insider.*"}}
    weights: {2: 100}
  - weights: {1: 66.67, "2": 33.33}
"""
    both = Match((HeaderMatch("accept", MatchKind.PRESENT), HeaderMatch("x-tester", MatchKind.EXACT, "a")))
    cookie = Match((HeaderMatch("cookie", MatchKind.REGEX, ".*group=insider.*"),))
    assert parse_rollout(text) == Rollout(
        "digits",
        1,
        (
            Route("testers", (both, cookie), (Weight(2, 10_000),)),
            Route("default", (), (Weight(2, 3333), Weight(1, 6667))),
        ),
        StickyKey(KeySource.HEADER, "x-user"),
        Topology.GATEWAY_HEADER,
    )


def test_candidates_come_first_in_listed_order_and_stable_last() -> None:
    found = rollout("{1: 50, 7: 20, 3: 30}", stable=1)
    assert [weight.version for weight in found.routes[0].weights] == [7, 3, 1]


@pytest.mark.parametrize(
    "weights",
    ["{1: 33.33, 2: 33.33, 3: 33.34}", "{1: 0.1, 2: 0.2, 3: 99.7}", "{1: '90', 2: '10.00'}", "{1: 1e2}"],
)
def test_weights_sum_without_binary_rounding(weights: str) -> None:
    assert sum(weight.basis_points for weight in rollout(weights).routes[0].weights) == 10_000


@pytest.mark.parametrize(
    ("body", "fault"),
    [
        ("routes: [{weights: {1: 90, 2: 5}}]", "weights must sum to 100, got 95 @ $.routes[0]"),
        ("routes: [{weights: {1: 33.33, 2: 33.33}}]", "weights must sum to 100, got 66.66 @ $.routes[0]"),
        ("routes: [{weights: {1: 66.67, 2: 33.333}}]", "weight 33.333 has more than two decimals @ $.routes[0].weights.2"),
        ("routes: [{weights: {1: -10, 2: 110}}]", "weight -10 must be a number from 0 to 100 @ $.routes[0].weights.1"),
        ("routes: [{weights: {1: ten}}]", "weight 'ten' must be a number from 0 to 100 @ $.routes[0].weights.1"),
        ("routes: [{weights: {1: true}}]", "weight true must be a number from 0 to 100 @ $.routes[0].weights.1"),
        ("routes: [{weights: {1: .nan}}]", "weight NaN must be a number from 0 to 100 @ $.routes[0].weights.1"),
        ("routes: [{weights: {1: 1e999}}]", "weight 1E+999 must be a number from 0 to 100 @ $.routes[0].weights.1"),
        ("routes: [{weights: {0: 100}}]", "a version must be a whole number from 1, got 0 @ $.routes[0].weights"),
        ("routes: [{weights: {01: 100}}]", "a version must be a whole number from 1, got '01' @ $.routes[0].weights"),
        ("routes: [{weights: {v2: 100}}]", "a version must be a whole number from 1, got 'v2' @ $.routes[0].weights"),
        ("routes: [{weights: {99999999999999999999: 100}}]", "a version must be a whole number from 1, got 99999999999999999999 @ $.routes[0].weights"),
        ("routes: [{weights: {}}]", "weights must map 1 to 64 versions to percents, got an empty mapping @ $.routes[0].weights"),
        ("routes: [{weights: [1]}]", "weights must map 1 to 64 versions to percents, got a list @ $.routes[0].weights"),
        ("routes: []", "must be a list of 1 to 128 entries, got a list of 0 @ $.routes"),
        ("routes: {}", "must be a list of 1 to 128 entries, got an empty mapping @ $.routes"),
        ("routes: [7]", "must be a mapping with name, match, weights, got 7 @ $.routes[0]"),
        ("routes: [{wieghts: {1: 100}}]", "unknown key 'wieghts'; did you mean 'weights'? @ $.routes[0]"),
        ("routes: [{weights: {1: 100}, zzz: 1}]", "unknown key 'zzz'; known are name, match, weights @ $.routes[0]"),
        ("routes: [{weights: {1: 100}, name: 'a b'}]", "name must be 1 to 63 letters, digits, '.', '_' or '-' (it travels in a header), got 'a b' @ $.routes[0].name"),
        ("routes: [{weights: {1: 100}}, {weights: {1: 100}}]", "a route without match takes every request, so $.routes[1] is never reached; give it a match or put it last @ $.routes[0]"),
        ("routes: [{match: {headers: {a: {exact: b}}}, weights: {1: 100}}]", "the last route must take every request; add a route with weights and without match @ $.routes[0].match"),
        ("topology: mesh\nroutes: [{weights: {1: 100}}]", "topology 'mesh' is not known; known are gateway-header, deployment-per-version @ $.topology"),
        ("topology: gateway-heder\nroutes: [{weights: {1: 100}}]", "topology 'gateway-heder' is not known; did you mean 'gateway-header'? @ $.topology"),
        ("sticky: {}\nroutes: [{weights: {1: 100}}]", "sticky must name exactly one of header and parameter @ $.sticky"),
        ("sticky: {header: a, parameter: b}\nroutes: [{weights: {1: 100}}]", "sticky must name exactly one of header and parameter @ $.sticky"),
        ("sticky: {header: 'a b'}\nroutes: [{weights: {1: 100}}]", "'a b' is not the name of a header @ $.sticky.header"),
        ("sticky: {header: x-pg-user}\nroutes: [{weights: {1: 100}}]", "headers x-pg-* are written by the gateway; 'x-pg-user' cannot be used @ $.sticky.header"),
        ("sticky: {parameter: 5}\nroutes: [{weights: {1: 100}}]", "parameter must be a name of 1 to 256 characters, got 5 @ $.sticky.parameter"),
    ],
)  # fmt: skip
def test_each_fault_is_named_with_its_path(body: str, fault: str) -> None:
    assert fault in faults_of(HEAD + body)


@pytest.mark.parametrize(
    ("match", "fault"),
    [
        ("{}", "'headers' is missing @ $.routes[0].match"),
        ("{headers: {}}", "headers must map 1 to 32 names to conditions, got an empty mapping; leave match out for a route that takes every request @ $.routes[0].match.headers"),
        ("[]", "must be a list of 1 to 64 entries, got a list of 0 @ $.routes[0].match"),
        ("{uri: {prefix: /}}", "unknown key 'uri'; known are headers @ $.routes[0].match"),
        ("{headers: {a: b}}", "must be a mapping with exact, prefix, regex, present, got 'b' @ $.routes[0].match.headers.a"),
        ("{headers: {a: {}}}", "give exactly one of exact, prefix, regex and present @ $.routes[0].match.headers.a"),
        ("{headers: {a: {exact: b, prefix: c}}}", "give exactly one of exact, prefix, regex and present @ $.routes[0].match.headers.a"),
        ("{headers: {a: {exakt: b}}}", "unknown key 'exakt'; did you mean 'exact'? @ $.routes[0].match.headers.a"),
        ("{headers: {a: {exact: 1}}}", "exact must be text, got 1; put it in quotes @ $.routes[0].match.headers.a.exact"),
        ("{headers: {a: {exact: }}}", "exact must be text, got nothing; put it in quotes @ $.routes[0].match.headers.a.exact"),
        ("{headers: {a: {exact: ''}}}", "exact is empty; say 'present: true' for any value @ $.routes[0].match.headers.a.exact"),
        ("{headers: {a: {present: false}}}", "present must be true, got false; absence cannot be matched @ $.routes[0].match.headers.a.present"),
        ("{headers: {a: {exact: \"x\\ny\"}}}", "exact must be what a header can carry: at most 4096 characters, no control characters, no blanks at its ends @ $.routes[0].match.headers.a.exact"),
        ("{headers: {A: {exact: x}, a: {exact: y}}}", "header 'a' is given twice; names know no case @ $.routes[0].match.headers.a"),
        ("{headers: {x-pg-bucket: {exact: '1'}}}", "headers x-pg-* are written by the gateway; 'x-pg-bucket' cannot be used @ $.routes[0].match.headers"),
        ("{headers: {Host: {exact: a}}}", "the host is not a header in HTTP/2; one rollout is for all hosts of its model @ $.routes[0].match.headers"),
        ("{headers: {5: {exact: a}}}", "5 is not the name of a header @ $.routes[0].match.headers"),
        ("{headers: {':path': {exact: a}}}", "':path' is not the name of a header @ $.routes[0].match.headers"),
    ],
)  # fmt: skip
def test_each_fault_of_a_match_is_named_with_its_path(match: str, fault: str) -> None:
    text = f"{HEAD}routes: [{{match: {match}, weights: {{2: 100}}}}, {{weights: {{1: 100}}}}]"
    assert fault in faults_of(text)


@pytest.mark.parametrize("regex", ["(a+", "(?=x)", r"(a)\\1", "a{2000}"])
def test_a_regex_that_is_not_re2_is_refused_with_its_path(regex: str) -> None:
    match = f'{{headers: {{a: {{regex: "{regex}"}}}}}}'
    (fault,) = faults_of(f"{HEAD}routes: [{{match: {match}, weights: {{2: 100}}}}, {{weights: {{1: 100}}}}]")
    assert "is not an RE2 expression" in fault
    assert fault.endswith("@ $.routes[0].match.headers.a.regex")


def test_a_regex_beyond_ascii_is_refused_because_meshes_match_bytes() -> None:
    match = '{headers: {a: {regex: "ü+"}}}'
    assert faults_of(f"{HEAD}routes: [{{match: {match}, weights: {{2: 100}}}}, {{weights: {{1: 100}}}}]") == [
        "regex 'ü+' must be ASCII: meshes match bytes, and other characters are several; use exact or prefix for them "
        "@ $.routes[0].match.headers.a.regex"
    ]


def test_a_match_that_an_earlier_route_takes_is_refused() -> None:
    route = "{match: {headers: {a: {exact: b}}}, weights: {2: 100}}"
    assert faults_of(f"{HEAD}routes: [{route}, {route}, {{weights: {{1: 100}}}}]") == [
        "the match 'a exact 'b'' is never reached; $.routes[0] takes it @ $.routes[1].match"
    ]


def test_names_are_unique() -> None:
    route = "{name: n, match: {headers: {%s: {exact: b}}}, weights: {2: 100}}"
    assert faults_of(f"{HEAD}routes: [{route % 'a'}, {route % 'b'}, {{weights: {{1: 100}}}}]") == [
        "the name 'n' is taken by $.routes[0] @ $.routes[1].name"
    ]


def test_all_faults_come_at_once() -> None:
    text = "schema: other\nmodel: a/b\nstabel: 1\nroutes: [{weights: {1: 90, 2: 5}}, {wieghts: 1}, {weights: {x: 200}}]"
    assert faults_of(text) == [
        "unknown key 'stabel'; did you mean 'stable'? @ $",
        "'stable' is missing @ $",
        "schema must be 'paritygate.rollout/v1', got 'other' @ $.schema",
        "model must be a name of letters, digits, '.', '_' and '-', got 'a/b' @ $.model",
        "weights must sum to 100, got 95 @ $.routes[0]",
        "unknown key 'wieghts'; did you mean 'weights'? @ $.routes[1]",
        "'weights' is missing @ $.routes[1]",
        "a version must be a whole number from 1, got 'x' @ $.routes[2].weights",
        "weight 200 must be a number from 0 to 100 @ $.routes[2].weights.x",
    ]


@pytest.mark.parametrize("value", [None, 5, [], "x", True])
def test_a_document_that_is_no_mapping_is_refused(value: object) -> None:
    with pytest.raises(RolloutInvalid, match="must be a mapping with schema, model"):
        rollout_from_value(value)


def test_a_file_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(RolloutInvalid, match=r"no\.yaml: cannot be read: No such file or directory @ \$"):
        load_rollout(tmp_path / "no.yaml")


def test_a_folder_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(RolloutInvalid, match="cannot be read: Is a directory"):
        load_rollout(tmp_path)


def test_a_file_that_is_not_utf8_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "r.yaml").write_bytes(b"model: \xff")
    with pytest.raises(RolloutInvalid, match=r"is not UTF-8 text \(byte 7\)"):
        load_rollout(tmp_path / "r.yaml")


def test_a_huge_file_is_read_no_further_than_needed(tmp_path: Path) -> None:
    with open(tmp_path / "r.yaml", "wb") as file:
        file.truncate(1 << 40)  # sparse
    with pytest.raises(RolloutInvalid, match="larger than 256 KiB"):
        load_rollout(tmp_path / "r.yaml")


@settings(max_examples=80, deadline=None)
@given(rollouts())
def test_a_rollout_survives_the_way_through_its_file(found: Rollout) -> None:
    assert parse_rollout(render_rollout(found)) == found


@settings(max_examples=80, deadline=None)
@given(rollouts())
def test_a_rollout_survives_the_way_through_json(found: Rollout) -> None:
    assert rollout_from_value(json.loads(json.dumps(rollout_to_value(found)))) == found
