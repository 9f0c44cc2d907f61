"""Kubernetes documents from outside: their names, and looking into them without trusting their shape."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from paritygate.mesh.config_reader import nearest_hint

API_GROUP = "networking.istio.io/"


class Severity(enum.Enum):
    """How bad a finding is."""

    ERROR = "error"
    """Istio refuses the document, or requests get an answer that nobody wrote."""

    WARNING = "warning"
    """It works, and probably not as the author believes."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing to know about a document.

    Attributes:
        severity: How bad it is.
        document: Kind and name.
        path: Where, as a JSONPath.
        message: What was given and what is expected.
    """

    severity: Severity
    document: str
    path: str
    message: str

    def __str__(self) -> str:
        return f"{self.severity.value}: {self.document}: {self.message} @ {self.path}"


def document_name(value: object, index: int = 0) -> str:
    """How messages call a document: its kind and name, as far as it has them."""
    if not isinstance(value, Mapping):
        return f"document {index + 1}"
    metadata = value.get("metadata")
    name = metadata.get("name") if isinstance(metadata, Mapping) else None
    return f"{value.get('kind', 'document')} {name or index + 1}"


def namespace_of(document: Mapping[str, Any]) -> str:
    """The namespace of a document; `default` where it names none."""
    return str((document.get("metadata") or {}).get("namespace") or "default")


def qualified(host: str, namespace: str) -> str:
    """A host as Istio looks it up: a name without dots is a service in the document's own namespace."""
    return host if "." in host or host == "*" else f"{host}.{namespace}.svc.cluster.local"


def is_kind(value: object, kind: str) -> bool:
    """Whether a document is an Istio networking object of this kind."""
    return (
        isinstance(value, Mapping)
        and value.get("kind") == kind
        and str(value.get("apiVersion", "")).startswith(API_GROUP)
    )


@dataclass
class Shapes:
    """Looks into one document after another, and notes what is not as it should be.

    Attributes:
        ours: Whether warnings count as errors, as they do for documents that we render.
        findings: What was found so far.
    """

    ours: bool
    findings: list[Finding] = field(default_factory=list)
    _document: str = ""

    def _say(self, severity: Severity, message: str, path: str) -> None:
        self.findings.append(Finding(severity, self._document, path, message))

    def _error(self, message: str, path: str) -> None:
        self._say(Severity.ERROR, message, path)

    def _warn(self, message: str, path: str) -> None:
        """A warning; an error in documents of ours, which must leave nothing to believe."""
        self._say(Severity.ERROR if self.ours else Severity.WARNING, message, path)

    # --- shapes -------------------------------------------------------------------------------------

    def _mapping(self, value: object, path: str, known: Iterable[str] = ()) -> Mapping[str, Any] | None:
        if not isinstance(value, Mapping):
            self._error(f"must be a mapping, got {shown(value)}", path)
            return None
        known = tuple(known)
        for key in value:
            if known and key not in known:
                self._error(f"unknown field '{key}'; {nearest_hint(str(key), known)}", f"{path}.{key}")
        return value

    def _list(self, parent: Mapping[str, Any], key: str, path: str) -> list[tuple[Any, str]]:
        value = parent.get(key)
        if value is None:
            return []
        if not isinstance(value, list):
            self._error(f"must be a list, got {shown(value)}", f"{path}.{key}")
            return []
        return [(item, f"{path}.{key}[{index}]") for index, item in enumerate(value)]

    def _text(self, parent: Mapping[str, Any], key: str, path: str) -> str | None:
        value = parent.get(key)
        if isinstance(value, str) and value:
            return value
        if value is not None:
            self._error(f"must be text, got {shown(value)}", f"{path}.{key}")
        return None

    def _whole(self, value: object, path: str, what: str) -> int | None:
        if isinstance(value, int) and not isinstance(value, bool):
            return value
        self._error(f"{what} {shown(value)} must be a whole number", path)
        return None


def shown(value: object) -> str:
    """A value as an error names it: short, and in the words of the file."""
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict | list):
        return f"a {'mapping' if isinstance(value, dict) else 'list'}"
    return repr(value)[:60] if isinstance(value, str) else str(value)[:60]
