# ruff: noqa: E501, RUF043, UP031
from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from paritygate.mesh.dialects.istio_interpreter import AnswerKind, IstioMesh, MeshRequest, read_istio
from paritygate.mesh.errors import CannotRead, RolloutInvalid
from support.istio_conditions import CONDITIONS

HEAD = "apiVersion: networking.istio.io/v1\nkind: VirtualService\nmetadata: {{name: {name}, namespace: ml}}\nspec:\n  hosts: [{host}]\n  http: {http}\n"
TO_A = "[{destination: {host: m, subset: a}}]"
TO_B = "[{destination: {host: m, subset: b}}]"


def mesh(http: str) -> IstioMesh:
    return read_istio(HEAD.format(name="m", host="m", http=http))


def fits(match: str, **request: Any) -> bool:
    answer = mesh(f"[{{match: [{match}], route: {TO_A}}}, {{route: {TO_B}}}]").choose(
        MeshRequest(**request), 0
    )
    assert answer.destination is not None
    return answer.destination.subset == "a"


@pytest.mark.parametrize(("match", "request_", "expected"), CONDITIONS)
def test_each_kind_of_condition(match: str, request_: dict[str, Any], expected: bool) -> None:
    assert fits(match, **request_) is expected


def test_blocks_are_alternatives_and_the_first_rule_wins() -> None:
    both = "{match: [{headers: {a: {}}}, {headers: {b: {}}}], route: %s}" % TO_A
    found = mesh(f"[{both}, {{match: [{{headers: {{b: {{}}}}}}], route: {TO_B}}}]")
    assert [found.choose(MeshRequest({name: ""}), 0).rule for name in "ab"] == [
        "$.spec.http[0]",
        "$.spec.http[0]",
    ]


@pytest.mark.parametrize(
    ("weights", "shares"),
    [((70, 50), (5834, 4166)), ((3, 1), (7500, 2500)), ((2_000_000_000, 2_000_000_000), (5000, 5000)), ((0, 7), (0, 10_000)), ((1, 99), (100, 9900))],
)  # fmt: skip
def test_weights_are_relative_to_their_sum(weights: tuple[int, int], shares: tuple[int, int]) -> None:
    items = ", ".join(
        f"{{destination: {{host: m, subset: {s}}}, weight: {w}}}" for s, w in zip("ab", weights, strict=True)
    )
    found = mesh(f"[{{route: [{items}]}}]")
    counts = Counter(found.choose(MeshRequest(), draw).destination.subset for draw in range(10_000))  # type: ignore[union-attr]
    assert (counts["a"], counts["b"]) == shares


def test_the_weight_of_a_lone_destination_is_ignored() -> None:
    answer = mesh("[{route: [{destination: {host: m, port: {number: 80}}, weight: 0}]}]").choose(
        MeshRequest(), 9999
    )
    assert (answer.kind, answer.destination and answer.destination.port) == (AnswerKind.ROUTED, 80)


@pytest.mark.parametrize(
    ("action", "kind", "status"),
    [
        ("directResponse: {status: 403}", AnswerKind.ANSWERED, 403),
        ("redirect: {uri: /x}", AnswerKind.REDIRECTED, 301),
        ("redirect: {uri: /x, redirectCode: 308}", AnswerKind.REDIRECTED, 308),
    ],
)
def test_answers_without_a_destination(action: str, kind: AnswerKind, status: int) -> None:
    answer = mesh(f"[{{{action}}}]").choose(MeshRequest(), 0)
    assert (answer.kind, answer.status, answer.destination) == (kind, status, None)


def test_what_fits_no_rule_is_404() -> None:
    answer = mesh(f"[{{match: [{{headers: {{a: {{}}}}}}], route: {TO_A}}}]").choose(MeshRequest(), 0)
    assert (answer.kind, answer.status, answer.rule) == (AnswerKind.NOT_FOUND, 404, "")


def test_an_injected_fault_is_told() -> None:
    answer = mesh(
        f"[{{fault: {{abort: {{httpStatus: 500, percentage: {{value: 10}}}}}}, route: {TO_A}}}]"
    ).choose(MeshRequest(), 0)
    assert answer.fault == {"abort": {"httpStatus": 500, "percentage": {"value": 10}}}


@pytest.mark.parametrize(
    ("authority", "rule_of"),
    [
        ("m", "m"),
        ("m.ml.svc.cluster.local:8000", "m"),
        ("M.ml.svc.cluster.local", "m"),
        ("x.example.com", "wild"),
        ("y.x.example.com", "wild"),
        ("a.example.com", "exact"),
        ("example.com", None),
        ("other", None),
    ],
)
def test_the_most_exact_host_decides_which_document_is_for_a_request(
    authority: str, rule_of: str | None
) -> None:
    parts = [("m", "m"), ("wild", "'*.example.com'"), ("exact", "a.example.com")]
    text = "---\n".join(
        HEAD.format(name=name, host=host, http=f"[{{route: [{{destination: {{host: m, subset: {name}}}}}]}}]")
        for name, host in parts
    )
    answer = read_istio(text).choose(MeshRequest(authority=authority), 0)
    assert (answer.destination.subset if answer.destination else None) == rule_of


@pytest.mark.parametrize(
    ("http", "fault"),
    [
        ("[{delegate: {name: x}}]", r"delegate is not understood @ \$\.spec\.http\[0\]\.delegate"),
        ("[{match: [{headers: {'@request.auth.claims.sub': {exact: a}}}], route: %s}]" % TO_A, r"token claims is not understood @ \$\.spec\.http\[0\]\.match\[0\]\.headers\.@request"),
        ("[{route: %s}]\n  tcp: [{}]" % TO_A, r"tcp routes are not understood @ \$\.spec\.tcp"),
        ("[{routes: %s}]" % TO_A, r"unknown field 'routes'; did you mean 'route'\? @ \$\.spec\.http\[0\]\.routes"),
    ],
)  # fmt: skip
def test_a_field_that_is_not_understood_is_named(http: str, fault: str) -> None:
    with pytest.raises(CannotRead, match=fault):
        mesh(http)


def test_two_documents_for_one_host_are_refused() -> None:
    http = f"[{{route: {TO_A}}}]"
    text = (
        HEAD.format(name="one", host="m", http=http) + "---\n" + HEAD.format(name="two", host="m", http=http)
    )
    with pytest.raises(CannotRead, match="VirtualService two: host 'm.* has VirtualService one already"):
        read_istio(text)


def test_documents_without_a_virtual_service_are_refused() -> None:
    with pytest.raises(CannotRead, match="hold no VirtualService"):
        read_istio("{apiVersion: v1, kind: Service, metadata: {name: a}}")


def test_a_text_that_is_not_yaml_is_refused() -> None:
    with pytest.raises(RolloutInvalid, match="is not YAML"):
        read_istio("{")
