"""Rollouts in force in a running gateway: shares, stickiness, acknowledgement, and what never happens."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from tritonclient.grpc import service_pb2, service_pb2_grpc

from paritygate.converter.bundle import Bundle
from paritygate.mesh.actions import Outcome, apply_rollout, promote, rollback
from paritygate.mesh.config import parse_rollout
from paritygate.mesh.routing import Facts, choose, compile_table
from paritygate.mesh.state import FileStateStore
from paritygate.mesh.types import Rollout
from paritygate.serving.publish import ModelRepository, publish_bundle
from support.gateway import Answer, Gateway, running_gateway

ROW = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [1.0, 2.0, 3.0, 4.0]}]}
WAIT_S = 10.0

CANARY = """
schema: paritygate.rollout/v1
model: linear
stable: 1
sticky: {header: x-user}
routes:
  - name: testers
    match: {headers: {x-tester: {exact: "yes"}}}
    weights: {2: 100}
  - name: everyone
    weights: {1: 70, 2: 30}
"""


@dataclass(frozen=True)
class Served:
    """A model of its own with two versions in a gateway that all tests share."""

    gateway: Gateway
    store: FileStateStore
    repository: Path
    model: str

    def rollout(self, text: str = CANARY) -> Rollout:
        return parse_rollout(text.replace("model: linear", f"model: {self.model}"))

    def apply(self, text: str = CANARY, wait_s: float = WAIT_S) -> Outcome:
        return apply_rollout(self.store, self.rollout(text), signatures=None, actor="test", wait_s=wait_s)

    def infer(self, version: str = "", **headers: str) -> Answer:
        return self.gateway.infer(self.model, ROW, version, **headers)

    def versions(self, num_users: int = 40) -> set[int]:
        """The versions that some users get."""
        return {version_over_http(self.gateway, self.model, f"u{n}") for n in range(num_users)}


@dataclass(frozen=True)
class Shared:
    """What all tests of this file use together."""

    gateway: Gateway
    store: FileStateStore
    repository: Path


def options(store: FileStateStore) -> tuple[str, ...]:
    return ("--rollouts-dir", str(store.directory), "--rollout-poll-interval-s", "0.05")


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shared]:
    root = tmp_path_factory.mktemp("rollouts")
    store, repository = FileStateStore(root / "state"), root / "repository"
    repository.mkdir()
    with running_gateway(repository, root / "gw", *options(store)) as gateway:
        yield Shared(gateway, store, repository)


@pytest.fixture
def served(shared: Shared, bundles: list[Bundle], request: pytest.FixtureRequest) -> Served:
    model = f"m{abs(hash(request.node.name))}"
    for bundle in bundles[:2]:
        publish_bundle(bundle.path, shared.repository, model_name=model)
    shared.gateway.wait_state(model, 2, "READY")
    return Served(shared.gateway, shared.store, shared.repository, model)


def version_over_http(gateway: Gateway, model: str, user: str) -> int:
    answer = gateway.infer(model, ROW, x_user=user)
    assert answer.status == 200, answer.body
    return int(answer.headers["x-pg-model-version"])


def message_for(model: str) -> Any:
    message = service_pb2.ModelInferRequest(model_name=model)
    message.inputs.add(name="x", datatype="FP32", shape=[1, 4])
    message.raw_input_contents.append(np.ones(4, np.float32).tobytes())
    return message


def test_each_user_gets_the_version_that_the_pure_function_chooses_over_both_protocols(
    served: Served,
) -> None:
    outcome = served.apply()
    assert outcome.acknowledgement.ok
    assert len(outcome.acknowledgement.live) == 1
    table = compile_table(served.rollout())
    chosen = Counter[int]()
    with grpc.insecure_channel(served.gateway.grpc) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        for number in range(60):
            user = f"user-{number}"
            decision = choose(table, Facts({"x-user": user}))
            answer = served.infer(x_user=user)
            assert int(answer.headers["x-pg-model-version"]) == decision.version
            assert answer.headers["x-pg-rule"] == "everyone"
            assert answer.headers["x-pg-bucket"] == f"{decision.bucket:04d}"
            over_grpc = stub.ModelInfer(message_for(served.model), metadata=(("x-user", user),), timeout=30)
            assert int(over_grpc.model_version) == decision.version
            chosen[decision.version] += 1
    assert set(chosen) == {1, 2}


def test_header_match_and_named_version_bypass_the_split(served: Served) -> None:
    served.apply()
    matched = served.infer(x_tester="yes")
    assert (matched.headers["x-pg-model-version"], matched.headers["x-pg-rule"]) == ("2", "testers")
    named = served.infer("1", x_tester="yes")
    assert (named.headers["x-pg-model-version"], named.headers["x-pg-rule"]) == ("1", "named")


def test_promote_and_rollback_are_in_force_when_they_return(served: Served) -> None:
    served.apply()
    assert promote(served.store, served.model, actor="test", wait_s=WAIT_S).acknowledgement.ok
    assert served.versions() == {2}
    assert rollback(served.store, served.model, actor="test", wait_s=WAIT_S).acknowledgement.ok
    assert served.versions() == {1}


def test_rollout_that_names_a_version_which_is_not_there_yet_waits_for_it(
    served: Served, bundles: list[Bundle]
) -> None:
    outcome = served.apply(CANARY.replace("2:", "3:"), wait_s=0.5)
    assert not outcome.acknowledgement.ok
    assert outcome.acknowledgement.missing == outcome.acknowledgement.live
    assert served.versions() == {1}
    publish_bundle(bundles[2].path, served.repository, model_name=served.model)
    assert served.store.wait_acknowledged(outcome.state.generation, WAIT_S).ok
    assert served.versions() == {1, 3}


def test_version_that_a_rollout_names_stays_after_it_left_the_list(served: Served) -> None:
    served.apply()
    config = served.repository / served.model / "config.pbtxt"
    partial = config.with_name("config.partial")
    partial.write_text(ModelRepository(served.repository).load_config(served.model).with_versions([1]).text)
    partial.replace(config)
    served.gateway.wait(lambda: "still in use" in served.gateway.index()[served.model, "2"][1])
    assert served.versions() == {1, 2}
    served.apply(CANARY.replace("{2: 100}", "{1: 100}").replace("{1: 70, 2: 30}", "{1: 100}"))
    served.gateway.wait_state(served.model, 2, "UNAVAILABLE")


def test_rollout_survives_a_restart_and_the_worker_withdraws(
    repository: Path, tmp_path: Path, bundles: list[Bundle]
) -> None:
    store = FileStateStore(tmp_path / "state")
    for bundle in bundles[:2]:
        publish_bundle(bundle.path, repository)
    with running_gateway(repository, tmp_path / "gw", *options(store)) as gateway:
        apply_rollout(store, parse_rollout(CANARY), signatures=None, actor="test", wait_s=WAIT_S)
        promote(store, "linear", actor="test", wait_s=WAIT_S)
        assert gateway.stop() == 0
    assert store.acknowledgement(store.generation()).live == ()
    with running_gateway(repository, tmp_path / "again", *options(store)) as again:
        assert version_over_http(again, "linear", "anyone") == 2
        log = store.directory / "log.jsonl"
        log.write_bytes(log.read_bytes() + b"not a line of ours\n")
        again.wait(lambda: "cannot be read" in again.log())
        # What is in force stays in force.
        assert version_over_http(again, "linear", "anyone") == 2


def test_stream_and_sequence_keep_their_version(served: Served) -> None:
    served.apply(CANARY.replace("{1: 70, 2: 30}", "{1: 50, 2: 50}"))
    message = message_for(served.model)
    seen = set()
    with grpc.insecure_channel(served.gateway.grpc) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        for _ in range(12):
            answers = list(stub.ModelStreamInfer(iter([message] * 8), timeout=30))
            versions = {answer.infer_response.model_version for answer in answers}
            assert len(versions) == 1
            seen |= versions
        for sequence in range(1, 13):
            message.parameters["sequence_id"].uint64_param = sequence
            versions = {stub.ModelInfer(message, timeout=30).model_version for _ in range(8)}
            assert len(versions) == 1
            seen |= versions
    # Without a key each stream draws anew: that all 24 fell alike has a chance of 1 in 8 million.
    assert seen == {"1", "2"}


def test_no_request_fails_and_no_user_goes_back_while_weights_grow(served: Served) -> None:
    users = [f"user-{number}" for number in range(30)]
    on_candidate: set[str] = set()
    for percent in (0, 10, 50, 100):
        served.apply(CANARY.replace("{1: 70, 2: 30}", f"{{1: {100 - percent}, 2: {percent}}}"))
        now = {user for user in users if version_over_http(served.gateway, served.model, user) == 2}
        assert on_candidate <= now
        on_candidate = now
    assert on_candidate == set(users)


def test_reserved_headers_are_stripped_where_the_settings_say_so(
    repository: Path, tmp_path: Path, bundles: list[Bundle]
) -> None:
    publish_bundle(bundles[0].path, repository)
    with running_gateway(repository, tmp_path / "gw", "--reserved-headers", "strip") as gateway:
        answer = gateway.infer("linear", ROW, x_pg_model_version="9")
        assert (answer.status, answer.headers["x-pg-model-version"]) == (200, "1")


def test_rollouts_of_models_that_are_not_served_here_hold_up_nothing(shared: Shared) -> None:
    """A store may hold rollouts of models that another gateway serves."""
    foreign = parse_rollout(CANARY.replace("model: linear", "model: elsewhere"))
    outcome = apply_rollout(shared.store, foreign, signatures=None, actor="test", wait_s=WAIT_S)
    assert outcome.acknowledgement.ok


def test_versions_keep_their_own_proof(served: Served, bundles: list[Bundle]) -> None:
    for version in (1, 2):
        assert served.infer(str(version)).headers["x-pg-bundle"] == bundles[version - 1].digest
