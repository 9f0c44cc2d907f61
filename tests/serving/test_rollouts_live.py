"""Rollouts in force in a running gateway: shares, stickiness, acknowledgement, and what never happens."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import grpc
import numpy as np
import pytest
from tritonclient.grpc import service_pb2, service_pb2_grpc

from paritygate.converter.bundle import Bundle
from paritygate.mesh.actions import apply_rollout, promote, rollback
from paritygate.mesh.config import parse_rollout
from paritygate.mesh.routing import Facts, choose, compile_table
from paritygate.mesh.state import FileStateStore
from paritygate.serving.publish import publish_bundle
from support.bundles import proven_bundle
from support.gateway import Gateway, running_gateway

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


@pytest.fixture
def store(tmp_path: Path) -> FileStateStore:
    return FileStateStore(tmp_path / "rollouts")


@pytest.fixture
def gateway(
    repository: Path, tmp_path: Path, store: FileStateStore, bundles: list[Bundle]
) -> Iterator[Gateway]:
    for bundle in bundles[:2]:
        publish_bundle(bundle.path, repository)
    options = ("--rollouts-dir", str(store.directory), "--rollout-poll-interval-s", "0.05")
    with running_gateway(repository, tmp_path / "gw", *options) as running:
        yield running


def version_over_http(gateway: Gateway, user: str) -> int:
    answer = gateway.infer("linear", ROW, x_user=user)
    assert answer.status == 200, answer.body
    return int(answer.headers["x-pg-model-version"])


def test_each_user_gets_the_version_that_the_pure_function_chooses_over_both_protocols(
    gateway: Gateway, store: FileStateStore
) -> None:
    rollout = parse_rollout(CANARY)
    outcome = apply_rollout(store, rollout, signatures=None, actor="test", wait_s=WAIT_S)
    assert outcome.acknowledged.ok
    assert len(outcome.acknowledged.live) == 1
    table = compile_table(rollout)
    message = service_pb2.ModelInferRequest(model_name="linear")
    message.inputs.add(name="x", datatype="FP32", shape=[1, 4])
    message.raw_input_contents.append(np.ones(4, np.float32).tobytes())
    chosen = Counter[int]()
    with grpc.insecure_channel(gateway.grpc) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        for number in range(60):
            user = f"user-{number}"
            decision = choose(table, Facts({"x-user": user}))
            answer = gateway.infer("linear", ROW, x_user=user)
            assert int(answer.headers["x-pg-model-version"]) == decision.version
            assert answer.headers["x-pg-rule"] == "everyone"
            assert answer.headers["x-pg-bucket"] == f"{decision.bucket:04d}"
            over_grpc = stub.ModelInfer(message, metadata=(("x-user", user),), timeout=30)
            assert int(over_grpc.model_version) == decision.version
            chosen[decision.version] += 1
    assert set(chosen) == {1, 2}


def test_header_match_and_named_version_bypass_the_split(gateway: Gateway, store: FileStateStore) -> None:
    apply_rollout(store, parse_rollout(CANARY), signatures=None, actor="test", wait_s=WAIT_S)
    matched = gateway.infer("linear", ROW, x_tester="yes")
    assert (matched.headers["x-pg-model-version"], matched.headers["x-pg-rule"]) == ("2", "testers")
    named = gateway.infer("linear", ROW, "1", x_tester="yes")
    assert (named.headers["x-pg-model-version"], named.headers["x-pg-rule"]) == ("1", "named")


def test_promote_and_rollback_are_in_force_when_they_return(gateway: Gateway, store: FileStateStore) -> None:
    apply_rollout(store, parse_rollout(CANARY), signatures=None, actor="test", wait_s=WAIT_S)
    assert promote(store, "linear", actor="test", wait_s=WAIT_S).acknowledged.ok
    assert {version_over_http(gateway, f"u{n}") for n in range(20)} == {2}
    assert rollback(store, "linear", actor="test", wait_s=WAIT_S).acknowledged.ok
    assert {version_over_http(gateway, f"u{n}") for n in range(20)} == {1}


def test_rollout_that_names_a_version_which_is_not_there_yet_waits_for_it(
    gateway: Gateway, store: FileStateStore, repository: Path, bundles: list[Bundle]
) -> None:
    early = CANARY.replace("2:", "3:")
    outcome = apply_rollout(store, parse_rollout(early), signatures=None, actor="test", wait_s=0.5)
    assert not outcome.acknowledged.ok
    assert outcome.acknowledged.missing == outcome.acknowledged.live
    assert {version_over_http(gateway, f"u{n}") for n in range(20)} == {1}
    publish_bundle(bundles[2].path, repository)
    assert store.wait_acknowledged(outcome.state.generation, WAIT_S).ok
    assert {version_over_http(gateway, f"u{n}") for n in range(40)} == {1, 3}


def test_version_that_a_rollout_names_stays_after_it_left_the_list(
    gateway: Gateway, store: FileStateStore, repository: Path
) -> None:
    from paritygate.serving.publish import ModelRepository

    apply_rollout(store, parse_rollout(CANARY), signatures=None, actor="test", wait_s=WAIT_S)
    config = repository / "linear" / "config.pbtxt"
    partial = config.with_name("config.partial")
    partial.write_text(ModelRepository(repository).load_config("linear").with_versions([1]).text)
    partial.replace(config)
    gateway.wait(lambda: "still in use" in gateway.index()["linear", "2"][1])
    assert {version_over_http(gateway, f"u{n}") for n in range(40)} == {1, 2}
    apply_rollout(
        store,
        parse_rollout(CANARY.replace("{2: 100}", "{1: 100}").replace("{1: 70, 2: 30}", "{1: 100}")),
        signatures=None,
        actor="test",
        wait_s=WAIT_S,
    )
    gateway.wait_state("linear", 2, "UNAVAILABLE")


def test_rollout_survives_a_restart_and_the_worker_withdraws(
    gateway: Gateway, store: FileStateStore, repository: Path, tmp_path: Path
) -> None:
    apply_rollout(store, parse_rollout(CANARY), signatures=None, actor="test", wait_s=WAIT_S)
    promote(store, "linear", actor="test", wait_s=WAIT_S)
    assert gateway.stop() == 0
    assert store.acknowledgement(store.generation()).live == ()
    with running_gateway(repository, tmp_path / "again", "--rollouts-dir", str(store.directory)) as again:
        assert version_over_http(again, "anyone") == 2


def test_damaged_state_leaves_what_is_in_force(gateway: Gateway, store: FileStateStore) -> None:
    apply_rollout(store, parse_rollout(CANARY), signatures=None, actor="test", wait_s=WAIT_S)
    log = store.directory / "log.jsonl"
    log.write_bytes(log.read_bytes() + b"not a line of ours\n")
    gateway.wait(lambda: "cannot be read" in gateway.log())
    assert {version_over_http(gateway, f"u{n}") for n in range(40)} == {1, 2}


def test_stream_and_sequence_keep_their_version(gateway: Gateway, store: FileStateStore) -> None:
    halves = CANARY.replace("{1: 70, 2: 30}", "{1: 50, 2: 50}")
    apply_rollout(store, parse_rollout(halves), signatures=None, actor="test", wait_s=WAIT_S)
    message = service_pb2.ModelInferRequest(model_name="linear")
    message.inputs.add(name="x", datatype="FP32", shape=[1, 4])
    message.raw_input_contents.append(np.ones(4, np.float32).tobytes())
    seen = set()
    with grpc.insecure_channel(gateway.grpc) as channel:
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


def test_no_request_fails_and_no_user_goes_back_while_weights_grow(
    gateway: Gateway, store: FileStateStore
) -> None:
    users = [f"user-{random.Random(7).random()}-{n}" for n in range(30)]
    on_candidate: set[str] = set()
    for percent in (0, 10, 50, 100):
        text = CANARY.replace("{1: 70, 2: 30}", f"{{1: {100 - percent}, 2: {percent}}}")
        apply_rollout(store, parse_rollout(text), signatures=None, actor="test", wait_s=WAIT_S)
        now = {user for user in users if version_over_http(gateway, user) == 2}
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


def test_gateway_without_rollouts_of_its_models_acknowledges_them(
    gateway: Gateway, store: FileStateStore
) -> None:
    """A store may hold rollouts of models that another gateway serves; they must not hold up this one."""
    foreign = CANARY.replace("model: linear", "model: elsewhere")
    began = time.monotonic()
    assert apply_rollout(
        store, parse_rollout(foreign), signatures=None, actor="test", wait_s=WAIT_S
    ).acknowledged.ok
    assert time.monotonic() - began < WAIT_S


def test_versions_keep_their_own_proof(gateway: Gateway, bundles: list[Bundle], tmp_path: Path) -> None:
    assert proven_bundle(tmp_path / "same", seed=0, num_probes=3).digest == bundles[0].digest
    for version in (1, 2):
        answer = gateway.infer("linear", ROW, str(version))
        assert answer.headers["x-pg-bundle"] == bundles[version - 1].digest
