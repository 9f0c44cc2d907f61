"""Istio documents back to the rollout that they say: the other half of the renderer.

Nothing is passed over: a field that a rollout cannot say is refused with its path, so that reading a document and
rendering it again never changes what the mesh does. Buckets are read from what the expressions fit, not from how
they are written.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any

from paritygate.mesh.config import rollout_from_value
from paritygate.mesh.config_reader import SCHEMA
from paritygate.mesh.dialects.istio_buckets import bound_of
from paritygate.mesh.dialects.istio_documents import Severity, document_name, is_kind
from paritygate.mesh.dialects.istio_rules import check
from paritygate.mesh.dialects.istio_words import (
    BUCKET_HEADER,
    MODEL,
    STABLE,
    STICKY,
    TOPOLOGY,
    no_bucket,
    version_of_subset,
)
from paritygate.mesh.errors import CannotRead, Fault, RolloutInvalid
from paritygate.mesh.types import BUCKETS, Rollout, Topology, percent_text

_RULE_FIELDS = ("name", "match", "route")
_MATCH_FIELDS = ("headers",)
_ROUTE_FIELDS = ("destination", "weight")


def read_rollout(documents: Sequence[Mapping[str, Any]]) -> Rollout:
    """The rollout that one VirtualService says.

    Raises:
        CannotRead: If there is not exactly one, it has errors, or it holds what a rollout cannot say.
    """
    services = [document for document in documents if is_kind(document, "VirtualService")]
    if len(services) != 1:
        raise CannotRead(
            "Istio documents", [Fault(f"hold {len(services)} VirtualServices; expected one", "$")]
        )
    service = services[0]
    source = document_name(service)
    errors = [f for f in check(documents) if f.severity is Severity.ERROR]
    faults = [Fault(f"{f.document}: {f.message}", f.path) for f in errors] or _unsupported(service)
    if faults:
        raise CannotRead(source, faults)
    try:
        return rollout_from_value(_rollout_value(service), source=source)
    except _Unreadable as error:
        raise CannotRead(source, [error.fault]) from error
    except RolloutInvalid as error:
        raise CannotRead(source, error.faults) from error


class _Unreadable(Exception):
    """A document that has the right fields, and does not say a rollout with them."""

    def __init__(self, message: str, path: str) -> None:
        super().__init__(message)
        self.fault = Fault(message, path)


# --- fields that a rollout cannot say -------------------------------------------------------------------


def _unsupported(service: Mapping[str, Any]) -> list[Fault]:
    spec = service["spec"]
    faults = _others(spec, ("hosts", "gateways", "http"), "$.spec")
    for index, rule in enumerate(spec.get("http") or []):
        path = f"$.spec.http[{index}]"
        faults += _others(rule, _RULE_FIELDS, path)
        for number, match in enumerate(rule.get("match") or []):
            faults += _others(match, _MATCH_FIELDS, f"{path}.match[{number}]")
        for number, item in enumerate(rule.get("route") or []):
            faults += _others(item, _ROUTE_FIELDS, f"{path}.route[{number}]")
    annotations = (service.get("metadata") or {}).get("annotations") or {}
    faults += [
        Fault(
            f"annotation '{key}' is missing, so this was not rendered from a rollout",
            "$.metadata.annotations",
        )
        for key in (MODEL, STABLE, TOPOLOGY)
        if not isinstance(annotations.get(key), str)
    ]
    return faults


def _others(value: Mapping[str, Any], known: Iterable[str], path: str) -> list[Fault]:
    return [
        Fault(f"a rollout cannot say '{key}'", f"{path}.{key}")
        for key in value
        if key not in known and value[key]
    ]


# --- the document as a rollout file would have it -------------------------------------------------------


def _rollout_value(service: Mapping[str, Any]) -> dict[str, Any]:
    annotations = service["metadata"]["annotations"]
    value: dict[str, Any] = {
        "schema": SCHEMA,
        "model": annotations[MODEL],
        "stable": annotations[STABLE],
        "topology": annotations[TOPOLOGY],
    }
    if STICKY in annotations:
        source, _, name = str(annotations[STICKY]).partition(":")
        value["sticky"] = {source: name}
    rules = list(enumerate(service["spec"]["http"]))
    if annotations[TOPOLOGY] == Topology.DEPLOYMENT_PER_VERSION.value:
        value["routes"] = [_weighted_route(rule, f"$.spec.http[{index}]") for index, rule in rules]
    else:
        groups = groupby(rules, key=lambda pair: str(pair[1].get("name")).rpartition("/")[0])
        value["routes"] = [_bucket_route(name, list(group)) for name, group in groups]
    return value


def _weighted_route(rule: Mapping[str, Any], path: str) -> dict[str, Any]:
    items = rule["route"]
    shares = [100] if len(items) == 1 else [item.get("weight", 0) for item in items]
    if sum(shares) != 100:
        raise _Unreadable(f"weights sum to {sum(shares)}, and those of a rollout sum to 100", f"{path}.route")
    route = {"name": rule.get("name"), "weights": _weights(zip(items, shares, strict=True), f"{path}.route")}
    if rule.get("match"):
        route["match"] = [_match(match) for match in rule["match"]]
    return route


def _bucket_route(name: str, rules: Sequence[tuple[int, Mapping[str, Any]]]) -> dict[str, Any]:
    """Rules of one route, "bucket below w" in ascending order and then the rest, as one set of weights."""
    shares: list[tuple[Mapping[str, Any], int]] = []
    below, matches = 0, None
    for index, rule in rules:
        path = f"$.spec.http[{index}]"
        bucket, plain = _split_bucket(rule, path)
        if matches not in (None, plain):
            raise _Unreadable(f"the rules of route '{name}' have different conditions", f"{path}.match")
        matches = plain
        bound = _bound(bucket, below, path)
        first, *others = rule["route"]
        shares += [(first, bound - below), *((item, 0) for item in others)]
        if others and (bucket is not None or any(item.get("weight") for item in others)):
            raise _Unreadable("a version that shares the rest must have the weight 0", f"{path}.route")
        below = bound
    if below != BUCKETS:
        raise _Unreadable(f"no rule of route '{name}' takes the rest", f"$.spec.http[{rules[-1][0]}]")
    weights = {version: percent_text(points) for version, points in _weights(shares, "$.spec.http").items()}
    route: dict[str, Any] = {"name": name, "weights": weights}
    if matches:
        route["match"] = matches
    return route


def _bound(bucket: Mapping[str, str] | None, below: int, path: str) -> int:
    """Up to which bucket a rule reaches, when the rules before it take those below `below`."""
    if bucket is None:
        return BUCKETS
    where = f"{path}.match"
    if str(bucket.get("exact", "")).startswith(no_bucket(1)[:-1]):
        return below
    if set(bucket) != {"regex"}:
        raise _Unreadable(f"{BUCKET_HEADER} must be matched by a regex", where)
    try:
        bound = bound_of(bucket["regex"])
    except ValueError as error:
        raise _Unreadable(str(error), where) from error
    if bound <= below:
        raise _Unreadable(f"buckets below {bound} are taken by the rules before", where)
    return bound


def _split_bucket(
    rule: Mapping[str, Any], path: str
) -> tuple[Mapping[str, str] | None, list[dict[str, Any]]]:
    """The bucket condition that all blocks of a rule share, and the blocks without it."""
    blocks = rule.get("match") or [{"headers": {}}]
    buckets = [(block.get("headers") or {}).get(BUCKET_HEADER) for block in blocks]
    if any(bucket != buckets[0] for bucket in buckets):
        raise _Unreadable(f"the blocks of a rule differ in {BUCKET_HEADER}", f"{path}.match")
    plain = [_match(block) for block in blocks]
    return buckets[0], [] if plain == [{"headers": {}}] else plain


def _match(block: Mapping[str, Any]) -> dict[str, Any]:
    headers = block.get("headers") or {}
    plain = {
        name: condition or {"present": True} for name, condition in headers.items() if name != BUCKET_HEADER
    }
    return {"headers": plain}


def _weights(shares: Iterable[tuple[Mapping[str, Any], int]], path: str) -> dict[str, int]:
    found: dict[str, int] = {}
    for item, share in shares:
        try:
            version = str(version_of_subset(item["destination"].get("subset")))
        except ValueError as error:
            raise _Unreadable(str(error), path) from error
        if version in found:
            raise _Unreadable(f"version {version} has two shares of one route", path)
        found[version] = share
    return found
