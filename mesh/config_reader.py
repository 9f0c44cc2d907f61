"""Checks the values of a rollout file and builds the rollout, collecting every fault with its path."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Mapping
from decimal import Decimal
from typing import Any, TypeVar

from paritygate.mesh.errors import Fault
from paritygate.mesh.patterns import Pattern
from paritygate.mesh.types import (
    BUCKETS,
    HeaderMatch,
    KeySource,
    Match,
    MatchKind,
    Rollout,
    Route,
    StickyKey,
    Topology,
    Weight,
    basis_points_from_percent,
    percent_text,
)
from paritygate.mesh.yaml_text import Value

SCHEMA = "paritygate.rollout/v1"
"""The schema name that a rollout file carries."""

RESERVED_PREFIX = "x-pg-"
"""Headers that the gateway itself writes; clients cannot send them, so a rule on one could never fit."""

MAX_ROUTES = 128
MAX_MATCHES = 64
MAX_HEADERS = 32
MAX_WEIGHTS = 64
MAX_VALUE_LENGTH = 4096
MAX_VERSION = 2**63 - 1
"""Largest version: Triton keeps versions in a signed 64-bit number."""

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,199}")
_ROUTE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
_TOKEN = re.compile(
    r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,256}"
)  # RFC 9110, 5.6.2: the characters of a header's name
_VERSION = re.compile(r"[1-9][0-9]{0,18}")
_PERCENT = re.compile(r"[0-9]{1,20}(\.[0-9]{1,20})?")
_CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")

_T = TypeVar("_T")


def nearest_hint(word: str, known: Iterable[str]) -> str:
    """What to say after an unknown word: the nearest known one, or all of them."""
    options = list(known)
    close = difflib.get_close_matches(word, options, n=1, cutoff=0.6)
    return f"did you mean '{close[0]}'?" if close else f"known are {', '.join(options)}"


class RolloutReader:
    """Walks the document once, collecting faults; a part with a fault is None and is not looked into again."""

    def __init__(self) -> None:
        self.faults: list[Fault] = []

    def _fault(self, message: str, path: str) -> None:
        self.faults.append(Fault(message, path))

    # --- the document -----------------------------------------------------------------------------

    def rollout(self, value: object) -> Rollout | None:
        """The rollout, or None where `faults` says why not."""
        known = ("schema", "model", "stable", "topology", "sticky", "routes")
        fields = self._mapping(value, "$", known, required=("schema", "model", "stable", "routes"))
        if fields is None:
            return None
        self._optional(fields, "schema", self._schema)
        model = self._optional(fields, "model", self._model)
        stable = self._optional(fields, "stable", self._version)
        topology = self._optional(fields, "topology", self._topology)
        sticky = self._optional(fields, "sticky", self._sticky)
        routes = self._optional(fields, "routes", lambda v, p: self._routes(v, p, stable))
        if self.faults or model is None or stable is None or routes is None:
            return None
        return Rollout(model, stable, routes, sticky, topology)

    def _optional(
        self, fields: Mapping[str, object], key: str, read: Callable[[object, str], _T | None]
    ) -> _T | None:
        return read(fields[key], f"$.{key}") if key in fields else None

    def _schema(self, value: object, path: str) -> None:
        if value != SCHEMA:
            self._fault(f"schema must be '{SCHEMA}', got {_shown(value)}", path)

    def _model(self, value: object, path: str) -> str | None:
        if isinstance(value, str) and _NAME.fullmatch(value):
            return value
        self._fault(f"model must be a name of letters, digits, '.', '_' and '-', got {_shown(value)}", path)
        return None

    def _topology(self, value: object, path: str) -> Topology | None:
        words = [t.value for t in Topology]
        if isinstance(value, str) and value in words:
            return Topology(value)
        hint = nearest_hint(value, words) if isinstance(value, str) else f"known are {', '.join(words)}"
        self._fault(f"topology {_shown(value)} is not known; {hint}", path)
        return None

    def _sticky(self, value: object, path: str) -> StickyKey | None:
        fields = self._mapping(value, path, [s.value for s in KeySource])
        if fields is None:
            return None
        if len(fields) != 1:
            self._fault("sticky must name exactly one of header and parameter", path)
            return None
        word, name = next(iter(fields.items()))
        if word == KeySource.HEADER.value:
            lower = self._header_name(name, f"{path}.{word}")
            return StickyKey(KeySource.HEADER, lower) if lower else None
        if isinstance(name, str) and 0 < len(name) <= 256:
            return StickyKey(KeySource.PARAMETER, name)
        self._fault(f"parameter must be a name of 1 to 256 characters, got {_shown(name)}", f"{path}.{word}")
        return None

    # --- routes -----------------------------------------------------------------------------------

    def _routes(self, value: object, path: str, stable: int | None) -> tuple[Route, ...] | None:
        items = self._list(value, path, MAX_ROUTES)
        if items is None:
            return None
        last = len(items) - 1
        found = [self._route(v, f"{path}[{i}]", i, i == last, stable) for i, v in enumerate(items)]
        routes = tuple(route for route in found if route is not None)
        if len(routes) != len(items):
            return None
        self._check_order(routes, path)
        self._check_names(routes, path)
        return routes

    def _route(self, value: object, path: str, index: int, is_last: bool, stable: int | None) -> Route | None:
        fields = self._mapping(value, path, ("name", "match", "weights"), required=("weights",))
        if fields is None:
            return None
        default = "default" if is_last and "match" not in fields else f"route-{index}"
        name = self._route_name(fields.get("name", default), f"{path}.name")
        matches = self._matches(fields["match"], f"{path}.match") if "match" in fields else ()
        weights = None
        if "weights" in fields:
            weights = self._weights(fields["weights"], path, stable)
        if name is None or matches is None or weights is None:
            return None
        return Route(name, matches, weights)

    def _route_name(self, value: object, path: str) -> str | None:
        if isinstance(value, str) and _ROUTE_NAME.fullmatch(value):
            return value
        self._fault(
            f"name must be 1 to 63 letters, digits, '.', '_' or '-' (it travels in a header), got {_shown(value)}",
            path,
        )
        return None

    def _check_order(self, routes: tuple[Route, ...], path: str) -> None:
        for index, route in enumerate(routes[:-1]):
            if route.is_catch_all:
                self._fault(
                    f"a route without match takes every request, so {path}[{index + 1}] is never reached; "
                    "give it a match or put it last",
                    f"{path}[{index}]",
                )
        if not routes[-1].is_catch_all:
            self._fault(
                "the last route must take every request; add a route with weights and without match",
                f"{path}[{len(routes) - 1}].match",
            )
        self._check_repeats(routes, path)

    def _check_repeats(self, routes: tuple[Route, ...], path: str) -> None:
        seen: dict[Match, str] = {}
        for index, route in enumerate(routes):
            for match in route.matches:
                first = seen.setdefault(match, f"{path}[{index}]")
                if first != f"{path}[{index}]":
                    self._fault(
                        f"the match '{match}' is never reached; {first} takes it", f"{path}[{index}].match"
                    )

    def _check_names(self, routes: tuple[Route, ...], path: str) -> None:
        seen: dict[str, int] = {}
        for index, route in enumerate(routes):
            first = seen.setdefault(route.name, index)
            if first != index:
                self._fault(f"the name '{route.name}' is taken by {path}[{first}]", f"{path}[{index}].name")

    # --- matches ----------------------------------------------------------------------------------

    def _matches(self, value: object, path: str) -> tuple[Match, ...] | None:
        if isinstance(value, dict):
            match = self._match(value, path)
            return (match,) if match else None
        items = self._list(value, path, MAX_MATCHES)
        if items is None:
            return None
        found = [self._match(v, f"{path}[{i}]") for i, v in enumerate(items)]
        unique = dict.fromkeys(match for match in found if match is not None)
        return tuple(unique) if None not in found else None

    def _match(self, value: object, path: str) -> Match | None:
        fields = self._mapping(value, path, ("headers",), required=("headers",))
        if fields is None or "headers" not in fields:
            return None
        headers = fields["headers"]
        if not isinstance(headers, dict) or not 0 < len(headers) <= MAX_HEADERS:
            self._fault(
                f"headers must map 1 to {MAX_HEADERS} names to conditions, got {_shown(headers)}; "
                "leave match out for a route that takes every request",
                f"{path}.headers",
            )
            return None
        return self._conditions(headers, f"{path}.headers")

    def _conditions(self, headers: Mapping[Any, object], path: str) -> Match | None:
        found: dict[str, HeaderMatch] = {}
        before = len(self.faults)
        for key, value in headers.items():
            name = self._header_name(key, path)
            condition = self._condition(name, value, f"{path}.{key}") if name else None
            if condition and condition.name in found:
                self._fault(f"header '{condition.name}' is given twice; names know no case", f"{path}.{key}")
            elif condition:
                found[condition.name] = condition
        if len(self.faults) != before:
            return None
        return Match(tuple(found[name] for name in sorted(found)))

    def _header_name(self, value: object, path: str) -> str | None:
        if not isinstance(value, str) or not _TOKEN.fullmatch(value):
            self._fault(f"{_shown(value)} is not the name of a header", path)
            return None
        name = value.lower()
        if name.startswith(RESERVED_PREFIX):
            self._fault(
                f"headers {RESERVED_PREFIX}* are written by the gateway; '{name}' cannot be used", path
            )
            return None
        if name == "host":
            self._fault("the host is not a header in HTTP/2; one rollout is for all hosts of its model", path)
            return None
        return name

    def _condition(self, name: str, value: object, path: str) -> HeaderMatch | None:
        fields = self._mapping(value, path, [kind.value for kind in MatchKind])
        if fields is None:
            return None
        if len(fields) != 1:
            self._fault("give exactly one of exact, prefix, regex and present", path)
            return None
        word, operand = next(iter(fields.items()))
        kind = MatchKind(word)
        if not self._operand_is_right(kind, operand, f"{path}.{word}"):
            return None
        return HeaderMatch(name, kind, "" if kind is MatchKind.PRESENT else str(operand))

    def _operand_is_right(self, kind: MatchKind, operand: object, path: str) -> bool:
        before = len(self.faults)
        if kind is MatchKind.PRESENT:
            if operand is not True:
                self._fault(f"present must be true, got {_shown(operand)}; absence cannot be matched", path)
        elif not isinstance(operand, str):
            self._fault(f"{kind.value} must be text, got {_shown(operand)}; put it in quotes", path)
        elif not operand:
            self._fault(f"{kind.value} is empty; say 'present: true' for any value", path)
        elif len(operand) > MAX_VALUE_LENGTH or _CONTROL.search(operand) or operand != operand.strip(" \t"):
            self._fault(
                f"{kind.value} must be what a header can carry: at most {MAX_VALUE_LENGTH} characters, no control "
                "characters, no blanks at its ends",
                path,
            )
        elif kind is MatchKind.REGEX:
            self._check_pattern(operand, path)
        return len(self.faults) == before

    def _check_pattern(self, text: str, path: str) -> None:
        if not text.isascii():
            message = (
                f"regex '{text[:80]}' must be ASCII: meshes match bytes, and other characters are several"
            )
            self._fault(f"{message}; use exact or prefix for them", path)
            return
        try:
            Pattern(text)
        except ValueError as error:
            self._fault(f"regex '{text[:80]}' {error}", path)

    # --- weights ----------------------------------------------------------------------------------

    def _weights(self, value: object, route_path: str, stable: int | None) -> tuple[Weight, ...] | None:
        path = f"{route_path}.weights"
        if not isinstance(value, dict) or not 0 < len(value) <= MAX_WEIGHTS:
            self._fault(
                f"weights must map 1 to {MAX_WEIGHTS} versions to percents, got {_shown(value)}", path
            )
            return None
        found = [self._weight(key, percent, path) for key, percent in value.items()]
        weights = [weight for weight in found if weight is not None]
        if len(weights) != len(found):
            return None
        total = sum(weight.basis_points for weight in weights)
        if total != BUCKETS:
            self._fault(f"weights must sum to 100, got {percent_text(total)}", route_path)
            return None
        return tuple(
            sorted(weights, key=lambda weight: weight.version == stable)
        )  # stable sort: listed order stays

    def _weight(self, key: object, percent: object, path: str) -> Weight | None:
        version = self._version(key, path)
        try:
            points = basis_points_from_percent(_number(percent))
        except ValueError as error:
            self._fault(f"weight {_shown(percent)} {error}", f"{path}.{key}")
            return None
        return Weight(version, points) if version is not None else None

    def _version(self, value: object, path: str) -> int | None:
        is_text = isinstance(value, str) and _VERSION.fullmatch(value)
        if (is_text or (isinstance(value, int) and not isinstance(value, bool))) and (
            1 <= int(str(value)) <= MAX_VERSION
        ):
            return int(str(value))
        self._fault(f"a version must be a whole number from 1, got {_shown(value)}", path)
        return None

    # --- shapes -----------------------------------------------------------------------------------

    def _mapping(
        self, value: object, path: str, known: Iterable[str], required: Iterable[str] = ()
    ) -> dict[str, object] | None:
        known = tuple(known)
        if not isinstance(value, dict):
            self._fault(f"must be a mapping with {', '.join(known)}, got {_shown(value)}", path)
            return None
        for key in value:
            if key not in known:
                self._fault(f"unknown key '{_shown_key(key)}'; {nearest_hint(str(key), known)}", path)
        for key in required:
            if key not in value:
                self._fault(f"'{key}' is missing", path)
        return {key: value[key] for key in known if key in value}

    def _list(self, value: object, path: str, largest: int) -> list[Value] | None:
        if isinstance(value, list) and 0 < len(value) <= largest:
            return value
        got = f"a list of {len(value)}" if isinstance(value, list) else _shown(value)
        self._fault(f"must be a list of 1 to {largest} entries, got {got}", path)
        return None


def _number(value: object) -> Decimal | int:
    """A percent as an exact number; texts are read as if they were not quoted.

    Raises:
        ValueError: If it is not a number; the text continues "weight X ...".
    """
    if isinstance(value, float):  # only from callers that build values themselves: the shortest text is meant
        value = repr(value)
    if isinstance(value, str) and _PERCENT.fullmatch(value):
        return Decimal(value)
    if isinstance(value, int | Decimal) and not isinstance(value, bool):
        return value
    raise ValueError("must be a number from 0 to 100")


def _shown_key(key: object) -> str:
    return str(key)[:60]


def _shown(value: object) -> str:
    """A value as an error names it: short, and in the words of the file."""
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict | list):
        kind = "mapping" if isinstance(value, dict) else "list"
        return f"a {kind}" if value else f"an empty {kind}"
    text = str(value)
    shown = text if len(text) <= 60 else f"{text[:57]}..."
    return f"'{shown}'" if isinstance(value, str) else shown
