# ruff: noqa: E501, RUF043
from __future__ import annotations

import copy
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from paritygate.mesh.dialects.istio import IstioDialect, IstioTarget
from paritygate.mesh.errors import CannotExpress, CannotRead
from paritygate.mesh.types import Rollout
from paritygate.mesh.yaml_text import dump_documents
from support import crds
from support.rollouts import rollout

GOLDEN = Path(__file__).resolve().parents[2] / "golden" / "istio"
UPDATE = "PARITYGATE_UPDATE_GOLDEN"
TESTERS = (
    "{name: testers, match: [{headers: {x-tester: {exact: a}, x-plan: {present: true}}}, "
    "{headers: {cookie: {regex: '.*group=insider.*'}}}], weights: {2: 100}}, "
)
FULL_TARGET = IstioTarget(
    name="digits-model",
    namespace="ml",
    host="triton.ml.svc.cluster.local",
    hosts=("digits.example.com", "*.models.example.com"),
    gateways=("istio-system/public", "mesh"),
    version_label="paritygate/version",
    port=8001,
)

GOLDEN_CASES: dict[str, tuple[Rollout, IstioTarget | None]] = {
    "gateway-header": (rollout("{1: 90, 2: 10}", topology="gateway-header", routes=TESTERS), None),
    "gateway-header-thirds": (
        rollout("{1: 33.34, 2: 33.33, 3: 33.33, 4: 0}", topology="gateway-header"),
        None,
    ),
    "gateway-header-full-target": (rollout("{1: 99.5, 2: 0.5}", topology="gateway-header"), FULL_TARGET),
    "deployment-per-version": (
        rollout("{1: 90, 2: 10}", sticky="", topology="deployment-per-version", routes=TESTERS),
        None,
    ),
}


def render(found: Rollout, target: IstioTarget | None = None) -> list[dict[str, Any]]:
    return IstioDialect().render(found, target)


def rendered(weights: str = "{1: 90, 2: 10}", **options: str) -> list[dict[str, Any]]:
    return render(rollout(weights, **{"topology": "gateway-header", **options}))  # type: ignore[arg-type]


# --- golden files and schemas ---------------------------------------------------------------------------


@pytest.mark.parametrize("name", GOLDEN_CASES)
def test_golden(name: str) -> None:
    text = dump_documents(render(*GOLDEN_CASES[name]))
    path = GOLDEN / f"{name}.yaml"
    if os.environ.get(UPDATE):
        path.write_text(text, encoding="utf-8")
    assert path.read_text(encoding="utf-8") == text, f"run with {UPDATE}=1 and read the diff"


@pytest.mark.parametrize("name", GOLDEN_CASES)
def test_what_is_rendered_passes_the_real_schema_made_strict(name: str) -> None:
    assert [fault for document in render(*GOLDEN_CASES[name]) for fault in crds.validate(document)] == []


@pytest.mark.parametrize("name", GOLDEN_CASES)
def test_what_is_rendered_passes_the_schema_s_own_rules(name: str) -> None:
    pytest.importorskip("celpy", reason="cel-python is not installed (requirements for tests)")
    assert [fault for document in render(*GOLDEN_CASES[name]) for fault in crds.broken_rules(document)] == []


def _set(document: dict[str, Any], path: str, value: object) -> None:
    *parents, last = path.split("/")
    place: Any = document
    for part in parents:
        place = place[int(part)] if part.isdigit() else place[part]
    place[last] = value


@pytest.mark.parametrize(
    ("path", "value", "fault"),
    [
        ("spec/http/0/route/0/weight", "90", "'90' is not of type 'integer'"),
        ("spec/http/0/route/0/wieght", 90, "'wieght' was unexpected"),
        ("spec/http/0/route/0/destination", {"subset": "v1"}, "'host' is a required property"),
        ("spec/http/0/route/0/destination/port", {"number": "80"}, "'80' is not of type 'integer'"),
        ("spec/http/0/match/0/headers/x", {"exact": "a", "prefix": "b"}, "valid under each of"),
        ("spce", {}, "'spce' was unexpected"),
    ],
)
def test_the_strict_schema_finds_faults(path: str, value: object, fault: str) -> None:
    document = rendered()[0]
    _set(document, path, value)
    assert any(fault in found for found in crds.validate(document))


def test_the_schema_s_own_rules_find_faults() -> None:
    pytest.importorskip("celpy", reason="cel-python is not installed (requirements for tests)")
    document = rendered()[0]
    document["spec"]["http"][0]["retries"] = {"perTryTimeout": "1 sec"}
    assert any("perTryTimeout" in fault for fault in crds.broken_rules(document))


# --- what is rendered -----------------------------------------------------------------------------------


def test_a_request_without_a_bucket_goes_to_the_last_version_with_a_share() -> None:
    last = rendered("{1: 90, 2: 10}")[0]["spec"]["http"][-1]
    assert ("match" not in last, last["route"][0]["destination"]["subset"]) == (True, "v1")


@pytest.mark.parametrize(
    "weights", ["{1: 33.34, 2: 33.33, 3: 33.33}", "{1: 100}", "{2: 100, 1: 0}", "{1: 99.99, 2: 0.01}"]
)
def test_every_rule_has_whole_weights_that_sum_to_100(weights: str) -> None:
    for rule in rendered(weights)[0]["spec"]["http"]:
        shares = [item["weight"] for item in rule["route"]]
        assert all(type(share) is int for share in shares)
        assert sum(shares) == 100


def test_every_version_has_a_subset_also_the_stable_one_without_weight() -> None:
    subsets = rendered("{2: 100}")[1]["spec"]["subsets"]
    assert [(s["name"], s["labels"]) for s in subsets] == [
        ("v1", {"version": "v1"}),
        ("v2", {"version": "v2"}),
    ]


def test_the_same_rollout_gives_the_same_text() -> None:
    assert dump_documents(rendered()) == dump_documents(rendered())


# --- refusals -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("percent", ["12.5", "0.01", "33.33"])
def test_a_fraction_is_refused_with_its_path(percent: str) -> None:
    from decimal import Decimal

    rest = Decimal(100) - Decimal(percent)
    found = rollout(f"{{1: {rest}, 2: {percent}}}", sticky="", topology="deployment-per-version")
    with pytest.raises(CannotExpress) as caught:
        render(found)
    assert [fault.path for fault in caught.value.faults] == ["$.routes[0].weights.2", "$.routes[0].weights.1"]
    assert caught.value.faults[0].message.startswith(f"{percent} is not a whole percent")


def test_all_refusals_come_at_once() -> None:
    found = rollout("{1: 99.5, 2: 0.5}", topology="deployment-per-version", model="my_model")
    with pytest.raises(CannotExpress) as caught:
        render(found)
    paths = [fault.path for fault in caught.value.faults]
    assert paths == ["$target.name", "$.routes[0].weights.2", "$.routes[0].weights.1", "$.sticky"]


@pytest.mark.parametrize(
    ("target", "fault"),
    [
        (IstioTarget(name="No"), "'No' cannot be the name of a Kubernetes object @ $target.name"),
        (IstioTarget(namespace="a.b"), "'a.b' cannot be a namespace @ $target.namespace"),
        (IstioTarget(host="a b"), "'a b' is not a host name @ $target.host"),
        (IstioTarget(hosts=("x_y",)), "'x_y' is not a host name @ $target.hosts[0]"),
        (IstioTarget(gateways=("a b",)), "'a b' is not the name of a gateway @ $target.gateways[0]"),
        (IstioTarget(version_label="a/b/c"), "'a/b/c' cannot be the key of a label @ $target.version_label"),
        (IstioTarget(port=99_999), "port 99999 must be from 1 to 65535 @ $target.port"),
    ],
)
def test_a_target_that_kubernetes_would_refuse_is_refused_with_its_path(
    target: IstioTarget, fault: str
) -> None:
    with pytest.raises(CannotExpress) as caught:
        render(rollout(topology="gateway-header"), target)
    assert fault in [str(found) for found in caught.value.faults]


def test_a_model_name_that_kubernetes_refuses_needs_a_name_for_the_objects() -> None:
    found = rollout(topology="gateway-header", model="my_model")
    with pytest.raises(CannotExpress, match="'my_model' cannot be the name.*pass the target another name"):
        render(found)
    assert IstioDialect().read_back(render(found, IstioTarget(name="my-model"))) == found


# --- reading back ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", GOLDEN_CASES)
def test_a_document_is_read_back_without_its_destination_rule(name: str) -> None:
    found, target = GOLDEN_CASES[name]
    assert IstioDialect().read_back(render(found, target)[:1]) == found


@pytest.mark.parametrize(
    ("path", "value", "fault"),
    [
        ("spec/http/0/timeout", "5s", "a rollout cannot say 'timeout' @ $.spec.http[0].timeout"),
        ("spec/http/0/match/0/uri", {"prefix": "/v2"}, "a rollout cannot say 'uri' @ $.spec.http[0].match[0].uri"),
        ("spec/http/0/route/0/headers", {"request": {}}, "a rollout cannot say 'headers' @ $.spec.http[0].route[0].headers"),
        ("spec/tcp", [{"route": []}], "a rollout cannot say 'tcp' @ $.spec.tcp"),
        ("metadata/annotations", {}, "annotation 'paritygate/stable' is missing"),
        ("spec/http/0/match/0/headers/x-pg-bucket", {"regex": "1[0-9]{3}"}, "does not stand for the buckets below a bound"),
        ("spec/http/0/match/0/headers/x-pg-bucket", {"prefix": "0"}, "x-pg-bucket must be matched by a regex"),
        ("spec/http/0/match/0/headers/x-other", {"exact": "a"}, "the rules of route 'default' have different conditions"),
        ("spec/http/0/route/0/destination/subset", "canary", "defines subset 'canary'"),
        ("metadata/annotations/paritygate~stable", "one", "a version must be a whole number from 1, got 'one' @ $.stable"),
        ("metadata/annotations/paritygate~sticky", "ip:x", "unknown key 'ip'"),
        ("metadata/annotations/paritygate~topology", "ring", "topology 'ring' is not known"),
        ("spec/http/0/route/0/weight", -1, "weight -1 must be from 0"),
        ("spec/hosts", [], "has no hosts"),
    ],
)  # fmt: skip
def test_what_a_rollout_cannot_say_is_named_with_its_path(path: str, value: object, fault: str) -> None:
    documents = copy.deepcopy(rendered())
    *parents, last = path.split("/")
    place: Any = documents[0]
    for part in parents:
        place = place[int(part)] if part.isdigit() else place[part]
    place[last.replace("~", "/")] = value
    with pytest.raises(CannotRead) as caught:
        IstioDialect().read_back(documents)
    assert fault in str(caught.value)


def _without_rest(http: list[Any]) -> None:
    http[-1]["match"] = [{"headers": {"x-pg-bucket": {"regex": "[0-8][0-9]{3}"}}}]


def _swapped(http: list[Any]) -> None:
    http[0], http[1] = http[1], http[0]


def _two_shares(http: list[Any]) -> None:
    http[1]["route"][0]["destination"]["subset"] = "v2"


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (_without_rest, "no rule of route 'default' takes the rest"),
        (_swapped, "rest|taken by the rules before"),
        (_two_shares, "version 2 has two shares of one route"),
    ],
    ids=["no rest", "rest first", "one version twice"],
)
def test_rules_that_do_not_make_one_split_are_refused(
    change: Callable[[list[Any]], None], fault: str
) -> None:
    documents = copy.deepcopy(rendered())
    change(documents[0]["spec"]["http"])
    with pytest.raises(CannotRead, match=fault):
        IstioDialect().read_back(documents)


def test_weights_of_another_sum_are_not_a_rollout() -> None:
    documents = rendered(sticky="", topology="deployment-per-version")
    documents[0]["spec"]["http"][0]["route"][0]["weight"] = 50
    with pytest.raises(CannotRead, match=r"weights sum to 140, .* @ \$\.spec\.http\[0\]\.route"):
        IstioDialect().read_back(documents)


@pytest.mark.parametrize(
    "documents", [[], [{"kind": "Service"}], "both"], ids=["none", "another kind", "two"]
)
def test_exactly_one_virtual_service_is_read(documents: Any) -> None:
    both = [rendered()[0], rendered()[0]]
    with pytest.raises(CannotRead, match="hold . VirtualServices; expected one"):
        IstioDialect().read_back(both if documents == "both" else documents)
