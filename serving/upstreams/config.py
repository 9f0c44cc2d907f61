"""The upstreams file: which servers there are, and which versions of which models they compute.

schema: paritygate.upstreams/v1
upstreams:
  triton-a: {url: "http://10.0.0.5:8000"}
  triton-b: {url: "grpc://10.0.0.6:8001", timeout_s: 10}
models:
  digits: {2: [triton-a, triton-b]}       # other versions are computed here
  fraud: {"*": [triton-a], 7: embedded}   # all versions but 7 elsewhere
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from decimal import Decimal
from pathlib import Path
from urllib.parse import urlsplit

from paritygate.mesh.config import read_text
from paritygate.mesh.config_reader import nearest_hint
from paritygate.mesh.errors import Fault, RolloutInvalid
from paritygate.mesh.yaml_text import load_document

SCHEMA = "paritygate.upstreams/v1"
EMBEDDED = "embedded"
ANY = "*"

_PORTS = {"http": 80, "https": 443, "grpc": 8001, "grpcs": 443}
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
_VERSION = re.compile(r"[1-9][0-9]{0,18}")


class UpstreamsInvalid(RolloutInvalid):
    """An upstreams file with faults, each with its path."""


@dataclass(frozen=True)
class Upstream:
    """One server of the v2 protocol.

    Raises:
        ValueError: If a value is out of range; it names the field.
    """

    name: str
    """Name in the file, in metrics and in messages."""

    url: str
    """`http`, `https`, `grpc` or `grpcs`, host and port; a path before `/v2` is kept for http."""

    timeout_s: float = 30.0
    """Seconds until a whole answer must have come, connecting included."""

    connect_timeout_s: float = 2.0
    """Seconds in which a connection must come about."""

    max_inflight: int = 256
    """Requests at once for one version, and connections; more wait for none and are refused as exhausted."""

    failures: int = 3
    """Faulty answers in a row after which the sealed probes decide whether it stays in service."""

    check_interval_s: float = 5.0
    """Seconds between two looks at its answer to the smallest sealed probe; 0 never looks."""

    check_timeout_s: float = 2.0
    """Seconds in which such an answer must come; two late ones in a row take it out of service."""

    ca_file: str = ""
    """Certificates that `https` and `grpcs` trust; empty trusts those of the system."""

    def __post_init__(self) -> None:
        for name, least in _LEAST.items():
            if not getattr(self, name) >= least:
                raise ValueError(f"{name} is {getattr(self, name)}; give at least {least:g}")

    @property
    def scheme(self) -> str:
        """How it is spoken to."""
        return urlsplit(self.url).scheme

    @property
    def host(self) -> str:
        """Host name or address."""
        return str(urlsplit(self.url).hostname)

    @property
    def port(self) -> int:
        """Port, the scheme's own if the URL has none."""
        return urlsplit(self.url).port or _PORTS[self.scheme]

    @property
    def path(self) -> str:
        """What stands before `/v2`, without a slash at its end."""
        return urlsplit(self.url).path.rstrip("/")


_LEAST: Mapping[str, float] = {
    "timeout_s": 0.01,
    "connect_timeout_s": 0.01,
    "max_inflight": 1,
    "failures": 1,
    "check_interval_s": 0,
    "check_timeout_s": 0.01,
}


@dataclass(frozen=True)
class UpstreamTable:
    """Who computes what.

    Attributes:
        upstreams: By name.
        models: By model (or `*`), by version (or 0 for all others): names of upstreams; none: computed here.
    """

    upstreams: Mapping[str, Upstream] = field(default_factory=dict)
    models: Mapping[str, Mapping[int, tuple[str, ...]]] = field(default_factory=dict)

    def of(self, model: str, version: int) -> tuple[Upstream, ...]:
        """The upstreams of one version; empty if it is computed here."""
        for name in (model, ANY):
            versions = self.models.get(name)
            if versions is not None:
                names = versions.get(version, versions.get(0, ()))
                return tuple(self.upstreams[each] for each in names)
        return ()


def load_upstreams(path: Path) -> UpstreamTable:
    """Read an upstreams file.

    Raises:
        UpstreamsInvalid: If it cannot be read or has faults: all of them, each with its path.
    """
    try:
        value = load_document(read_text(path), source=str(path))
    except RolloutInvalid as error:
        raise UpstreamsInvalid(error.source, error.faults) from error
    reader = _Reader()
    table = reader.table(value)
    if reader.faults or table is None:
        raise UpstreamsInvalid(str(path), reader.faults)
    return table


class _Reader:
    """Walks the document once and collects faults."""

    def __init__(self) -> None:
        self.faults: list[Fault] = []

    def _fault(self, text: str, path: str) -> None:
        self.faults.append(Fault(text, path))

    def table(self, value: object) -> UpstreamTable | None:
        known = ("schema", "upstreams", "models")
        document = self._mapping(value, "$", known)
        if document is None:
            return None
        for key in known:
            if key not in document:
                self._fault(f"'{key}' is missing", "$")
        if "schema" in document and document["schema"] != SCHEMA:
            self._fault(f"schema must be '{SCHEMA}', got {_shown(document['schema'])}", "$.schema")
        upstreams = self._upstreams(document.get("upstreams", {}))
        models = self._models(document.get("models", {}), upstreams)
        return UpstreamTable(upstreams, models)

    def _mapping(self, value: object, path: str, known: Iterable[str] = ()) -> dict[str, object] | None:
        if not isinstance(value, dict):
            self._fault(f"must be a mapping, got {_shown(value)}", path)
            return None
        known = tuple(known)
        for key in value:
            if known and key not in known:
                self._fault(f"unknown key {_shown(key)}; {nearest_hint(str(key), known)}", path)
        return {str(key): item for key, item in value.items()}

    def _upstreams(self, value: object) -> dict[str, Upstream]:
        found = {}
        for name, item in (self._mapping(value, "$.upstreams") or {}).items():
            path = f"$.upstreams.{name}"
            if name == EMBEDDED or not _NAME.fullmatch(name):
                self._fault(
                    f"{_shown(name)} is no name for an upstream; give letters, digits, '.', '_', '-'", path
                )
            upstream = self._upstream(name, item, path)
            if upstream is not None:
                found[name] = upstream
        return found

    def _upstream(self, name: str, value: object, path: str) -> Upstream | None:
        types = {each.name: str(each.type) for each in fields(Upstream) if each.name != "name"}
        document = self._mapping(value, path, types)
        if document is None:
            return None
        before = len(self.faults)
        if not self._url_is_right(document.get("url"), f"{path}.url"):
            return None
        given = {k: self._typed(v, types[k], f"{path}.{k}") for k, v in document.items() if k in types}
        if len(self.faults) > before:
            return None
        try:
            return Upstream(name, **given)  # type: ignore[arg-type]
        except ValueError as error:
            self._fault(str(error), path)
            return None

    def _typed(self, value: object, wanted: str, path: str) -> object:
        is_number = isinstance(value, (int, Decimal)) and not isinstance(value, bool)
        if wanted == "str" and isinstance(value, str):
            return value
        if wanted == "float" and is_number:
            return float(str(value))
        if wanted == "int" and is_number and isinstance(value, int):
            return value
        words = {"str": "text", "float": "a number", "int": "a whole number"}
        self._fault(f"must be {words[wanted]}, got {_shown(value)}", path)
        return None

    def _url_is_right(self, value: object, path: str) -> bool:
        expected = "expected http://, https://, grpc:// or grpcs:// with a host and a port"
        try:
            parts = urlsplit(value if isinstance(value, str) else "")
            right = parts.scheme in _PORTS and bool(parts.hostname) and (parts.port is None or parts.port > 0)
        except ValueError:
            right = False
        if not right:
            self._fault(f"url is {_shown(value)}; {expected}", path)
            return False
        if (
            parts.query
            or parts.fragment
            or parts.username is not None
            or (parts.path.strip("/") and parts.scheme.startswith("grpc"))
        ):
            self._fault(f"url is {_shown(value)}; {expected} and nothing else", path)
            return False
        return True

    def _models(
        self, value: object, upstreams: Mapping[str, Upstream]
    ) -> dict[str, dict[int, tuple[str, ...]]]:
        found = {}
        for model, item in (self._mapping(value, "$.models") or {}).items():
            path = f"$.models.{model}"
            versions = self._mapping(item, path)
            if versions is not None:
                found[model] = {
                    self._version(version, f"{path}.{version}"): self._names(
                        names, f"{path}.{version}", upstreams
                    )
                    for version, names in versions.items()
                }
        return found

    def _version(self, text: str, path: str) -> int:
        if text == ANY or not _VERSION.fullmatch(text):
            if text != ANY:
                self._fault(f"{_shown(text)} is no version; give a whole number from 1, or '*'", path)
            return 0
        return int(text)

    def _names(self, value: object, path: str, upstreams: Mapping[str, Upstream]) -> tuple[str, ...]:
        if value == EMBEDDED:
            return ()
        if not isinstance(value, list) or not value:
            self._fault(f"must be '{EMBEDDED}' or a list of upstreams, got {_shown(value)}", path)
            return ()
        for name in value:
            if name not in upstreams:
                hint = nearest_hint(str(name), upstreams) if upstreams else "there are none"
                self._fault(f"there is no upstream {_shown(name)}; {hint}", path)
        if len(set(map(str, value))) != len(value):
            self._fault("names an upstream twice", path)
        return tuple(map(str, value))


def _shown(value: object) -> str:
    if value is None:
        return "nothing"
    text = str(value)
    return f"'{text[:60]}'" if isinstance(value, str) else text[:60]
