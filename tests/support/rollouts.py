"""Rollouts for tests: short texts, and hypothesis strategies over everything a rollout can say."""

from __future__ import annotations

from hypothesis import strategies as st

from paritygate.mesh.config import parse_rollout
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
)

HEADERS = ("x-tester", "x-plan", "accept-language", "cookie")
VALUES = ("a", "team-a", "Team-A", "pro", "de-CH", "group=insider; b=2", "ü")
PATTERNS = ("a", "team-.*", "(?i)team-a", ".*insider.*", "[a-z]+")


def rollout(
    weights: str = "{1: 90, 2: 10}",
    *,
    stable: int = 1,
    sticky: str = "{header: x-user}",
    topology: str = "",
    routes: str = "",
    model: str = "digits",
) -> Rollout:
    """A rollout with one catch-all route, and what else the arguments say, in the words of the file."""
    lines = [f"schema: paritygate.rollout/v1\nmodel: {model}\nstable: {stable}"]
    if sticky:
        lines.append(f"sticky: {sticky}")
    if topology:
        lines.append(f"topology: {topology}")
    lines.append(f"routes: [{routes}{{weights: {weights}}}]")
    return parse_rollout("\n".join(lines))


def conditions() -> st.SearchStrategy[HeaderMatch]:
    """One condition on one of a few headers, so that requests often fit."""
    name = st.sampled_from(HEADERS)
    return st.one_of(
        st.builds(HeaderMatch, name, st.just(MatchKind.EXACT), st.sampled_from(VALUES)),
        st.builds(
            HeaderMatch, name, st.just(MatchKind.PREFIX), st.sampled_from(("a", "team", "T", "group="))
        ),
        st.builds(HeaderMatch, name, st.just(MatchKind.REGEX), st.sampled_from(PATTERNS)),
        st.builds(HeaderMatch, name, st.just(MatchKind.PRESENT)),
    )


def matches() -> st.SearchStrategy[Match]:
    """One to three conditions on different headers."""
    several = st.lists(conditions(), min_size=1, max_size=3, unique_by=lambda header: header.name)
    return several.map(lambda found: Match(tuple(sorted(found, key=lambda header: header.name))))


@st.composite
def weights(draw: st.DrawFn, stable: int, unit: int) -> tuple[Weight, ...]:
    """Shares in multiples of `unit` basis points that sum to 10,000, in routing order; some may be 0."""
    versions = draw(st.lists(st.integers(1, 9), min_size=1, max_size=4, unique=True))
    steps = BUCKETS // unit
    cuts = sorted(draw(st.integers(0, steps)) for _ in versions[1:])
    shares = [high - low for low, high in zip([0, *cuts], [*cuts, steps], strict=True)]
    found = [Weight(version, share * unit) for version, share in zip(versions, shares, strict=True)]
    return tuple(sorted(found, key=lambda weight: weight.version == stable))


@st.composite
def rollouts(draw: st.DrawFn, topology: Topology | None = None) -> Rollout:
    """Any rollout that a file can say; for `deployment-per-version` one that Istio can say, too."""
    stable = draw(st.integers(1, 9))
    per_version = topology is Topology.DEPLOYMENT_PER_VERSION
    unit = 100 if per_version else 1
    blocks = draw(st.lists(matches(), max_size=5, unique=True))
    routes, index = [], 0
    while blocks:
        count = draw(st.integers(1, len(blocks)))
        routes.append(Route(f"route-{index}", tuple(blocks[:count]), draw(weights(stable, unit))))
        blocks, index = blocks[count:], index + 1
    routes.append(Route("default", (), draw(weights(stable, unit))))
    keys = (
        [None]
        if per_version
        else [None, StickyKey(KeySource.HEADER, "x-user"), StickyKey(KeySource.PARAMETER, "u")]
    )
    return Rollout("digits", stable, tuple(routes), draw(st.sampled_from(keys)), topology)


def request_headers() -> st.SearchStrategy[dict[str, str]]:
    """Headers as a server decodes them, latin-1."""
    values = st.sampled_from([*VALUES, "", "other", "insider"]).map(
        lambda v: v.encode("utf-8").decode("latin-1")
    )
    user = st.integers(0, 10**9).map(lambda n: f"user-{n}")
    plain = st.dictionaries(st.sampled_from(HEADERS), values, max_size=3)
    return st.tuples(plain, st.none() | user).map(
        lambda p: p[0] if p[1] is None else {**p[0], "x-user": p[1]}
    )
