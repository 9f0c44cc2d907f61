"""The bucket formula and the rendered matches, held against a real Envoy.

Istio turns a VirtualService into Envoy routes; `envoy_routes` does the same for the few fields that we render, so
that Envoy's own header matching, RE2 and hash decide here, and nothing of ours.
"""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, Phase, given, seed, settings

from paritygate.mesh.dialects import get_dialect
from paritygate.mesh.routing import Facts, bucket_of, bucket_text, choose, compile_table
from paritygate.mesh.types import Rollout, Topology
from support.envoy import ask, running_envoy
from support.istio_conditions import CONDITIONS
from support.rollouts import HEADERS, VALUES, rollout, rollouts

pytestmark = pytest.mark.real

STICKY = {"hash_policy": [{"header": {"header_name": "x-user"}}]}
KEYS = [
    *(f"user-{n}".encode() for n in range(3000)),
    *(bytes([65 + n % 26]) * (n + 1) for n in range(300)),
    *(f"Zoë Müller {n} 漢字".encode() for n in range(200)),
    *(f"{n:08d}-0000-4000-8000-{n * 7919:012d}".encode() for n in range(500)),
]


# --- the formula ----------------------------------------------------------------------------------------


def sticky_host(name: str, shares: dict[str, int]) -> dict[str, Any]:
    clusters = [{"name": version, "weight": points} for version, points in shares.items()]
    action = {"weighted_clusters": {"clusters": clusters, "use_hash_policy": True}, **STICKY}
    return {"name": name, "domains": [name], "routes": [{"match": {"prefix": "/"}, "route": action}]}


@pytest.mark.parametrize("weights", ["{1: 90, 2: 10}", "{1: 61.27, 2: 33.33, 3: 5.4}", "{1: 99.99, 2: 0.01}"])
def test_envoy_s_hash_policy_chooses_as_routing_chooses(weights: str, tmp_path: Path) -> None:
    found = rollout(weights)
    table = compile_table(found)
    shares = {f"v{weight.version}": weight.basis_points for weight in found.routes[0].weights}
    assert sum(shares.values()) == 10_000
    with running_envoy([sticky_host("m", shares)], tmp_path, ["v1", "v2", "v3"]) as envoy:
        envoys = [ask(envoy, "m", {"x-user": key}) for key in KEYS]
    ours = [f"v{choose(table, Facts({'x-user': key.decode('latin-1')})).version}" for key in KEYS]
    differing = [key for key, theirs, mine in zip(KEYS, envoys, ours, strict=True) if theirs != mine]
    assert differing == []
    assert set(ours) == set(shares) or weights == "{1: 99.99, 2: 0.01}"


def test_envoy_draws_at_random_without_a_key(tmp_path: Path) -> None:
    with running_envoy([sticky_host("m", {"v2": 5000, "v1": 5000})], tmp_path, ["v1", "v2"]) as envoy:
        found = Counter(ask(envoy, "m", {}) for _ in range(200))
    assert min(found["v1"], found["v2"]) > 50


def test_an_empty_key_is_a_key_for_envoy_too(tmp_path: Path) -> None:
    bucket = bucket_of(b"")
    below = sticky_host("below", {"v2": bucket, "v1": 10_000 - bucket})
    above = sticky_host("above", {"v2": bucket + 1, "v1": 9_999 - bucket})
    with running_envoy([below, above], tmp_path, ["v1", "v2"]) as envoy:
        found = [{ask(envoy, host, {"x-user": b""}) for _ in range(20)} for host in ("below", "above")]
    assert found == [{"v1"}, {"v2"}]


# --- the rendered matches -------------------------------------------------------------------------------


def envoy_routes(service: dict[str, Any]) -> list[dict[str, Any]]:
    """A rendered VirtualService as Envoy routes that answer with the subset's name."""
    return [
        {"match": {"prefix": "/", "headers": _header_matchers(block)}, "direct_response": _answer(rule)}
        for rule in service["spec"]["http"]
        for block in rule.get("match") or [{}]
    ]


def _header_matchers(block: dict[str, Any]) -> list[dict[str, Any]]:
    matchers = []
    for name, condition in block.get("headers", {}).items():
        if "regex" in condition:
            matchers.append({"name": name, "string_match": {"safe_regex": {"regex": condition["regex"]}}})
        else:
            matchers.append(
                {"name": name, **({"string_match": condition} if condition else {"present_match": True})}
            )
    return matchers


def _answer(rule: dict[str, Any]) -> dict[str, Any]:
    subset = next(item["destination"]["subset"] for item in rule["route"] if item["weight"] == 100)
    return {"status": 200, "body": {"inline_string": subset}}


def examples(count: int) -> list[Rollout]:
    """Rollouts over everything a file can say, the same in each run."""
    found: list[Rollout] = []

    @seed(23)
    @settings(
        max_examples=count,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(rollouts(Topology.GATEWAY_HEADER))
    def collect(example: Rollout) -> None:
        found.append(example)

    collect()
    return found


def test_envoy_splits_rendered_rollouts_as_routing_does(tmp_path: Path) -> None:
    found = examples(40)
    services = [get_dialect("istio").render(example)[0] for example in found]
    hosts = [
        {"name": f"r{n}", "domains": [f"r{n}"], "routes": envoy_routes(service)}
        for n, service in enumerate(services)
    ]
    tables = [compile_table(example) for example in found]
    chance = random.Random(29)
    differing, reached = [], Counter[str]()
    with running_envoy(hosts, tmp_path) as envoy:
        for _ in range(8000):
            number = chance.randrange(len(found))
            headers = {name: chance.choice(VALUES).encode() for name in HEADERS if chance.random() < 0.4}
            facts = Facts({k: v.decode("latin-1") for k, v in headers.items()}, draw=chance.randrange(10_000))
            decision = choose(tables[number], facts)
            answer = ask(
                envoy, f"r{number}", {**headers, "x-pg-bucket": bucket_text(decision.bucket).encode()}
            )
            reached[decision.rule.split("-")[0]] += 1
            if answer != f"v{decision.version}":
                differing.append((found[number], facts, decision, answer))
    assert differing == []
    assert reached["route"] > 200
    assert reached["default"] > 500


def test_envoy_s_regex_puts_the_border_between_the_right_buckets(tmp_path: Path) -> None:
    bounds = [1, 9, 10, 99, 501, 1000, 1234, 3333, 5000, 9000, 9990, 9999]
    hosts = []
    for bound in bounds:
        weights = f"{{1: {(10_000 - bound) / 100}, 2: {bound / 100}}}"
        service = get_dialect("istio").render(rollout(weights, topology="gateway-header"))[0]
        hosts.append({"name": f"b{bound}", "domains": [f"b{bound}"], "routes": envoy_routes(service)})
    with running_envoy(hosts, tmp_path) as envoy:
        for bound in bounds:
            below, at = (
                ask(envoy, f"b{bound}", {"x-pg-bucket": bucket_text(b).encode()}) for b in (bound - 1, bound)
            )
            assert (below, at) == ("v2", "v1")
            assert ask(envoy, f"b{bound}", {}) == "v1"


def test_a_key_s_bucket_is_stable_over_the_gateway_and_envoy(tmp_path: Path) -> None:
    """The gateway's header and Envoy's own hash put every user on the same side."""
    found = rollout("{1: 75, 2: 25}", topology="gateway-header")
    service = get_dialect("istio").render(found)[0]
    matched = {"name": "matched", "domains": ["matched"], "routes": envoy_routes(service)}
    hashed = sticky_host("hashed", {"v2": 2500, "v1": 7500})
    with running_envoy([matched, hashed], tmp_path, ["v1", "v2"]) as envoy:
        for key in KEYS[::7]:
            stamped = {"x-user": key, "x-pg-bucket": bucket_text(bucket_of(key)).encode()}
            assert ask(envoy, "matched", stamped) == ask(envoy, "hashed", {"x-user": key})


# --- the interpreter --------------------------------------------------------------------------------------

# Conditions on the caller or the proxy decide in istiod which routes a proxy gets; Envoy never sees them.
ISTIOD_ONLY = ("port", "gateways", "sourceLabels", "sourceNamespace", "scheme")


def istiod_route(block: dict[str, Any]) -> dict[str, Any]:
    """One match block as istiod writes it for Envoy."""
    match = _path_match(block)
    headers = [_matcher(f":{key}", block[key]) for key in ("method", "authority") if key in block]
    headers += [_matcher(name, condition) for name, condition in block.get("headers", {}).items()]
    headers += [_without(name, condition) for name, condition in block.get("withoutHeaders", {}).items()]
    parameters = [
        {"name": name, **({"string_match": _string(condition)} if condition else {"present_match": True})}
        for name, condition in block.get("queryParams", {}).items()
    ]
    return {"match": {**match, "headers": headers, "query_parameters": parameters}, **FITS}


FITS = {"direct_response": {"status": 200, "body": {"inline_string": "fits"}}}
OTHERWISE = {
    "match": {"prefix": "/"},
    "direct_response": {"status": 200, "body": {"inline_string": "does not"}},
}


def _path_match(block: dict[str, Any]) -> dict[str, Any]:
    (kind, text), *_ = [*block.get("uri", {}).items(), ("prefix", "/")]
    if kind == "regex":
        return {"safe_regex": {"regex": text}}
    return {
        "path" if kind == "exact" else "prefix": text,
        "case_sensitive": not block.get("ignoreUriCase", False),
    }


def _matcher(name: str, condition: dict[str, str]) -> dict[str, Any]:
    if not condition or condition == {"regex": "*"}:
        return {"name": name, "present_match": True}
    return {"name": name, "string_match": _string(condition)}


def _without(name: str, condition: dict[str, str]) -> dict[str, Any]:
    inverted = {**_matcher(name, condition), "invert_match": True}
    return inverted if "present_match" in inverted else {**inverted, "treat_missing_header_as_empty": True}


def _string(condition: dict[str, str]) -> dict[str, Any]:
    ((kind, text),) = condition.items()
    return {"safe_regex": {"regex": text}} if kind == "regex" else {kind: text}


def test_the_interpreter_s_conditions_hold_where_envoy_s_do(tmp_path: Path) -> None:
    cases = [(yaml.safe_load(match), request, fits) for match, request, fits in CONDITIONS]
    cases = [case for case in cases if not any(key in case[0] for key in ISTIOD_ONLY)]
    hosts = [
        {"name": f"c{n}", "domains": [f"c{n}", f"m:{n}"], "routes": [istiod_route(block), OTHERWISE]}
        for n, (block, _, _) in enumerate(cases)
    ]
    with running_envoy(hosts, tmp_path) as envoy:
        found = []
        for number, (_, request, _) in enumerate(cases):
            host = f"m:{number}" if "authority" in request else f"c{number}"
            headers = {name: value.encode("latin-1") for name, value in request.get("headers", {}).items()}
            answer = ask(
                envoy, host, headers, method=request.get("method", "POST"), path=request.get("path", "/")
            )
            found.append(answer == "fits")
    assert len(cases) > 35
    assert [case for case, fits in zip(cases, found, strict=True) if case[2] is not fits] == []


def test_envoy_looks_at_each_value_of_a_repeated_header(tmp_path: Path) -> None:
    """A difference that the docs name: we take a repeated header as one value joined by commas."""
    values = ("b", "c", "b,c")
    blocks = [{"headers": {"x-a": {"exact": value}}} for value in values]
    hosts = [
        {"name": value, "domains": [f"r{n}"], "routes": [istiod_route(block), OTHERWISE]}
        for n, (value, block) in enumerate(zip(values, blocks, strict=True))
    ]
    with running_envoy(hosts, tmp_path) as envoy:
        found = [ask(envoy, f"r{n}", [("x-a", b"b"), ("x-a", b"c")]) for n in range(len(values))]
    assert found == ["fits", "fits", "does not"]
