"""A rollout as Istio's VirtualService and DestinationRule, and back.

Two topologies (see `Topology`):

`gateway-header`: the gateway stamps each request with `x-pg-bucket: 0000` to `9999`, and the mesh matches that
header, so a user stays with a version. Each route becomes one rule a version: "bucket below w" for the candidates
in their order, then the rest. A version without a share keeps its place by a rule that no bucket fits.

`deployment-per-version`: each route becomes one rule with weighted destinations. Istio draws for every request, so
a sticky rollout is refused, and so are fractions of a percent, which its weights could not say as percents.

Both need one host per model: over gRPC the mesh cannot see a model's name. What the routes cannot carry (the
stable version, the sticky key, the topology) is kept in annotations of the VirtualService.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from paritygate.mesh.dialects.base import Dialect, Document, Interpreter
from paritygate.mesh.dialects.istio_buckets import regex_below
from paritygate.mesh.dialects.istio_interpreter import MESH_GATEWAY, IstioMesh, MeshRequest
from paritygate.mesh.dialects.istio_reader import read_rollout
from paritygate.mesh.dialects.istio_rules import check
from paritygate.mesh.dialects.istio_words import (
    BUCKET_HEADER,
    MODEL,
    STABLE,
    STICKY,
    TOPOLOGY,
    no_bucket,
    subset_name,
    version_of_subset,
)
from paritygate.mesh.errors import CannotExpress, Fault
from paritygate.mesh.routing import Facts, bucket_text
from paritygate.mesh.types import BUCKETS, HeaderMatch, Match, MatchKind, Rollout, Route, Topology, Weight

_LABEL = r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?"
_NAME = rf"{_LABEL}(\.{_LABEL})*"
_DNS_LABEL = re.compile(_LABEL)
_DNS_NAME = re.compile(_NAME)
_HOST = re.compile(rf"(\*\.)?{_NAME}")
_GATEWAY = re.compile(rf"({_LABEL}/)?{_NAME}")
_LABEL_KEY = re.compile(rf"({_NAME}/)?[A-Za-z0-9]([-A-Za-z0-9_.]{{0,61}}[A-Za-z0-9])?")


@dataclass(frozen=True, slots=True)
class IstioTarget:
    """Names and places in the cluster.

    Attributes:
        name: Name of both objects, or empty for the model's name.
        namespace: Their namespace.
        host: The service that has the pods of all versions, or empty for `<name>.<namespace>.svc.cluster.local`.
        hosts: The names that clients call, or empty for `host` alone.
        gateways: Istio gateways that requests come in by, or empty for calls inside the mesh only.
        version_label: The pod label that tells versions apart; its value is `v<version>`.
        port: The service's port, or None where it has only one.
    """

    name: str = ""
    namespace: str = "default"
    host: str = ""
    hosts: tuple[str, ...] = ()
    gateways: tuple[str, ...] = ()
    version_label: str = "version"
    port: int | None = None


class IstioDialect(Dialect[IstioTarget]):
    """Istio's networking API, v1."""

    name = "istio"

    def default_target(self, rollout: Rollout) -> IstioTarget:
        """Objects named after the model, in the namespace `default`."""
        return IstioTarget()

    def _render(self, rollout: Rollout, target: IstioTarget) -> list[Document]:
        faults = [*_target_faults(target, rollout), *_rollout_faults(rollout)]
        if faults:
            raise CannotExpress(f"rollout of '{rollout.model}' to istio", faults)
        target = _completed(target, rollout)
        return [_virtual_service(rollout, target), _destination_rule(rollout, target)]

    def read_back(self, documents: Sequence[Mapping[str, Any]]) -> Rollout:
        """The rollout that a VirtualService says, with or without its DestinationRule.

        Raises:
            CannotRead: If it holds a field that a rollout cannot say; names every such path.
        """
        return read_rollout(documents)

    def faults(self, documents: Sequence[Mapping[str, Any]]) -> list[str]:
        """What `istio_rules` finds, held to what we render."""
        return [str(finding) for finding in check(documents, ours=True)]

    def interpreter(self, documents: Sequence[Mapping[str, Any]]) -> Interpreter:
        """The proxies of `istio_interpreter`, for requests that carry the gateway's bucket header."""
        mesh = IstioMesh(documents)
        gateway = (documents[0]["spec"].get("gateways") or [MESH_GATEWAY])[0]

        def version_for(facts: Facts, bucket: int) -> int:
            headers = {**facts.headers, BUCKET_HEADER: bucket_text(bucket)}
            answer = mesh.choose(MeshRequest(headers=headers, gateway=gateway), bucket)
            assert answer.destination is not None, f"the last rule takes every request, got {answer}"
            return version_of_subset(answer.destination.subset)

        return version_for


# --- refusals -----------------------------------------------------------------------------------------


def _completed(target: IstioTarget, rollout: Rollout) -> IstioTarget:
    name = target.name or rollout.model
    host = target.host or f"{name}.{target.namespace}.svc.cluster.local"
    return replace(target, name=name, host=host, hosts=target.hosts or (host,))


def _target_faults(target: IstioTarget, rollout: Rollout) -> list[Fault]:
    name = target.name or rollout.model
    advice = "" if target.name else "; pass the target another name than the model's"
    object_name = f"the name of a Kubernetes object{advice}"
    faults = [
        *_unfit(_DNS_NAME, name, f"cannot be {object_name}", "name"),
        *_unfit(_DNS_LABEL, target.namespace, "cannot be a namespace", "namespace"),
        *_unfit(_LABEL_KEY, target.version_label, "cannot be the key of a label", "version_label"),
    ]
    if target.host:
        faults += _unfit(_DNS_NAME, target.host, "is not a host name", "host")
    for index, host in enumerate(target.hosts):
        faults += _unfit(_HOST, host, "is not a host name", f"hosts[{index}]")
    for index, gateway in enumerate(target.gateways):
        faults += _unfit(_GATEWAY, gateway, "is not the name of a gateway", f"gateways[{index}]")
    if target.port is not None and not 1 <= target.port <= 65535:
        faults.append(Fault(f"port {target.port} must be from 1 to 65535", "$target.port"))
    return faults


def _unfit(pattern: re.Pattern[str], value: str, message: str, field: str) -> list[Fault]:
    return [] if pattern.fullmatch(value) else [Fault(f"'{value}' {message}", f"$target.{field}")]


def _rollout_faults(rollout: Rollout) -> list[Fault]:
    words = " or ".join(topology.value for topology in Topology)
    if rollout.topology is None:
        return [Fault(f"topology is missing; a mesh needs to know who decides: {words}", "$.topology")]
    if rollout.topology is Topology.GATEWAY_HEADER:
        return []
    faults = [
        fault
        for index, route in enumerate(rollout.routes)
        for fault in _fractions(route, f"$.routes[{index}]")
    ]
    if rollout.sticky:
        message = (
            "weights of Istio are drawn for every request, so users would not stay with a version; use topology "
            "gateway-header, or leave sticky out"
        )
        faults.append(Fault(message, "$.sticky"))
    return faults


def _fractions(route: Route, path: str) -> list[Fault]:
    return [
        Fault(
            f"{weight.percent} is not a whole percent, and Istio's weights are; round it, or use topology "
            "gateway-header",
            f"{path}.weights.{weight.version}",
        )
        for weight in route.weights
        if weight.basis_points % 100
    ]


# --- documents ----------------------------------------------------------------------------------------


def _metadata(target: IstioTarget) -> dict[str, Any]:
    labels = {"app.kubernetes.io/managed-by": "paritygate"}
    return {"name": target.name, "namespace": target.namespace, "labels": labels}


def _virtual_service(rollout: Rollout, target: IstioTarget) -> Document:
    assert rollout.topology is not None  # _rollout_faults refuses its absence
    spec: dict[str, Any] = {"hosts": list(target.hosts)}
    if target.gateways:
        spec["gateways"] = list(target.gateways)
    build = _bucket_rules if rollout.topology is Topology.GATEWAY_HEADER else _weighted_rules
    spec["http"] = [rule for route in rollout.routes for rule in build(route, target)]
    annotations = {MODEL: rollout.model, STABLE: str(rollout.stable), TOPOLOGY: rollout.topology.value}
    if rollout.sticky:
        annotations[STICKY] = f"{rollout.sticky.source.value}:{rollout.sticky.name}"
    return {
        "apiVersion": "networking.istio.io/v1",
        "kind": "VirtualService",
        "metadata": {**_metadata(target), "annotations": annotations},
        "spec": spec,
    }


def _destination_rule(rollout: Rollout, target: IstioTarget) -> Document:
    subsets = [
        {"name": subset_name(version), "labels": {target.version_label: subset_name(version)}}
        for version in rollout.versions
    ]
    return {
        "apiVersion": "networking.istio.io/v1",
        "kind": "DestinationRule",
        "metadata": _metadata(target),
        "spec": {"host": target.host, "subsets": subsets},
    }


def _weighted_rules(route: Route, target: IstioTarget) -> list[dict[str, Any]]:
    rule: dict[str, Any] = {"name": route.name}
    if route.matches:
        rule["match"] = [_match(match, None) for match in route.matches]
    rule["route"] = [_destination(w.version, w.basis_points // 100, target) for w in route.weights]
    return [rule]


def _bucket_rules(route: Route, target: IstioTarget) -> list[dict[str, Any]]:
    """One rule a version; the last version with a share takes the rest, also of requests without a bucket."""
    last = max(index for index, weight in enumerate(route.weights) if weight.basis_points)
    rules, bound = [], 0
    for weight in route.weights[:last]:
        bound += weight.basis_points
        rules.append(_bucket_rule(route, weight, bound, target))
    rules.append(_rest_rule(route, route.weights[last:], target))
    return rules


def _bucket_rule(route: Route, weight: Weight, bound: int, target: IstioTarget) -> dict[str, Any]:
    condition = {"regex": regex_below(bound)} if weight.basis_points else {"exact": no_bucket(weight.version)}
    matches: tuple[Match, ...] = route.matches or (Match(()),)
    return {
        "name": f"{route.name}/{weight.version}",
        "match": [_match(match, condition) for match in matches],
        "route": [_destination(weight.version, 100, target)],
    }


def _rest_rule(route: Route, weights: Sequence[Weight], target: IstioTarget) -> dict[str, Any]:
    first, *without_share = weights
    rule: dict[str, Any] = {"name": f"{route.name}/{first.version}"}
    if route.matches:
        rule["match"] = [_match(match, None) for match in route.matches]
    shares = [(first.version, 100), *((weight.version, 0) for weight in without_share)]
    rule["route"] = [_destination(version, share, target) for version, share in shares]
    return rule


def _match(match: Match, bucket: Mapping[str, str] | None) -> dict[str, Any]:
    headers = {header.name: _condition(header) for header in match.headers}
    if bucket:
        headers[BUCKET_HEADER] = dict(bucket)
    return {"headers": headers}


def _condition(header: HeaderMatch) -> dict[str, str]:
    return {} if header.kind is MatchKind.PRESENT else {header.kind.value: header.value}


def _destination(version: int, weight: int, target: IstioTarget) -> dict[str, Any]:
    assert 0 <= weight <= BUCKETS // 100
    place: dict[str, Any] = {"host": target.host, "subset": subset_name(version)}
    if target.port is not None:
        place["port"] = {"number": target.port}
    return {"destination": place, "weight": weight}
