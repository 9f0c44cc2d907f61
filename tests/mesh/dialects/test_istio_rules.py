# ruff: noqa: E501, UP031
from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paritygate.mesh.dialects.istio_documents import Severity
from paritygate.mesh.dialects.istio_interpreter import IstioMesh, MeshRequest
from paritygate.mesh.dialects.istio_rules import check
from paritygate.mesh.errors import CannotRead
from paritygate.mesh.yaml_text import load_document

RULE = {
    "apiVersion": "networking.istio.io/v1",
    "kind": "DestinationRule",
    "metadata": {"name": "m", "namespace": "ml"},
    "spec": {
        "host": "m.ml.svc.cluster.local",
        "subsets": [{"name": "v1", "labels": {"version": "v1"}}, {"name": "v2", "labels": {"version": "v2"}}],
    },
}


def service(http: str, spec: str = "hosts: [m]") -> dict[str, Any]:
    text = f"{{{spec}, http: {http}}}"
    return {
        "apiVersion": "networking.istio.io/v1",
        "kind": "VirtualService",
        "metadata": {"name": "m", "namespace": "ml"},
        "spec": load_document(text, source="test"),
    }


def to(*shares: object) -> str:
    """Destinations v1, v2, ... with these weights."""
    items = [f"{{destination: {{host: m, subset: v{n}}}, weight: {w}}}" for n, w in enumerate(shares, 1)]
    return f"[{', '.join(items)}]"


def found(http: str, *, ours: bool = False, spec: str = "hosts: [m]") -> list[str]:
    return [str(finding) for finding in check([service(http, spec), RULE], ours=ours)]


def test_a_good_pair_has_no_findings() -> None:
    http = f"[{{match: [{{headers: {{a: {{exact: b}}}}}}], route: {to(0, 100)}}}, {{route: {to(90, 10)}}}]"
    assert found(http, ours=True) == []


@pytest.mark.parametrize(
    ("http", "finding"),
    [
        (f"[{{route: {to(-10, 110)}}}]", "error: VirtualService m: weight -10 must be from 0 to 2147483647 @ $.spec.http[0].route[0].weight"),
        (f"[{{route: {to(12.5, 87.5)}}}]", "error: VirtualService m: weight 12.5 must be a whole number @ $.spec.http[0].route[0].weight"),
        (f"[{{route: {to('true', 1)}}}]", "error: VirtualService m: weight true must be a whole number @ $.spec.http[0].route[0].weight"),
        (f"[{{route: {to(0, 0)}}}]", "error: VirtualService m: all weights are 0, so no destination would get a request @ $.spec.http[0].route"),
        (f"[{{route: {to(2147483648, 0)}}}]", "error: VirtualService m: weight 2147483648 must be from 0 to 2147483647 @ $.spec.http[0].route[0].weight"),
        ("[{route: [%s]}]" % ", ".join(["{destination: {host: m, subset: v1}, weight: 2147483647}"] * 3), "error: VirtualService m: weights sum to 6442450941, more than the 4294967295 that Envoy can hold @ $.spec.http[0].route"),
        (f"[{{route: {to(70, 50)}}}]", "warning: VirtualService m: weights sum to 120, not 100; Istio takes them as relative: 58.33 %, 41.67 % @ $.spec.http[0].route"),
        (f"[{{route: {to(50)}}}]", "warning: VirtualService m: weight 50 of a lone destination is ignored: it gets all requests @ $.spec.http[0].route[0].weight"),
        ("[{route: [{destination: {host: m, subset: v1}}, {destination: {host: m, subset: v2}, weight: 100}]}]", "warning: VirtualService m: has no weight beside others that have one, so it gets nothing @ $.spec.http[0].route[0]"),
        (f"[{{route: {to(1, 1, 98)}}}]", "error: VirtualService m: no DestinationRule for m.ml.svc.cluster.local defines subset 'v3'; requests would get 503 @ $.spec.http[0].route[2].destination.subset"),
        ("[{route: [{destination: {host: other, subset: v1}}]}]", "warning: VirtualService m: subset 'v1' cannot be checked: no DestinationRule for other.ml.svc.cluster.local is here @ $.spec.http[0].route[0].destination.subset"),
        ("[{route: [{destination: {subset: v1}}]}]", "error: VirtualService m: has no host @ $.spec.http[0].route[0].destination.host"),
        ("[{route: [{destination: {host: m, port: {number: 99999}}}]}]", "error: VirtualService m: port 99999 must be from 1 to 65535 @ $.spec.http[0].route[0].destination.port.number"),
        ("[{route: [{weight: 100}]}]", "error: VirtualService m: must be a mapping, got nothing @ $.spec.http[0].route[0].destination"),
        ("[{}]", "error: VirtualService m: must have exactly one of route, redirect, directResponse, delegate, got none @ $.spec.http[0]"),
        (f"[{{route: {to(100)}, directResponse: {{status: 200}}}}]", "error: VirtualService m: must have exactly one of route, redirect, directResponse, delegate, got route, directResponse @ $.spec.http[0]"),
        ("[{directResponse: {status: 99}}]", "error: VirtualService m: status 99 must be from 200 to 599 @ $.spec.http[0].directResponse.status"),
        (f"[{{route: {to(100)}}}, {{route: {to(100)}}}]", "warning: VirtualService m: is never reached: $.spec.http[0] takes every request @ $.spec.http[1]"),
        (f"[{{match: [{{uri: {{prefix: /}}}}], route: {to(100)}}}, {{route: {to(100)}}}]", "warning: VirtualService m: is never reached: $.spec.http[0] takes every request @ $.spec.http[1]"),
        (f"[{{match: [{{headers: {{A: {{exact: b}}}}}}], route: {to(100)}}}, {{match: [{{headers: {{a: {{exact: b}}}}, name: x}}], route: {to(0, 100)}}}]", "warning: VirtualService m: is never reached: $.spec.http[0].match[0] is the same @ $.spec.http[1].match[0]"),
        (f"[{{match: [{{headers: {{a: {{exact: b, prefix: c}}}}}}], route: {to(100)}}}]", "error: VirtualService m: give exactly one of exact, prefix and regex, got exact, prefix @ $.spec.http[0].match[0].headers.a"),
        (f"[{{match: [{{uri: {{}}}}], route: {to(100)}}}]", "error: VirtualService m: give exactly one of exact, prefix and regex, got none @ $.spec.http[0].match[0].uri"),
        (f"[{{match: [{{headers: {{a: {{exact: 1}}}}}}], route: {to(100)}}}]", "error: VirtualService m: exact must be text, got 1 @ $.spec.http[0].match[0].headers.a.exact"),
        (f"[{{match: [{{headers: {{a: {{exakt: b}}}}}}], route: {to(100)}}}]", "error: VirtualService m: unknown field 'exakt'; did you mean 'exact'? @ $.spec.http[0].match[0].headers.a.exakt"),
        (f"[{{match: [{{hedaers: {{}}}}], route: {to(100)}}}]", "error: VirtualService m: unknown field 'hedaers'; did you mean 'headers'? @ $.spec.http[0].match[0].hedaers"),
        (f"[{{match: [{{port: 0}}], route: {to(100)}}}]", "error: VirtualService m: port 0 must be from 1 to 65535 @ $.spec.http[0].match[0].port"),
        (f"[{{route: {to(100)}, mirror: {{host: m}}, mirrorPercentage: {{value: 101}}}}]", "error: VirtualService m: percentage 101 must be a number from 0 to 100 @ $.spec.http[0].mirrorPercentage.value"),
        (f"[{{route: {to(100)}, mirrorPercentage: {{value: 1}}}}]", "warning: VirtualService m: mirrorPercentage without mirror does nothing @ $.spec.http[0].mirrorPercentage"),
        (f"[{{route: {to(100)}, mirror: {{host: m}}, mirrors: [{{destination: {{host: m}}}}]}}]", "error: VirtualService m: mirror and mirrors exclude each other @ $.spec.http[0].mirrors"),
        (f"[{{route: {to(100)}, mirrors: [{{destination: {{host: m}}, percentage: {{value: -1}}}}]}}]", "error: VirtualService m: percentage -1 must be a number from 0 to 100 @ $.spec.http[0].mirrors[0].percentage.value"),
        (f"[{{route: {to(100)}, mirror: {{host: m, subset: v9}}}}]", "error: VirtualService m: no DestinationRule for m.ml.svc.cluster.local defines subset 'v9'; requests would get 503 @ $.spec.http[0].mirror.subset"),
        (f"[{{route: {to(100)}, fault: {{abort: {{percentage: {{value: .nan}}, httpStatus: 500}}}}}}]", "error: VirtualService m: percentage NaN must be a number from 0 to 100 @ $.spec.http[0].fault.abort.percentage.value"),
        (f"[{{route: {to(100)}, timeout: 1 sec}}]", "error: VirtualService m: '1 sec' is not a duration such as 300ms or 1m30s @ $.spec.http[0].timeout"),
        (f"[{{route: {to(100)}, retries: {{perTryTimeout: soon}}}}]", "error: VirtualService m: 'soon' is not a duration such as 300ms or 1m30s @ $.spec.http[0].retries.perTryTimeout"),
        (f"[{{route: {to(100)}, tiemout: 1s}}]", "error: VirtualService m: unknown field 'tiemout'; did you mean 'timeout'? @ $.spec.http[0].tiemout"),
        ("{}", "error: VirtualService m: must be a list, got a mapping @ $.spec.http"),
        ("[]", "error: VirtualService m: has no http routes @ $.spec.http"),
        ("[5]", "error: VirtualService m: must be a mapping, got 5 @ $.spec.http[0]"),
    ],
)  # fmt: skip
def test_what_the_schema_lets_pass_is_found(http: str, finding: str) -> None:
    assert finding in found(http)


@pytest.mark.parametrize(
    ("spec", "finding"),
    [
        ("hosts: []", "error: VirtualService m: has no hosts; name at least one @ $.spec.hosts"),
        ("gateways: []", "error: VirtualService m: has no hosts; name at least one @ $.spec.hosts"),
        ("hosts: ['']", "error: VirtualService m: must be a host name, got '' @ $.spec.hosts[0]"),
        ("hosts: m", "error: VirtualService m: must be a list, got 'm' @ $.spec.hosts"),
        ("hosts: [m], gateways: [1]", "error: VirtualService m: must be the name of a gateway, got 1 @ $.spec.gateways[0]"),
        ("hosts: [m], gatewys: [a]", "error: VirtualService m: unknown field 'gatewys'; did you mean 'gateways'? @ $.spec.gatewys"),
        ("hosts: [m], tcp: []", "warning: VirtualService m: tcp routes are not looked at @ $.spec.tcp"),
    ],
)  # fmt: skip
def test_faults_of_the_head_are_found(spec: str, finding: str) -> None:
    assert finding in found(f"[{{route: {to(100)}}}]", spec=spec)


@pytest.mark.parametrize(
    ("change", "finding"),
    [
        ({"host": ""}, "has no host @ $.spec.host"),
        ({"subsets": [{"labels": {"a": "b"}}]}, "has no name @ $.spec.subsets[0].name"),
        ({"subsets": [{"name": "a", "labels": {"v": "1"}}] * 2}, "subset 'a' is defined twice @ $.spec.subsets[1].name"),
        ({"subsets": [{"name": "a", "labels": {"v": 1}}]}, "label 'v' must be text, got 1; put it in quotes @ $.spec.subsets[0].labels.v"),
        ({"subsets": [{"name": "a"}]}, "has no labels, so it is the pods of all versions @ $.spec.subsets[0].labels"),
        ({"trafficPolicy": {"loadBalancer": {"simple": "RANDOM", "consistentHash": {}}}}, "simple and consistentHash exclude each other @ $.spec.trafficPolicy.loadBalancer"),
        ({"subset": []}, "unknown field 'subset'; did you mean 'subsets'? @ $.spec.subset"),
    ],
)  # fmt: skip
def test_faults_of_a_destination_rule_are_found(change: dict[str, Any], finding: str) -> None:
    rule = {**RULE, "spec": {**RULE["spec"], **change}}  # type: ignore[dict-item]
    assert any(str(f).endswith(f"DestinationRule m: {finding}") for f in check([rule]))


@pytest.mark.parametrize(
    ("http", "finding"),
    [
        (f"[{{route: {to(70, 50)}}}]", "weights sum to 120"),
        (f"[{{route: {to(50)}}}]", "weight 50 of a lone destination"),
        (
            f"[{{match: [{{headers: {{a: {{}}}}}}], route: {to(100)}}}]",
            "no route takes the requests that fit no other one",
        ),
        (f"[{{route: {to(100)}}}, {{route: {to(100)}}}]", "is never reached"),
    ],
)
def test_what_we_render_is_held_to_more(http: str, finding: str) -> None:
    errors = [str(f) for f in check([service(http), RULE], ours=True) if f.severity is Severity.ERROR]
    assert any(finding in error for error in errors)


@pytest.mark.parametrize(
    "value", [None, 5, "x", [], {}, {"kind": "VirtualService"}, {"metadata": {"name": "a"}}]
)
def test_documents_of_any_shape_are_findings_and_never_a_traceback(value: object) -> None:
    assert check([value])


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)
PLACES = [
    "hosts", "http", "gateways", "http/0/match", "http/0/match/0", "http/0/match/0/headers", "http/0/match/0/headers/a",
    "http/0/match/0/uri", "http/0/match/0/port", "http/0/match/0/sourceLabels", "http/0/match/0/gateways",
    "http/0/match/0/sourceNamespace", "http/0/match/0/queryParams", "http/0/match/0/withoutHeaders",
    "http/0/route", "http/0/route/0", "http/0/route/0/destination", "http/0/route/0/destination/port", "http/0/route/0/weight",
    "http/0/fault", "http/0/fault/delay", "http/0/mirror", "http/0/mirrors", "http/0/mirrorPercentage", "http/0/timeout",
    "http/0/retries", "http/0/redirect", "http/0/directResponse", "http/0/delegate", "http/0/match/0/ignoreUriCase",
]  # fmt: skip


@settings(max_examples=400, deadline=None)
@given(st.sampled_from(PLACES), VALUES, st.integers(0, 9999))
def test_any_value_at_any_place_is_refused_or_answers(place: str, value: object, draw: int) -> None:
    document = service(f"[{{match: [{{headers: {{a: {{exact: b}}}}}}], route: {to(50, 50)}}}]")
    *parents, last = place.split("/")
    target: Any = document["spec"]
    for part in parents:
        target = target[int(part)] if part.isdigit() else target.setdefault(part, {})
    target[int(last) if last.isdigit() else last] = value
    try:
        mesh = IstioMesh([document, RULE])
    except CannotRead as error:
        assert error.faults  # noqa: PT017
    else:
        mesh.choose(MeshRequest({"a": "b"}), draw)
