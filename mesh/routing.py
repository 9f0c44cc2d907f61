"""Which version answers a request: one pure function, so that the same facts always get the same answer.

A request falls into one of 10,000 buckets: `xxh64(key, seed 0) % 10000`. A route lays its versions out over the
buckets, candidates first in listed order and stable last, so that growing the candidate's weight moves only the
boundary behind it: users join the candidate and nobody goes back. Without a key the caller's random `draw` is the
bucket, and the decision says so.

Source: Envoy's WeightedCluster.use_hash_policy chooses by the same formula (hash of a header policy modulo the
total weight, clusters in listed order), so an Envoy in front and the gateway agree about every user.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import xxhash

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
    percent_text,
)


@dataclass(frozen=True, slots=True)
class Facts:
    """What routing may know of a request.

    Attributes:
        headers: HTTP headers or gRPC metadata by lower-case name; values decoded as latin-1, byte for byte, and
            several values of one name joined by commas.
        parameters: Request parameters of the v2 protocol by name.
        draw: A random number from 0 to 9999, used where the request carries no key.
    """

    headers: Mapping[str, str] = field(default_factory=dict)
    parameters: Mapping[str, object] = field(default_factory=dict)
    draw: int = 0


@dataclass(frozen=True, slots=True)
class Decision:
    """Which version answers, and why.

    Attributes:
        version: The version that answers.
        rule: The name of the route that took the request.
        bucket: 0 to 9999, from the key or from the draw.
        keyed: Whether the bucket comes from the request's key, so that the same user gets it again.
        missing: Why the bucket was drawn at random; empty when keyed.
        share: Basis points of the route that the version has.
    """

    version: int
    rule: str
    bucket: int
    keyed: bool
    missing: str
    share: int

    @property
    def reason(self) -> str:
        """One sentence for people: the rule, the bucket and where it came from, the version's share."""
        origin = "of the key" if self.keyed else f"drawn at random ({self.missing})"
        return (
            f"route '{self.rule}': bucket {self.bucket:04d} {origin} lies in the {percent_text(self.share)} % "
            f"of version {self.version}"
        )


class RouteTable:
    """A rollout made ready for many requests; immutable, so threads may share it.

    Attributes:
        rollout: What it was compiled from.
    """

    __slots__ = ("_routes", "rollout")

    def __init__(self, rollout: Rollout) -> None:
        self.rollout = rollout
        self._routes = tuple(_CompiledRoute(route) for route in rollout.routes)

    def _first_fit(self, headers: Mapping[str, str]) -> _CompiledRoute:
        for route in self._routes:
            if route.fits(headers):
                return route
        raise AssertionError("the last route of a rollout takes every request")  # config.py keeps this true


def compile_table(rollout: Rollout) -> RouteTable:
    """Make a rollout ready for `choose`.

    Raises:
        ValueError: If a regex is not RE2; rollouts that were read from a file have been checked before.
    """
    return RouteTable(rollout)


def choose(table: RouteTable, facts: Facts) -> Decision:
    """Choose the version that answers; pure.

    Args:
        table: From `compile_table`.
        facts: What is known of the request.

    Raises:
        ValueError: If `facts.draw` is needed and not from 0 to 9999.
    """
    route = table._first_fit(facts.headers)
    key, missing = sticky_key(table.rollout.sticky, facts)
    bucket = bucket_of(key) if key is not None else _checked_draw(facts.draw)
    version, share = route.pick(bucket)
    return Decision(version, route.name, bucket, key is not None, missing, share)


def bucket_of(key: bytes) -> int:
    """The bucket of a key, 0 to 9999."""
    return xxhash.xxh64_intdigest(key) % BUCKETS


def bucket_text(bucket: int) -> str:
    """The bucket as the header `x-pg-bucket` carries it: four digits, so that a mesh can match it by its text."""
    return f"{bucket:04d}"


def header_fits(condition: HeaderMatch, headers: Mapping[str, str]) -> bool:
    """Whether one condition holds; `choose` does the same with compiled conditions."""
    return _CompiledCondition(condition).fits(headers)


def sticky_key(sticky: StickyKey | None, facts: Facts) -> tuple[bytes | None, str]:
    """The bytes that pin this request to a bucket, or None and why there are none.

    A key that is there and empty is a key, as it is for Envoy: all who send it share one bucket.
    """
    if sticky is None:
        return None, "the rollout names no sticky key"
    if sticky.source is KeySource.HEADER:
        header = facts.headers.get(sticky.name)
        return (None, f"no {sticky} in the request") if header is None else (wire_bytes(header), "")
    value = facts.parameters.get(sticky.name)
    if isinstance(value, str):
        return value.encode("utf-8", "surrogatepass"), ""
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value).encode("ascii"), ""
    if value is None:
        return None, f"no {sticky} in the request"
    return None, f"{sticky} is a {type(value).__name__}, and only text and whole numbers are keys"


def wire_bytes(header: str) -> bytes:
    """The bytes of a header's value as they travelled: latin-1, or UTF-8 for text that no wire carried so."""
    try:
        return header.encode("latin-1")
    except UnicodeEncodeError:
        return header.encode("utf-8", "surrogatepass")


def _checked_draw(draw: int) -> int:
    if not 0 <= draw < BUCKETS:
        raise ValueError(f"draw must be a whole number from 0 to {BUCKETS - 1}, got {draw}")
    return draw


class _CompiledRoute:
    __slots__ = ("_bounds", "_matches", "name")

    def __init__(self, route: Route) -> None:
        self.name = route.name
        self._matches = tuple(_CompiledMatch(match) for match in route.matches)
        bound, bounds = 0, []
        for weight in route.weights:
            bound += weight.basis_points
            bounds.append((bound, weight.version, weight.basis_points))
        self._bounds = tuple(bounds)

    def fits(self, headers: Mapping[str, str]) -> bool:
        return not self._matches or any(match.fits(headers) for match in self._matches)

    def pick(self, bucket: int) -> tuple[int, int]:
        for bound, version, share in self._bounds:
            if bucket < bound:
                return version, share
        raise AssertionError("the weights of a route sum to 10,000")  # config.py keeps this true


class _CompiledMatch:
    __slots__ = ("_conditions",)

    def __init__(self, match: Match) -> None:
        self._conditions = tuple(_CompiledCondition(header) for header in match.headers)

    def fits(self, headers: Mapping[str, str]) -> bool:
        return all(condition.fits(headers) for condition in self._conditions)


class _CompiledCondition:
    __slots__ = ("_kind", "_name", "_pattern", "_value")

    def __init__(self, header: HeaderMatch) -> None:
        self._name, self._kind = header.name, header.kind
        self._value = header.value.encode("utf-8")
        self._pattern = Pattern(header.value) if header.kind is MatchKind.REGEX else None

    def fits(self, headers: Mapping[str, str]) -> bool:
        text = headers.get(self._name)
        if text is None:
            return False
        if self._kind is MatchKind.PRESENT:
            return True
        value = wire_bytes(text)
        if self._pattern is not None:
            return self._pattern.fits(value)
        return value == self._value if self._kind is MatchKind.EXACT else value.startswith(self._value)
