"""What every dialect owes, run over the registry: a new dialect is tested the moment its line stands.

A dialect reads back what it writes, and a mesh that follows the written form chooses as `routing.choose` chooses.
"""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st

from paritygate.mesh.dialects import DIALECTS, get_dialect, render_text
from paritygate.mesh.dialects.base import Dialect
from paritygate.mesh.errors import CannotExpress, UnknownDialect
from paritygate.mesh.routing import Facts, choose, compile_table
from paritygate.mesh.types import BUCKETS, Rollout, Topology
from paritygate.mesh.yaml_text import load_documents
from support.rollouts import HEADERS, VALUES, request_headers, rollout, rollouts

ROUTES = (
    "{name: testers, match: [{headers: {x-tester: {exact: a}, x-plan: {present: true}}}, "
    "{headers: {x-tester: {regex: '(?i)team-a'}}}], weights: {3: 50, 2: 50}}, "
    "{name: insiders, match: {headers: {cookie: {regex: '.*group=insider.*'}}}, weights: {2: 100}}, "
    "{name: swiss, match: {headers: {accept-language: {prefix: de}}}, weights: {1: 0, 2: 25, 3: 75}}, "
)


@pytest.fixture(params=sorted(DIALECTS))
def dialect(request: pytest.FixtureRequest) -> Dialect[Any]:
    return get_dialect(request.param)


def test_an_unknown_dialect_lists_the_known_ones() -> None:
    with pytest.raises(UnknownDialect, match=r"there is no dialect 'istoi'; known are .*istio"):
        render_text(rollout(topology="gateway-header"), "istoi")


def test_the_registered_name_is_the_dialect_s_own(dialect: Dialect[Any]) -> None:
    assert type(dialect) is type(get_dialect(dialect.name))


@pytest.mark.parametrize("topology", list(Topology), ids=lambda t: t.value)
def test_ten_thousand_requests_go_where_routing_sends_them(dialect: Dialect[Any], topology: Topology) -> None:
    sticky = "{header: x-user}" if topology is Topology.GATEWAY_HEADER else ""
    weights = "{1: 61.27, 2: 33.33, 3: 5.4}" if sticky else "{1: 61, 2: 33, 3: 6}"
    found = rollout(weights, sticky=sticky, topology=topology.value, routes=ROUTES)
    version_for = dialect.interpreter(dialect.render(found))
    table = compile_table(found)
    chance = random.Random(11)
    versions = set()
    for number in range(10_000):
        headers = {name: chance.choice(VALUES) for name in HEADERS if chance.random() < 0.3}
        headers["x-user"] = f"user-{number}"
        facts = Facts(headers, draw=chance.randrange(BUCKETS))
        decision = choose(table, facts)
        versions.add((decision.rule, decision.version))
        assert version_for(facts, decision.bucket) == decision.version, (facts, decision)
    assert len(versions) == 3 + 2 + 1 + 2  # every route and every version with a share was reached


@pytest.mark.parametrize("topology", list(Topology), ids=lambda t: t.value)
def test_any_rollout_is_chosen_alike_and_read_back(dialect: Dialect[Any], topology: Topology) -> None:
    @seed(5)
    @settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
    @given(
        rollouts(topology),
        st.lists(request_headers(), min_size=1, max_size=5),
        st.randoms(use_true_random=False),
    )
    def check(found: Rollout, requests: list[dict[str, str]], chance: random.Random) -> None:
        documents = dialect.render(found)
        assert dialect.read_back(documents) == found
        table, version_for = compile_table(found), dialect.interpreter(documents)
        for headers in requests:
            facts = Facts(headers, draw=chance.randrange(BUCKETS))
            decision = choose(table, facts)
            assert version_for(facts, decision.bucket) == decision.version

    check()


@pytest.mark.parametrize("topology", list(Topology), ids=lambda t: t.value)
def test_the_text_says_what_the_documents_say(dialect: Dialect[Any], topology: Topology) -> None:
    found = rollout("{1: 90, 2: 10}", sticky="", topology=topology.value, routes=ROUTES)
    assert load_documents(render_text(found, dialect.name), source="text") == dialect.render(found)


def test_a_rollout_without_topology_is_refused_with_the_path(dialect: Dialect[Any]) -> None:
    with pytest.raises(CannotExpress, match=r"topology is missing.*@ \$\.topology"):
        dialect.render(rollout())


def test_a_sticky_rollout_over_plain_weights_is_refused_with_the_path(dialect: Dialect[Any]) -> None:
    with pytest.raises(CannotExpress, match=r"users would not stay with a version.*@ \$\.sticky"):
        dialect.render(rollout(topology="deployment-per-version"))


def test_a_dialect_that_loses_something_is_caught(
    dialect: Dialect[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The check in the base class is itself tried: a renderer that writes another rollout must not pass."""
    found = rollout(topology="gateway-header")
    other = dialect.render(rollout("{1: 80, 2: 20}", topology="gateway-header"))
    monkeypatch.setattr(type(dialect), "_render", lambda self, rollout, target: other)
    with pytest.raises(AssertionError, match="does not read back what it rendered"):
        dialect.render(found)
