"""What is wrong with Istio routing documents that their schema lets pass; a linter for ours and for users' files.

The schema of a VirtualService accepts a negative weight, weights that are all zero, a port of 99999, a subset that
no DestinationRule has, no hosts, and routes that no request can reach. Istio's own admission webhook finds most of
these, in the cluster, too late. Documents that we render must satisfy more than Istio asks: whole weights that sum
to exactly 100, and an answer for every request.

Source: Istio's networking API reference (VirtualService, DestinationRule) and its conversion to Envoy routes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

from paritygate.mesh.dialects.istio_documents import (
    Finding,
    Severity,
    Shapes,
    document_name,
    is_kind,
    namespace_of,
    qualified,
    shown,
)
from paritygate.mesh.patterns import Pattern

MAX_WEIGHT = 2**31 - 1
"""A weight is an int32 in Istio's API."""

MAX_TOTAL_WEIGHT = 2**32 - 1
"""The sum of weights is a uint32 in Envoy's."""

ROUTE_ACTIONS = ("route", "redirect", "directResponse", "delegate")
REDIRECT_CODES = (301, 302, 303, 307, 308)
STRING_MATCHES = ("exact", "prefix", "regex")
PSEUDO_HEADERS = ("uri", "scheme", "method", "authority")
HEADER_MAPS = ("headers", "withoutHeaders", "queryParams")

SPEC_FIELDS = ("hosts", "gateways", "http", "tls", "tcp", "exportTo")
HTTP_FIELDS = (
    *("name", "match", *ROUTE_ACTIONS, "rewrite", "timeout", "retries", "fault", "mirror", "mirrors"),
    *("mirrorPercentage", "mirrorPercent", "mirror_percent", "corsPolicy", "headers"),
)
MATCH_FIELDS = (
    *("name", *PSEUDO_HEADERS, *HEADER_MAPS, "ignoreUriCase", "port", "sourceLabels", "sourceNamespace"),
    *("gateways", "statPrefix"),
)
_DURATION = re.compile(r"([0-9]+(\.[0-9]*)?(h|m|s|ms|us|ns))+")


def check(documents: Iterable[object], *, ours: bool = False) -> list[Finding]:
    """Check documents that belong together.

    Args:
        documents: Kubernetes objects as plain values, of any kinds and shapes.
        ours: Hold them to what we render: weights that sum to 100, a catch-all, nothing unreachable.

    Returns:
        What was found, in the order of the documents; empty for good ones.
    """
    checker = _Checker(ours)
    values = list(documents)
    subsets = {name for value in values for name in _defined_subsets(value)}
    for index, value in enumerate(values):
        checker.document(value, index, subsets)
    return checker.findings


def is_catch_all(match: Mapping[str, Any]) -> bool:
    """Whether one match block takes every request: a path that always fits, and no other condition."""
    labels = ("name", "statPrefix", "ignoreUriCase")
    conditions = {key for key, value in match.items() if key not in labels and value not in (None, {}, [])}
    if not conditions:
        return True
    uri = match.get("uri") or {}
    return conditions == {"uri"} and (uri.get("prefix") == "/" or uri.get("regex") == ".*")


def shares_text(weights: Sequence[int]) -> str:
    """What relative weights come to, in percent."""
    total = sum(weights)
    return ", ".join(f"{100 * weight / total:.4g} %" for weight in weights)


def _defined_subsets(value: object) -> Iterator[tuple[str, str]]:
    """Pairs of qualified host and subset that a DestinationRule defines."""
    if not is_kind(value, "DestinationRule") or not isinstance(value, Mapping):
        return
    spec = value.get("spec")
    if not isinstance(spec, Mapping) or not isinstance(spec.get("host"), str):
        return
    host = qualified(spec["host"], namespace_of(value))
    yield host, ""  # the host has a rule, so its subsets are known
    for subset in _as_list(spec.get("subsets")):
        if isinstance(subset, Mapping) and isinstance(subset.get("name"), str):
            yield host, subset["name"]


def _as_list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


@dataclass
class _Checker(Shapes):
    _namespace: str = "default"
    _subsets: set[tuple[str, str]] = field(default_factory=set)

    # --- documents ----------------------------------------------------------------------------------

    def document(self, value: object, index: int, subsets: set[tuple[str, str]]) -> None:
        self._document, self._subsets = document_name(value, index), subsets
        document = self._mapping(value, "$")
        if document is None or not self._is_named(document):
            return
        self._namespace = namespace_of(document)
        if is_kind(document, "VirtualService"):
            self._virtual_service(document)
        elif is_kind(document, "DestinationRule"):
            self._destination_rule(document)
        else:
            self._warn("is not a VirtualService or DestinationRule of Istio; it was not looked at", "$.kind")

    def _is_named(self, document: Mapping[str, Any]) -> bool:
        metadata = document.get("metadata")
        if isinstance(metadata, Mapping) and isinstance(metadata.get("name"), str) and metadata["name"]:
            return True
        self._error("has no name", "$.metadata.name")
        return False

    def _virtual_service(self, document: Mapping[str, Any]) -> None:
        spec = self._mapping(document.get("spec"), "$.spec", SPEC_FIELDS)
        if spec is None:
            return
        self._hosts(spec)
        for gateway, path in self._list(spec, "gateways", "$.spec"):
            if not isinstance(gateway, str) or not gateway:
                self._error(f"must be the name of a gateway, got {shown(gateway)}", path)
        for key in ("tls", "tcp"):
            if key in spec:
                self._warn(f"{key} routes are not looked at", f"$.spec.{key}")
        self._http_rules(spec)

    def _hosts(self, spec: Mapping[str, Any]) -> None:
        hosts = self._list(spec, "hosts", "$.spec")
        if not hosts:
            self._error("has no hosts; name at least one", "$.spec.hosts")
        for host, path in hosts:
            if not isinstance(host, str) or not host:
                self._error(f"must be a host name, got {shown(host)}", path)

    def _http_rules(self, spec: Mapping[str, Any]) -> None:
        rules = self._list(spec, "http", "$.spec")
        if not rules and not spec.get("tls") and not spec.get("tcp"):
            self._error("has no http routes", "$.spec.http")
        good = [(rule, path) for value, path in rules if (rule := self._http_rule(value, path)) is not None]
        self._reachability(good)

    def _http_rule(self, value: object, path: str) -> Mapping[str, Any] | None:
        rule = self._mapping(value, path, HTTP_FIELDS)
        if rule is None:
            return None
        before = len(self.findings)
        for match, match_path in self._list(rule, "match", path):
            self._match(match, match_path)
        self._action(rule, path)
        self._mirrors(rule, path)
        self._fault(rule, path)
        self._durations(rule, path)
        shapes_are_right = not any(f.severity is Severity.ERROR for f in self.findings[before:])
        return rule if shapes_are_right else None

    # --- matches ------------------------------------------------------------------------------------

    def _match(self, value: object, path: str) -> None:
        match = self._mapping(value, path, MATCH_FIELDS)
        if match is None:
            return
        for key in PSEUDO_HEADERS:
            if key in match:
                self._string_match(match[key], f"{path}.{key}", may_be_empty=False)
        for key in HEADER_MAPS:
            for name, condition in (self._mapping(match.get(key, {}), f"{path}.{key}") or {}).items():
                self._string_match(condition, f"{path}.{key}.{name}", may_be_empty=True)
        if "port" in match:
            self._port(match["port"], f"{path}.port")
        for name, label in (
            self._mapping(match.get("sourceLabels", {}), f"{path}.sourceLabels") or {}
        ).items():
            if not isinstance(label, str):
                self._error(f"must be text, got {shown(label)}", f"{path}.sourceLabels.{name}")
        for gateway, gateway_path in self._list(match, "gateways", path):
            if not isinstance(gateway, str) or not gateway:
                self._error(f"must be the name of a gateway, got {shown(gateway)}", gateway_path)
        for key in ("sourceNamespace", "statPrefix", "name"):
            self._text(match, key, path)
        if not isinstance(match.get("ignoreUriCase", False), bool):
            self._error(
                f"must be true or false, got {shown(match['ignoreUriCase'])}", f"{path}.ignoreUriCase"
            )

    def _string_match(self, value: object, path: str, *, may_be_empty: bool) -> None:
        condition = self._mapping({} if value is None else value, path, STRING_MATCHES)
        if condition is None:
            return
        if len(condition) > 1 or (not condition and not may_be_empty):
            self._error(
                f"give exactly one of exact, prefix and regex, got {', '.join(condition) or 'none'}", path
            )
        for kind, text in condition.items():
            if not isinstance(text, str):
                self._error(f"{kind} must be text, got {shown(text)}", f"{path}.{kind}")
            elif kind == "regex" and not (text == "*" and may_be_empty):
                self._regex(text, f"{path}.regex")

    def _regex(self, text: str, path: str) -> None:
        try:
            Pattern(text)
        except ValueError as error:
            self._error(f"regex '{text[:80]}' {error}", path)

    def _reachability(self, rules: Sequence[tuple[Mapping[str, Any], str]]) -> None:
        seen: dict[str, str] = {}
        closed_by = ""
        for rule, path in rules:
            if closed_by:
                self._warn(f"is never reached: {closed_by} takes every request", path)
                continue
            for index, match in enumerate(rule.get("match") or []):
                first = seen.setdefault(_match_key(match), f"{path}.match[{index}]")
                if first != f"{path}.match[{index}]":
                    self._warn(f"is never reached: {first} is the same", f"{path}.match[{index}]")
            matches = rule.get("match") or [{}]
            closed_by = path if any(is_catch_all(match) for match in matches) else ""
        if self.ours and rules and not closed_by:
            self._error("no route takes the requests that fit no other one", "$.spec.http")

    # --- actions ------------------------------------------------------------------------------------

    def _action(self, rule: Mapping[str, Any], path: str) -> None:
        given = [key for key in ROUTE_ACTIONS if rule.get(key)]
        if len(given) != 1:
            names = ", ".join(given) or "none"
            self._error(f"must have exactly one of {', '.join(ROUTE_ACTIONS)}, got {names}", path)
        self._destinations(self._list(rule, "route", path), path)
        if "directResponse" in given:
            response = self._mapping(rule["directResponse"], f"{path}.directResponse", ("status", "body"))
            if response is not None:
                self._status(response.get("status"), f"{path}.directResponse.status")
        if "redirect" in given:
            redirect = self._mapping(rule["redirect"], f"{path}.redirect") or {}
            if redirect.get("redirectCode", 301) not in REDIRECT_CODES:
                codes = ", ".join(map(str, REDIRECT_CODES))
                self._error(
                    f"must be one of {codes}, got {shown(redirect['redirectCode'])}",
                    f"{path}.redirect.redirectCode",
                )

    def _status(self, value: object, path: str) -> None:
        status = self._whole(value, path, "status")
        if status is not None and not 200 <= status <= 599:
            self._error(f"status {status} must be from 200 to 599", path)

    def _destinations(self, items: Sequence[tuple[Any, str]], path: str) -> None:
        weights = [self._destination(value, item_path, len(items) == 1) for value, item_path in items]
        known = [weight for weight in weights if weight is not None]
        if len(known) != len(weights) or not known:
            return
        if len(known) == 1:
            self._lone_weight(items[0], known[0])
        else:
            self._total(known, f"{path}.route")

    def _destination(self, value: object, path: str, alone: bool) -> int | None:
        item = self._mapping(value, path, ("destination", "weight", "headers"))
        if item is None:
            return None
        self._place(item.get("destination"), f"{path}.destination")
        if "weight" not in item:
            if not alone:
                self._warn("has no weight beside others that have one, so it gets nothing", path)
            return 100 if alone else 0
        return self._weight(item["weight"], f"{path}.weight")

    def _weight(self, value: object, path: str) -> int | None:
        weight = self._whole(value, path, "weight")
        if weight is not None and not 0 <= weight <= MAX_WEIGHT:
            self._error(f"weight {weight} must be from 0 to {MAX_WEIGHT}", path)
            return None
        return weight

    def _lone_weight(self, item: tuple[Any, str], weight: int) -> None:
        if weight != 100:
            self._warn(
                f"weight {weight} of a lone destination is ignored: it gets all requests", f"{item[1]}.weight"
            )

    def _total(self, weights: Sequence[int], path: str) -> None:
        total = sum(weights)
        if total == 0:
            self._error("all weights are 0, so no destination would get a request", path)
        elif total > MAX_TOTAL_WEIGHT:
            self._error(f"weights sum to {total}, more than the {MAX_TOTAL_WEIGHT} that Envoy can hold", path)
        elif total != 100:
            self._warn(
                f"weights sum to {total}, not 100; Istio takes them as relative: {shares_text(weights)}", path
            )

    def _place(self, value: object, path: str) -> None:
        place = self._mapping(value, path, ("host", "subset", "port"))
        if place is None:
            return
        host = self._text(place, "host", path)
        if host is None:
            self._error("has no host", f"{path}.host")
        port = self._mapping(place["port"], f"{path}.port", ("number",)) if "port" in place else None
        if port is not None:
            self._port(port.get("number"), f"{path}.port.number")
        subset = self._text(place, "subset", path)
        if host and subset:
            self._subset(qualified(host, self._namespace), subset, f"{path}.subset")

    def _port(self, value: object, path: str) -> None:
        port = self._whole(value, path, "port")
        if port is not None and not 1 <= port <= 65535:
            self._error(f"port {port} must be from 1 to 65535", path)

    def _subset(self, host: str, subset: str, path: str) -> None:
        if (host, "") not in self._subsets:
            self._warn(f"subset '{subset}' cannot be checked: no DestinationRule for {host} is here", path)
        elif (host, subset) not in self._subsets:
            self._error(
                f"no DestinationRule for {host} defines subset '{subset}'; requests would get 503", path
            )

    # --- the rest of a rule -------------------------------------------------------------------------

    def _mirrors(self, rule: Mapping[str, Any], path: str) -> None:
        if rule.get("mirror") and rule.get("mirrors"):
            self._error("mirror and mirrors exclude each other", f"{path}.mirrors")
        if "mirror" in rule:
            self._place(rule["mirror"], f"{path}.mirror")
        elif "mirrorPercentage" in rule:
            self._warn("mirrorPercentage without mirror does nothing", f"{path}.mirrorPercentage")
        self._percentage(rule.get("mirrorPercentage"), f"{path}.mirrorPercentage")
        for key in ("mirrorPercent", "mirror_percent"):
            if rule.get(key) is not None:
                self._percent(rule[key], f"{path}.{key}")
        for value, item_path in self._list(rule, "mirrors", path):
            item = self._mapping(value, item_path, ("destination", "percentage"))
            if item is not None:
                self._place(item.get("destination"), f"{item_path}.destination")
                self._percentage(item.get("percentage"), f"{item_path}.percentage")

    def _fault(self, rule: Mapping[str, Any], path: str) -> None:
        if "fault" not in rule:
            return
        fault = self._mapping(rule["fault"], f"{path}.fault", ("delay", "abort")) or {}
        for key in ("delay", "abort"):
            part = self._mapping(fault[key], f"{path}.fault.{key}") if key in fault else None
            if part is None:
                continue
            self._percentage(part.get("percentage"), f"{path}.fault.{key}.percentage")
            if "fixedDelay" in part:
                self._duration(part["fixedDelay"], f"{path}.fault.{key}.fixedDelay")
            if "httpStatus" in part:
                self._status(part["httpStatus"], f"{path}.fault.{key}.httpStatus")

    def _percentage(self, value: object, path: str) -> None:
        if value is not None and (percentage := self._mapping(value, path, ("value",))) is not None:
            self._percent(percentage.get("value", 0), f"{path}.value")

    def _percent(self, value: object, path: str) -> None:
        is_number = isinstance(value, int | float | Decimal) and not isinstance(value, bool)
        if not is_number or not 0 <= float(str(value)) <= 100:
            self._error(f"percentage {shown(value)} must be a number from 0 to 100", path)

    def _durations(self, rule: Mapping[str, Any], path: str) -> None:
        if "timeout" in rule:
            self._duration(rule["timeout"], f"{path}.timeout")
        retries = self._mapping(rule["retries"], f"{path}.retries") if "retries" in rule else None
        if retries is not None and "perTryTimeout" in retries:
            self._duration(retries["perTryTimeout"], f"{path}.retries.perTryTimeout")

    def _duration(self, value: object, path: str) -> None:
        if value != 0 and (not isinstance(value, str) or not _DURATION.fullmatch(value)):
            self._error(f"{shown(value)} is not a duration such as 300ms or 1m30s", path)

    # --- DestinationRule ----------------------------------------------------------------------------

    def _destination_rule(self, document: Mapping[str, Any]) -> None:
        known = ("host", "subsets", "trafficPolicy", "exportTo", "workloadSelector")
        spec = self._mapping(document.get("spec"), "$.spec", known)
        if spec is None:
            return
        if self._text(spec, "host", "$.spec") is None:
            self._error("has no host", "$.spec.host")
        self._balancer(spec, "$.spec")
        seen: set[str] = set()
        for value, path in self._list(spec, "subsets", "$.spec"):
            self._defined_subset(value, path, seen)

    def _defined_subset(self, value: object, path: str, seen: set[str]) -> None:
        subset = self._mapping(value, path, ("name", "labels", "trafficPolicy"))
        if subset is None:
            return
        name = self._text(subset, "name", path)
        if name is None:
            self._error("has no name", f"{path}.name")
        elif name in seen:
            self._error(f"subset '{name}' is defined twice", f"{path}.name")
        else:
            seen.add(name)
        self._balancer(subset, path)
        labels = self._mapping(subset.get("labels", {}), f"{path}.labels") or {}
        for key, label in labels.items():
            if not isinstance(label, str):
                self._error(
                    f"label '{key}' must be text, got {shown(label)}; put it in quotes",
                    f"{path}.labels.{key}",
                )
        if not labels:
            self._warn("has no labels, so it is the pods of all versions", f"{path}.labels")

    def _balancer(self, parent: Mapping[str, Any], path: str) -> None:
        policy = parent.get("trafficPolicy")
        balancer = policy.get("loadBalancer") if isinstance(policy, Mapping) else None
        if isinstance(balancer, Mapping) and "simple" in balancer and "consistentHash" in balancer:
            self._error("simple and consistentHash exclude each other", f"{path}.trafficPolicy.loadBalancer")


def _match_key(match: Mapping[str, Any]) -> str:
    """A text that is equal for match blocks that fit the same requests."""
    conditions = {key: value for key, value in match.items() if key not in ("name", "statPrefix")}
    for key in ("headers", "withoutHeaders"):
        if conditions.get(key):
            conditions[key] = {name.lower(): value for name, value in conditions[key].items()}
    return json.dumps(conditions, sort_keys=True, default=str)
