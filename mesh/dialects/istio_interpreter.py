"""What a mesh does under Istio documents: which destination takes a request, computed here.

It is the witness of the renderer (the documents must choose as `routing.choose` chooses) and the reader of files
that users bring. Documents with an error by `istio_rules` are refused, fields that it does not understand as well;
a field that cannot change the choice (timeouts, retries, rewrites, header changes, mirrors) is accepted.

Semantics, from Istio's conversion to Envoy routes:

- Rules in order, first fit wins; the blocks of `match` are alternatives, the conditions in a block all hold.
- Weights are relative to their sum; the weight of a lone destination is ignored; 0 takes nothing.
- A regex fits the whole value. Header names know no case, values do. An empty condition, or the regex `*`, asks
  for presence. `withoutHeaders` turns a condition around; there an absent header counts as empty, but not as
  present.
- The path's prefix is a plain text prefix; the query is not part of it; the first value of a repeated parameter
  counts, undecoded.
- Nothing fits: 404.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from paritygate.mesh.dialects.istio_documents import (
    Finding,
    Severity,
    document_name,
    is_kind,
    namespace_of,
    qualified,
)
from paritygate.mesh.dialects.istio_rules import PSEUDO_HEADERS, check
from paritygate.mesh.errors import CannotRead, Fault
from paritygate.mesh.patterns import Pattern
from paritygate.mesh.routing import wire_bytes
from paritygate.mesh.types import BUCKETS
from paritygate.mesh.yaml_text import load_documents

MESH_GATEWAY = "mesh"
"""Istio's name for all sidecars; what a VirtualService without `gateways` is for."""


@dataclass(frozen=True, slots=True)
class MeshRequest:
    """A request as a proxy sees it.

    Attributes:
        headers: Headers in any case of names, each sent once (Envoy looks at each value of a repeated one).
        method: HTTP method.
        path: Path with the query, if any.
        authority: Host and maybe port as the client sent it; empty where there is only one VirtualService.
        scheme: "http" or "https".
        port: The port it came in by, or None where that does not matter.
        gateway: The gateway that it passes, `mesh` for a sidecar.
        source_labels: Labels of the calling pod.
        source_namespace: Namespace of the calling pod.
    """

    headers: Mapping[str, str] = field(default_factory=dict)
    method: str = "POST"
    path: str = "/"
    authority: str = ""
    scheme: str = "http"
    port: int | None = None
    gateway: str = MESH_GATEWAY
    source_labels: Mapping[str, str] = field(default_factory=dict)
    source_namespace: str = ""


class AnswerKind(enum.Enum):
    """What happens to a request."""

    ROUTED = "routed"
    """It is sent to a destination."""

    REDIRECTED = "redirected"
    """The client is told to go elsewhere."""

    ANSWERED = "answered"
    """The proxy answers by itself."""

    NOT_FOUND = "not_found"
    """No rule fits: 404."""


@dataclass(frozen=True, slots=True)
class Destination:
    """Where a request may be sent.

    Attributes:
        host: The service, as the document names it.
        subset: The subset, or None for all pods.
        port: The port, or None for the service's only one.
        weight: Its weight, relative to the sum over the rule.
    """

    host: str
    subset: str | None
    port: int | None
    weight: int


@dataclass(frozen=True, slots=True)
class MeshAnswer:
    """What happens to one request.

    Attributes:
        kind: What happens.
        rule: Path of the rule that took it; empty when none did.
        destination: Where it is sent, for ROUTED.
        status: The status, for all kinds but ROUTED.
        fault: The delays and aborts that the rule injects, as the document has them.
    """

    kind: AnswerKind
    rule: str = ""
    destination: Destination | None = None
    status: int | None = None
    fault: Mapping[str, Any] = field(default_factory=dict)


class IstioMesh:
    """The proxies that follow a set of documents.

    Attributes:
        warnings: What the documents' author should know.
    """

    def __init__(self, documents: Sequence[Mapping[str, Any]], *, source: str = "Istio documents") -> None:
        """Read documents.

        Args:
            documents: Kubernetes objects as plain values.
            source: Their name, for errors.

        Raises:
            CannotRead: If one is wrong, or holds a field that is not understood.
        """
        findings = check(documents)
        self.warnings: tuple[Finding, ...] = tuple(f for f in findings if f.severity is Severity.WARNING)
        faults = [_as_fault(f) for f in findings if f.severity is Severity.ERROR]
        self._services = [
            _VirtualService(document)
            for document in documents
            if not faults and is_kind(document, "VirtualService")
        ]
        faults += [fault for document in documents for fault in _not_understood(document)]
        faults += self._repeated_hosts()
        if not faults and not self._services:
            faults.append(Fault("hold no VirtualService", "$"))
        if faults:
            raise CannotRead(source, faults)

    def choose(self, request: MeshRequest, draw: int) -> MeshAnswer:
        """What happens to a request.

        Args:
            request: The request.
            draw: What chance says, 0 to 9999; the destinations share these numbers by weight, in their order.
        """
        service = self._service_of(request.authority)
        return service.choose(request, draw) if service else MeshAnswer(AnswerKind.NOT_FOUND, status=404)

    def _service_of(self, authority: str) -> _VirtualService | None:
        if not authority:
            return self._services[0] if len(self._services) == 1 else None
        fitting = [(service.fit(authority), service) for service in self._services]
        length, best = max(fitting, key=lambda pair: pair[0])
        return best if length else None

    def _repeated_hosts(self) -> list[Fault]:
        seen: dict[str, str] = {}
        faults = []
        for service in self._services:
            for host in service.hosts:
                first = seen.setdefault(host, service.name)
                if first != service.name:
                    message = f"{service.name}: host '{host}' has {first} already; merging is not understood"
                    faults.append(Fault(message, "$.spec.hosts"))
        return faults


def read_istio(text: str, *, source: str = "Istio documents") -> IstioMesh:
    """Read the YAML text of VirtualServices and DestinationRules.

    Raises:
        RolloutInvalid: If it is not YAML that we read.
        CannotRead: If a document is wrong, or holds a field that is not understood.
    """
    documents: list[Any] = [
        document for document in load_documents(text, source=source) if document is not None
    ]
    return IstioMesh(documents, source=source)


def _as_fault(finding: Finding) -> Fault:
    return Fault(f"{finding.document}: {finding.message}", finding.path)


def _not_understood(document: object) -> list[Fault]:
    """Fields that could change the choice in a way that is not computed here."""
    spec = document.get("spec") if isinstance(document, Mapping) else None
    if not isinstance(spec, Mapping) or not is_kind(document, "VirtualService"):
        return []
    name = document_name(document)
    found = [
        Fault(f"{name}: {key} routes are not understood", f"$.spec.{key}")
        for key in ("tls", "tcp")
        if key in spec
    ]
    rules = spec.get("http")
    for index, rule in enumerate(rules if isinstance(rules, list) else []):
        if isinstance(rule, Mapping):
            found += _not_understood_in(rule, f"$.spec.http[{index}]", name)
    return found


def _not_understood_in(rule: Mapping[str, Any], path: str, name: str) -> list[Fault]:
    found = []
    if "delegate" in rule:
        found.append(Fault(f"{name}: delegate is not understood", f"{path}.delegate"))
    matches = rule.get("match")
    for index, match in enumerate(matches if isinstance(matches, list) else []):
        headers = match.get("headers") if isinstance(match, Mapping) else None
        for header in headers if isinstance(headers, Mapping) else ():
            if str(header).startswith("@"):
                where = f"{path}.match[{index}].headers.{header}"
                found.append(Fault(f"{name}: matching token claims is not understood", where))
    return found


class _VirtualService:
    def __init__(self, document: Mapping[str, Any]) -> None:
        spec = document["spec"]
        namespace = namespace_of(document)
        self.name = document_name(document)
        self.hosts = tuple(qualified(host, namespace).lower() for host in spec["hosts"])
        self._short = tuple(host.lower() for host in spec["hosts"])
        gateways = tuple(spec.get("gateways") or (MESH_GATEWAY,))
        self._rules = [
            _Rule(rule, f"$.spec.http[{index}]", gateways)
            for index, rule in enumerate(spec.get("http") or [])
        ]

    def fit(self, authority: str) -> int:
        """How exactly a host of this document fits: its length, 0 for not at all; a full name beats a wildcard."""
        host = authority.rsplit(":", 1)[0].lower() if not authority.endswith("]") else authority.lower()
        return max(_host_fit(pattern, host) for pattern in (*self.hosts, *self._short))

    def choose(self, request: MeshRequest, draw: int) -> MeshAnswer:
        for rule in self._rules:
            if rule.fits(request):
                return rule.answer(draw)
        return MeshAnswer(AnswerKind.NOT_FOUND, status=404)


def _host_fit(pattern: str, host: str) -> int:
    if pattern == host:
        return 2 * len(host) + 1
    if pattern.startswith("*") and host.endswith(pattern[1:]) and host != pattern[1:]:
        return len(pattern)
    return 0


class _Rule:
    def __init__(self, rule: Mapping[str, Any], path: str, gateways: Sequence[str]) -> None:
        self._rule, self._path = rule, path
        self._blocks = [_Block(match, gateways) for match in rule.get("match") or [{}]]
        self._destinations = tuple(_destination(item) for item in rule.get("route") or ())

    def fits(self, request: MeshRequest) -> bool:
        return any(block.fits(request) for block in self._blocks)

    def answer(self, draw: int) -> MeshAnswer:
        fault = self._rule.get("fault") or {}
        if self._destinations:
            return MeshAnswer(AnswerKind.ROUTED, self._path, self._pick(draw), fault=fault)
        if "directResponse" in self._rule:
            status = self._rule["directResponse"]["status"]
            return MeshAnswer(AnswerKind.ANSWERED, self._path, status=status, fault=fault)
        status = self._rule["redirect"].get("redirectCode", 301)
        return MeshAnswer(AnswerKind.REDIRECTED, self._path, status=status, fault=fault)

    def _pick(self, draw: int) -> Destination:
        if len(self._destinations) == 1:
            return self._destinations[0]
        slot = draw * sum(d.weight for d in self._destinations) // BUCKETS
        for destination in self._destinations:
            if slot < destination.weight:
                return destination
            slot -= destination.weight
        raise ValueError(f"draw must be from 0 to {BUCKETS - 1}, got {draw}")


def _destination(item: Mapping[str, Any]) -> Destination:
    place = item["destination"]
    port = (place.get("port") or {}).get("number")
    return Destination(place["host"], place.get("subset"), port, item.get("weight", 0))


class _Block:
    """One entry of `match`: conditions that must all hold."""

    def __init__(self, match: Mapping[str, Any], gateways: Sequence[str]) -> None:
        self._match = match
        self._gateways = tuple(match.get("gateways") or gateways)
        ignore_case = bool(match.get("ignoreUriCase"))
        self._pseudo = {
            key: _Text(match[key], ignore_case and key == "uri") for key in PSEUDO_HEADERS if key in match
        }
        self._headers = _conditions(match.get("headers"), lower=True)
        self._without = _conditions(match.get("withoutHeaders"), lower=True)
        self._query = _conditions(match.get("queryParams"), lower=False)

    def fits(self, request: MeshRequest) -> bool:
        return self._fits_proxy(request) and self._fits_line(request) and self._fits_headers(request)

    def _fits_proxy(self, request: MeshRequest) -> bool:
        match = self._match
        if request.gateway not in self._gateways or match.get("port", request.port) != request.port:
            return False
        if match.get("gateways"):  # then Istio does not look at the source
            return True
        labels: Mapping[str, str] = match.get("sourceLabels") or {}
        has_labels = all(request.source_labels.get(key) == value for key, value in labels.items())
        return (
            has_labels and match.get("sourceNamespace", request.source_namespace) == request.source_namespace
        )

    def _fits_line(self, request: MeshRequest) -> bool:
        path, _, query = request.path.partition("?")
        values = {
            "uri": path,
            "scheme": request.scheme,
            "method": request.method,
            "authority": request.authority,
        }
        if not all(condition.fits(values[key]) for key, condition in self._pseudo.items()):
            return False
        parameters = _first_values(query)
        return all(condition.holds(parameters.get(name)) for name, condition in self._query.items())

    def _fits_headers(self, request: MeshRequest) -> bool:
        headers = {name.lower(): value for name, value in request.headers.items()}
        return all(c.holds(headers.get(name)) for name, c in self._headers.items()) and not any(
            condition.holds_without(headers.get(name)) for name, condition in self._without.items()
        )


def _conditions(value: Mapping[str, Any] | None, *, lower: bool) -> dict[str, _Text]:
    return {name.lower() if lower else name: _Text(condition) for name, condition in (value or {}).items()}


def _first_values(query: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for part in filter(None, query.split("&")):
        name, _, value = part.partition("=")
        found.setdefault(name, value)
    return found


class _Text:
    """A StringMatch: exact, prefix, regex, or presence."""

    def __init__(self, condition: Mapping[str, str] | None, ignore_case: bool = False) -> None:
        kind, text = next(iter((condition or {}).items()), ("present", ""))
        self._kind = "present" if (kind, text) == ("regex", "*") else kind
        self._ignore_case = ignore_case and self._kind in ("exact", "prefix")
        self._pattern = Pattern(text) if self._kind == "regex" else None
        self._value = self._bytes(text)

    def _bytes(self, text: str) -> bytes:
        return (text.lower() if self._ignore_case else text).encode("utf-8")

    def fits(self, text: str) -> bool:
        """Whether a value that is there fits."""
        value = wire_bytes(text.lower() if self._ignore_case else text)
        if self._pattern is not None:
            return self._pattern.fits(value)
        if self._kind == "exact":
            return value == self._value
        return self._kind == "present" or value.startswith(self._value)

    def holds(self, text: str | None) -> bool:
        """Whether the condition holds; an absent value never does."""
        return text is not None and self.fits(text)

    def holds_without(self, text: str | None) -> bool:
        """The same before `withoutHeaders` turns it around: absent counts as empty, but not as present."""
        return self.holds(text) if self._kind == "present" else self.fits(text or "")
