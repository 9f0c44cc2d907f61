"""The words of a rollout: versions, weights, matches, routes, the sticky key. No file format, no wire format."""

from __future__ import annotations

import enum
from collections.abc import Iterator
from dataclasses import dataclass, replace
from decimal import Decimal

BUCKETS = 10_000
"""How finely requests are told apart; one bucket is one basis point of the traffic."""


class MatchKind(enum.Enum):
    """How the value of a header is compared; the value is the word in a rollout file."""

    EXACT = "exact"
    PREFIX = "prefix"
    REGEX = "regex"
    PRESENT = "present"


class Topology(enum.Enum):
    """Who decides the version when a mesh stands in front; the value is the word in a rollout file."""

    GATEWAY_HEADER = "gateway-header"
    """The gateway stamps the bucket into a header and the mesh matches it: sticky."""

    DEPLOYMENT_PER_VERSION = "deployment-per-version"
    """The mesh splits by plain weights over the pods of each version: not sticky."""


class KeySource(enum.Enum):
    """Where the key that pins a user to a version is read; the value is the word in a rollout file."""

    HEADER = "header"
    """An HTTP header, or the gRPC metadata entry of the same name."""

    PARAMETER = "parameter"
    """A request parameter of the v2 inference protocol."""


@dataclass(frozen=True, slots=True)
class StickyKey:
    """What a request is recognised by.

    Attributes:
        source: Where the key stands.
        name: Its name; lower case for headers, exact for parameters.
    """

    source: KeySource
    name: str

    def __str__(self) -> str:
        return f"{self.source.value} '{self.name}'"


@dataclass(frozen=True, slots=True)
class HeaderMatch:
    """One condition on one header.

    Attributes:
        name: The header's name in lower case; names are compared without regard to case.
        kind: How the value is compared.
        value: What it is compared with, case-sensitive; a regex must fit the whole value. Empty for PRESENT.
    """

    name: str
    kind: MatchKind
    value: str = ""

    def __str__(self) -> str:
        if self.kind is MatchKind.PRESENT:
            return f"{self.name} is present"
        return f"{self.name} {self.kind.value} {self.value!r}"


@dataclass(frozen=True, slots=True)
class Match:
    """Conditions that must all hold; sorted by header name, so that equal matches compare equal."""

    headers: tuple[HeaderMatch, ...]

    def __str__(self) -> str:
        return " and ".join(map(str, self.headers))


@dataclass(frozen=True, slots=True)
class Weight:
    """The share of one version.

    Attributes:
        version: The model version.
        basis_points: Its share, 0 to 10,000.
    """

    version: int
    basis_points: int

    @property
    def percent(self) -> str:
        """The share in percent, exact, with at most two decimals and no trailing zeros."""
        return percent_text(self.basis_points)


@dataclass(frozen=True, slots=True)
class Route:
    """Which requests, and how they are split.

    Attributes:
        name: The name that answers and counters carry; unique in a rollout.
        matches: A request fits when any of these does; empty for the catch-all.
        weights: Shares that sum to 10,000 basis points, candidates in listed order, stable last.
    """

    name: str
    matches: tuple[Match, ...]
    weights: tuple[Weight, ...]

    @property
    def is_catch_all(self) -> bool:
        """Whether every request fits."""
        return not self.matches


@dataclass(frozen=True, slots=True)
class Rollout:
    """Which versions of one model get which requests.

    Attributes:
        model: The model's name in the repository.
        stable: The version that a roll-back returns to.
        routes: In order, first fit wins; the last one is the only catch-all.
        sticky: What a request is recognised by, or None where every request is drawn at random.
        topology: Who decides when a mesh stands in front, or None where none was named.
    """

    model: str
    stable: int
    routes: tuple[Route, ...]
    sticky: StickyKey | None = None
    topology: Topology | None = None

    @property
    def versions(self) -> tuple[int, ...]:
        """Every version named, in ascending order, stable included."""
        return tuple(sorted({self.stable} | {w.version for w in self._weights()}))

    @property
    def candidates(self) -> tuple[int, ...]:
        """The versions named in weights other than the stable one, in ascending order."""
        return tuple(v for v in self.versions if v != self.stable)

    @property
    def all_on_stable(self) -> bool:
        """Whether no request at all can reach another version than the stable one."""
        return all(w.version == self.stable for w in self._weights() if w.basis_points)

    def _weights(self) -> Iterator[Weight]:
        for route in self.routes:
            yield from route.weights

    def all_to(self, version: int) -> Rollout:
        """The rollout in which `version` is stable and answers every request; key and topology stay."""
        everything = Route("default", (), (Weight(version, BUCKETS),))
        return replace(self, stable=version, routes=(everything,))


def percent_text(basis_points: int) -> str:
    """Basis points as percent, exact: 3333 -> "33.33", 1000 -> "10"."""
    whole, rest = divmod(basis_points, 100)
    return str(whole) if not rest else f"{whole}.{rest:02d}".rstrip("0")


def basis_points_from_percent(percent: int | Decimal) -> int:
    """Percent as basis points, by exact decimal arithmetic.

    Raises:
        ValueError: If it is not a number from 0 to 100 with at most two decimals; says which.
    """
    value = Decimal(percent)
    if not value.is_finite() or not 0 <= value <= 100:
        raise ValueError("must be a number from 0 to 100")
    rounded = value.quantize(Decimal("0.01"))
    if rounded != value:  # Decimal compares exactly, whatever the context's precision
        raise ValueError("has more than two decimals")
    return int(rounded.scaleb(2))
