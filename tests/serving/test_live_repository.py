"""The gateway follows a repository: proof before readiness, new versions, broken ones, and versions that leave."""

from __future__ import annotations

import json
import shutil
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paritygate.converter.bundle import CERTIFICATE_FILE, Bundle
from paritygate.serving.publish import ModelRepository, publish_bundle
from support.bundles import linear_bundle, proven_bundle
from support.gateway import Gateway, running_gateway
from support.onnx_models import add_model, slow_model, write_config, write_model, write_version

ROW = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [1.0, 2.0, 3.0, 4.0]}]}


def publish(repository: Path, bundle: Bundle, **options: Any) -> int:
    return publish_bundle(bundle.path, repository, **options).version


def place(repository: Path, bundle: Bundle, version: int) -> None:
    """Put a bundle where a version belongs, past the publisher's gate."""
    shutil.copytree(bundle.path, repository / "linear" / str(version))


def list_versions(repository: Path, *versions: int) -> None:
    config = repository / "linear" / "config.pbtxt"
    partial = config.with_name("config.partial")
    partial.write_text(ModelRepository(repository).load_config("linear").with_versions(versions).text)
    partial.replace(config)


def forged(bundle: Bundle, proven: Bundle) -> Bundle:
    """Give a bundle the passing certificate of another one, rewritten to speak of its bytes."""
    certificate = json.loads((proven.path / CERTIFICATE_FILE).read_text())
    certificate["bundle_digest"] = bundle.digest
    target = bundle.path / CERTIFICATE_FILE
    target.parent.mkdir(exist_ok=True)
    target.write_text(json.dumps(certificate))
    return bundle


# --- proof before readiness ---


def test_proven_version_says_so(repository: Path, tmp_path: Path, bundles: list[Bundle]) -> None:
    publish(repository, bundles[0])
    with running_gateway(repository, tmp_path / "gw") as gateway:
        answer = gateway.infer("linear", ROW)
        assert answer.status == 200
        assert answer.headers["x-pg-proof"] == "proven"
        assert answer.headers["x-pg-bundle"] == bundles[0].digest
        assert answer.headers["x-pg-rule"] == "default"
        assert gateway.ask("GET", "/v2/health/ready").status == 200


def test_version_without_certificate_is_refused_and_the_index_says_why(
    repository: Path, tmp_path: Path
) -> None:
    publish(repository, linear_bundle(tmp_path / "b", num_probes=2), allow_unproven=True)
    with running_gateway(repository, tmp_path / "gw") as gateway:
        state, reason = gateway.index()["linear", "1"]
        assert state == "UNAVAILABLE"
        assert "carries no certificate" in reason
        assert "--allow-unproven" in reason
        answer = gateway.infer("linear", ROW)
        assert answer.status == 503
        assert "carries no certificate" in answer.error
        assert gateway.ask("GET", "/v2/health/ready").status == 400
        assert gateway.ask("GET", "/v2/health/live").status == 200


def test_version_without_certificate_is_served_as_unproven_if_allowed(
    repository: Path, tmp_path: Path
) -> None:
    publish(repository, linear_bundle(tmp_path / "b", num_probes=2), allow_unproven=True)
    with running_gateway(repository, tmp_path / "gw", "--allow-unproven") as gateway:
        assert gateway.infer("linear", ROW).headers["x-pg-proof"] == "unproven"


def test_changed_bytes_are_never_served(repository: Path, tmp_path: Path, bundles: list[Bundle]) -> None:
    publish(repository, bundles[0])
    model = repository / "linear" / "1" / "model.onnx"
    octets = bytearray(model.read_bytes())
    octets[-20] ^= 1
    model.write_bytes(octets)
    with running_gateway(repository, tmp_path / "gw", "--allow-unproven") as gateway:
        state, reason = gateway.index()["linear", "1"]
        assert state == "UNAVAILABLE"
        assert "model.onnx" in reason


def test_failing_certificate_is_refused_even_if_unproven_is_allowed(
    repository: Path, tmp_path: Path, bundles: list[Bundle]
) -> None:
    publish(repository, bundles[0])
    place(repository, proven_bundle(tmp_path / "bad", spoil=0.5, num_probes=2), 2)
    list_versions(repository, 1, 2)
    with running_gateway(repository, tmp_path / "gw", "--allow-unproven") as gateway:
        state, reason = gateway.index()["linear", "2"]
        assert state == "UNAVAILABLE"
        assert "its certificate says 'fail'" in reason


def test_numbers_that_differ_on_this_host_keep_the_old_version_serving(
    repository: Path, tmp_path: Path, bundles: list[Bundle]
) -> None:
    publish(repository, bundles[0])
    with running_gateway(repository, tmp_path / "gw") as gateway:
        wrong = forged(linear_bundle(tmp_path / "bad", spoil=0.5, num_probes=3), bundles[0])
        place(repository, wrong, 2)
        list_versions(repository, 1, 2)
        reason = gateway.wait_state("linear", 2, "UNAVAILABLE")
        assert "do not give the proven numbers on this host" in reason
        assert gateway.infer("linear", ROW).headers["x-pg-model-version"] == "1"
        assert gateway.infer("linear", ROW, "2").status == 503
        assert gateway.ask("GET", "/v2/health/ready").status == 200


def test_replaced_bytes_of_a_live_version_keep_the_old_ones_serving(
    repository: Path, tmp_path: Path, bundles: list[Bundle]
) -> None:
    publish(repository, bundles[0])
    with running_gateway(repository, tmp_path / "gw") as gateway:
        before = gateway.infer("linear", ROW).json["outputs"]
        (repository / "linear" / "1" / "model.onnx").write_bytes(bytes(10))
        gateway.wait(lambda: "model.onnx" in gateway.index()["linear", "1"][1])
        state, _ = gateway.index()["linear", "1"]
        assert state == "READY"
        assert gateway.infer("linear", ROW).json["outputs"] == before


# --- new versions, broken ones, versions that leave ---


def test_new_version_appears_without_restart_and_gets_no_traffic(
    repository: Path, tmp_path: Path, bundles: list[Bundle]
) -> None:
    publish(repository, bundles[0])
    with running_gateway(repository, tmp_path / "gw") as gateway:
        assert publish(repository, bundles[1]) == 2
        gateway.wait_state("linear", 2, "READY")
        answers = [gateway.infer("linear", ROW) for _ in range(20)]
        assert {answer.headers["x-pg-model-version"] for answer in answers} == {"1"}
        named = gateway.infer("linear", ROW, "2")
        assert named.headers["x-pg-rule"] == "named"
        assert named.headers["x-pg-bundle"] == bundles[1].digest
        assert named.json["outputs"] != answers[0].json["outputs"]
        metrics = gateway.ask("GET", "/metrics", port="metrics").body.decode()
        assert 'paritygate_routed_requests_total{model="linear",rule="named",version="2"} 1.0' in metrics


def test_first_version_stays_the_default_over_a_restart(
    repository: Path, tmp_path: Path, bundles: list[Bundle]
) -> None:
    publish(repository, bundles[0])
    publish(repository, bundles[1])
    for _ in range(2):
        with running_gateway(repository, tmp_path / "gw") as gateway:
            assert gateway.infer("linear", ROW).headers["x-pg-model-version"] == "1"


def test_default_version_latest_behaves_as_triton(
    repository: Path, tmp_path: Path, bundles: list[Bundle]
) -> None:
    publish(repository, bundles[0])
    with running_gateway(repository, tmp_path / "gw", "--default-version", "latest") as gateway:
        publish(repository, bundles[1])
        gateway.wait_state("linear", 2, "READY")
        answer = gateway.infer("linear", ROW)
        assert (answer.headers["x-pg-model-version"], answer.headers["x-pg-rule"]) == ("2", "latest")


def test_new_model_appears_without_restart(repository: Path, tmp_path: Path, bundles: list[Bundle]) -> None:
    with running_gateway(repository, tmp_path / "gw") as gateway:
        assert gateway.ask("GET", "/v2/health/ready").status == 200
        assert gateway.infer("linear", ROW).status == 404
        publish(repository, bundles[0])
        gateway.wait_state("linear", 1, "READY")
        assert gateway.infer("linear", ROW).status == 200


def test_missing_version_is_shown_by_number(repository: Path, tmp_path: Path) -> None:
    model = add_model(1.0)
    write_model(repository, "add", model, versions=[1, 4])
    with running_gateway(repository, tmp_path / "gw", "--allow-unproven") as gateway:
        assert gateway.index()["add", "1"][0] == "READY"
        state, reason = gateway.index()["add", "4"]
        assert state == "UNAVAILABLE"
        assert "no such folder" in reason


def test_broken_config_keeps_the_live_version_serving(repository: Path, tmp_path: Path) -> None:
    write_model(repository, "add", add_model(1.0))
    with running_gateway(repository, tmp_path / "gw", "--allow-unproven") as gateway:
        config = repository / "add" / "config.pbtxt"
        config.write_text(config.read_text() + "\nmax_batch_sizes: 4\n")
        gateway.wait(lambda: "max_batch_sizes" in gateway.index().get(("add", ""), ("", ""))[1])
        request = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1], "data": [1.0]}]}
        assert gateway.infer("add", request).json["outputs"][0]["data"] == [2.0]


SLOW = np.eye(256, dtype=np.float32)

LONG = 4000
"""Rounds of the slow model: seconds, so that all that is asked meanwhile is answered before its end."""


def slow_request() -> tuple[bytes, dict[str, str]]:
    tensor = {
        "name": "x",
        "datatype": "FP32",
        "shape": [256, 256],
        "parameters": {"binary_data_size": SLOW.nbytes},
    }
    head = json.dumps({"inputs": [tensor], "parameters": {"binary_data_output": True}}).encode()
    return head + SLOW.tobytes(), {"Inference-Header-Content-Length": str(len(head))}


def pending(gateway: Gateway) -> float:
    text = gateway.ask("GET", "/metrics", port="metrics").body.decode()
    (line,) = [line for line in text.splitlines() if line.startswith("paritygate_pending_runs ")]
    return float(line.split()[1])


class Asking(threading.Thread):
    """One slow request in flight."""

    def __init__(self, gateway: Gateway) -> None:
        super().__init__()
        self.gateway = gateway
        self.answer: Any = None
        self.start()

    def run(self) -> None:
        body, headers = slow_request()
        self.answer = self.gateway.ask("POST", "/v2/models/slow/infer", body, headers)


def test_version_that_leaves_the_list_finishes_what_it_is_doing(repository: Path, tmp_path: Path) -> None:
    model = slow_model(LONG)
    write_model(repository, "slow", model)
    with running_gateway(repository, tmp_path / "gw", "--allow-unproven") as gateway:
        asking = Asking(gateway)
        gateway.wait(lambda: pending(gateway) == 1.0)
        write_version(repository, "slow", 2, slow_model(1))
        write_config(repository, "slow", model, [2])
        gateway.wait_state("slow", 2, "READY")
        assert gateway.index()["slow", "1"][0] == "UNLOADING"
        body, headers = slow_request()
        assert (
            gateway.ask("POST", "/v2/models/slow/infer", body, headers).headers["x-pg-model-version"] == "2"
        )
        asking.join()
        assert asking.answer.status == 200
        assert asking.answer.headers["x-pg-model-version"] == "1"
        gateway.wait_state("slow", 1, "UNAVAILABLE")


def test_health_answers_while_models_run(repository: Path, tmp_path: Path) -> None:
    write_model(repository, "slow", slow_model(LONG))
    with running_gateway(
        repository, tmp_path / "gw", "--allow-unproven", "--inference-threads", "1"
    ) as gateway:
        asking = [Asking(gateway) for _ in range(3)]
        gateway.wait(lambda: pending(gateway) == 3.0)
        assert gateway.ask("GET", "/v2/health/live").status == 200
        assert pending(gateway) > 0
        for thread in asking:
            thread.join()
            assert thread.answer.status == 200


def test_full_queue_is_refused_and_says_when_to_try_again(repository: Path, tmp_path: Path) -> None:
    write_model(repository, "slow", slow_model(LONG))
    options = ("--allow-unproven", "--inference-threads", "1", "--max-queue", "1")
    with running_gateway(repository, tmp_path / "gw", *options) as gateway:
        asking = [Asking(gateway) for _ in range(2)]
        gateway.wait(lambda: pending(gateway) == 2.0)
        body, headers = slow_request()
        answer = gateway.ask("POST", "/v2/models/slow/infer", body, headers)
        assert answer.status == 429
        assert 1 <= int(answer.headers["retry-after"]) <= 60
        assert "2 requests are running or waiting" in answer.error
        for thread in asking:
            thread.join()
            assert thread.answer.status == 200


def test_client_that_goes_away_takes_its_waiting_request_along(repository: Path, tmp_path: Path) -> None:
    import socket

    write_model(repository, "slow", slow_model(LONG))
    with running_gateway(
        repository, tmp_path / "gw", "--allow-unproven", "--inference-threads", "1"
    ) as gateway:
        asking = Asking(gateway)
        gateway.wait(lambda: pending(gateway) == 1.0)
        body, headers = slow_request()
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        head = f"POST /v2/models/slow/infer HTTP/1.1\r\nhost: x\r\n{lines}content-length: {len(body)}\r\n\r\n"
        for _ in range(3):
            with socket.create_connection(("127.0.0.1", gateway.ports["http"])) as connection:
                connection.sendall(head.encode() + body)
                time.sleep(0.1)
        gateway.wait(lambda: pending(gateway) == 1.0)
        asking.join()
        assert asking.answer.status == 200
        stats = gateway.ask("GET", "/v2/models/slow/stats").json["model_stats"][0]
        assert stats["execution_count"] == 1
        assert stats["inference_stats"]["fail"]["count"] == 3


# --- load and unload ---


def test_admin_port_loads_and_unloads_whatever_the_mode(repository: Path, tmp_path: Path) -> None:
    write_model(repository, "add", add_model(1.0))
    with running_gateway(repository, tmp_path / "gw", "--allow-unproven") as gateway:
        assert gateway.ask("POST", "/v2/repository/models/add/unload", port="admin").status == 200
        assert gateway.index()["add", "1"] == ("UNAVAILABLE", "unloaded")
        time.sleep(0.5)
        assert gateway.ask("GET", "/v2/models/add/ready").status == 400
        assert gateway.ask("GET", "/v2/health/ready").status == 200
        assert gateway.ask("POST", "/v2/repository/models/add/load", port="admin").status == 200
        assert gateway.ask("GET", "/v2/models/add/ready").status == 200


def test_explicit_mode_loads_on_the_inference_ports(repository: Path, tmp_path: Path) -> None:
    import tritonclient.grpc as grpcclient
    import tritonclient.http as httpclient

    write_model(repository, "add", add_model(1.0))
    with running_gateway(
        repository, tmp_path / "gw", "--allow-unproven", "--model-control-mode", "explicit"
    ) as gateway:
        assert gateway.index() == {("add", ""): ("", "")}
        client = httpclient.InferenceServerClient(gateway.http)
        client.load_model("add")
        assert client.is_model_ready("add")
        client.unload_model("add")
        assert not client.is_model_ready("add")
        client.unload_model("never-heard-of")
        with pytest.raises(Exception, match="failed to load 'never-heard-of'"):
            client.load_model("never-heard-of")
        client.close()
        with grpcclient.InferenceServerClient(gateway.grpc) as other:
            other.load_model("add")
            assert other.is_model_ready("add")


def test_config_that_asks_for_more_than_there_is_is_refused(repository: Path, tmp_path: Path) -> None:
    extras = {
        "sequence_batching": "sequence_batching { }",
        "decoupled": "model_transaction_policy { decoupled: true }",
        "ensemble_scheduling": 'ensemble_scheduling { step [ { model_name: "a" } ] }',
        "batch_input": 'batch_input [ { kind: BATCH_ELEMENT_COUNT target_name: "b" } ]',
    }
    for name, extra in extras.items():
        write_model(repository, name, add_model(1.0), extra=extra)
    with running_gateway(repository, tmp_path / "gw", "--allow-unproven") as gateway:
        index = gateway.index()
        for name in extras:
            state, reason = index[name, "1"]
            assert state == "UNAVAILABLE"
            assert f"its config asks for {name}" in reason or f"its config has {name}" in reason


def test_many_publishes_under_load_fail_no_request(
    repository: Path, tmp_path: Path, bundles: list[Bundle]
) -> None:
    publish_under_load(repository, tmp_path, publishes=4, seconds=3.0, connections=4)


@pytest.mark.real
def test_twenty_publishes_in_a_minute_under_eight_connections_fail_no_request(
    repository: Path, tmp_path: Path
) -> None:
    publish_under_load(repository, tmp_path, publishes=20, seconds=60.0, connections=8)


def publish_under_load(
    repository: Path, tmp_path: Path, *, publishes: int, seconds: float, connections: int
) -> None:
    """Publish at an even pace while connections ask over both protocols."""
    import http.client

    import tritonclient.grpc as grpcclient

    made = [proven_bundle(tmp_path / f"p{i}", seed=100 + i, num_probes=2) for i in range(publishes + 1)]
    publish(repository, made[0])
    body = json.dumps(ROW).encode()
    failures: list[str] = []
    answered = [0] * connections
    stop = threading.Event()

    def ask_http(index: int, port: int) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        while not stop.is_set():
            connection.request("POST", "/v2/models/linear/infer", body)
            response = connection.getresponse()
            text = response.read()
            if response.status != 200 or response.getheader("x-pg-model-version") != "1":
                failures.append(f"{response.status} {text!r}")
            answered[index] += 1
            time.sleep(0.005)
        connection.close()

    def ask_grpc(index: int, address: str) -> None:
        tensor = grpcclient.InferInput("x", [1, 4], "FP32")
        tensor.set_data_from_numpy(np.ones((1, 4), np.float32))
        with grpcclient.InferenceServerClient(address) as client:
            while not stop.is_set():
                try:
                    client.infer("linear", [tensor])
                except grpcclient.InferenceServerException as error:
                    failures.append(str(error))
                answered[index] += 1
                time.sleep(0.005)

    with running_gateway(repository, tmp_path / "gw") as gateway:
        threads = [
            threading.Thread(target=ask_grpc, args=(i, gateway.grpc))
            if i % 4 == 3
            else threading.Thread(target=ask_http, args=(i, gateway.ports["http"]))
            for i in range(connections)
        ]
        for thread in threads:
            thread.start()
        began = time.monotonic()
        try:
            for count, bundle in enumerate(made[1:], 1):
                time.sleep(max(0.0, began + count * seconds / publishes - time.monotonic()))
                version = publish(repository, bundle)
                gateway.wait_state("linear", version, "READY")
        finally:
            stop.set()
            for thread in threads:
                thread.join()
        assert failures == []
        assert min(answered) > 10
        assert gateway.index().keys() == {("linear", str(v)) for v in range(1, publishes + 2)}
        assert gateway.infer("linear", ROW, str(publishes + 1)).headers["x-pg-bundle"] == made[-1].digest
