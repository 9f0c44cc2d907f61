"""The process: starting with clear words, draining at SIGTERM, exit codes."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from tritonclient.grpc import service_pb2, service_pb2_grpc

from support.gateway import gateway_command, running_gateway
from support.onnx_models import add_model, slow_model, write_model
from support.ports import reserve_ports

SLOW = np.eye(256, dtype=np.float32)


def slow_message() -> Any:
    message = service_pb2.ModelInferRequest(model_name="slow")
    message.inputs.add(name="x", datatype="FP32", shape=[256, 256])
    message.raw_input_contents.append(SLOW.tobytes())
    return message


def run(command: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize("port", ["http", "grpc", "metrics", "admin"])
def test_port_in_use_is_one_line_and_exit_code_1(repository: Path, tmp_path: Path, port: str) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        number = str(taken.getsockname()[1])
        command = [*gateway_command(repository, tmp_path / "ready.json"), f"--{port}-port", number]
        outcome = run(command)
    assert outcome.returncode == 1
    assert outcome.stdout == ""
    (line,) = outcome.stderr.splitlines()
    assert line.startswith(f"error: cannot listen on 127.0.0.1:{number}: Address already in use")


@pytest.mark.parametrize(
    ("options", "match"),
    [
        (["--repo", "/nowhere/at/all"], "/nowhere/at/all is not a directory"),
        (["--http-port", "70000"], "http_port is 70000"),
        (["--default-version", "newest"], "default_version is 'newest'; give one of routed, latest"),
        (["--host", "203.0.113.7"], "cannot listen on 203.0.113.7"),
    ],
)
def test_setting_that_cannot_be_is_one_line_and_exit_code_1(
    repository: Path, tmp_path: Path, options: list[str], match: str
) -> None:
    outcome = run([*gateway_command(repository, tmp_path / "ready.json"), *options])
    assert outcome.returncode == 1
    (line,) = outcome.stderr.splitlines()
    assert match in line
    assert not (tmp_path / "ready.json").exists()


def test_ready_line_names_the_ports_and_what_is_not_ready(repository: Path, tmp_path: Path) -> None:
    write_model(repository, "good", add_model(1.0))
    write_model(repository, "bad", add_model(1.0), extra="sequence_batching { }")
    with running_gateway(repository, tmp_path / "gw", "--allow-unproven") as gateway:
        (line,) = [line for line in gateway.log().splitlines() if line.startswith("paritygate serves")]
        assert f"http://{gateway.http}" in line
        assert f"grpc://{gateway.grpc}" in line
        assert "serves 1 model of" in line
        assert "not ready: bad" in line


def test_sigterm_lets_requests_in_flight_finish_and_refuses_new_ones(
    repository: Path, tmp_path: Path
) -> None:
    write_model(repository, "slow", slow_model(1500))
    with running_gateway(repository, tmp_path / "gw", "--allow-unproven") as gateway:
        channel = grpc.insecure_channel(gateway.grpc)
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        in_flight = stub.ModelInfer.future(slow_message(), timeout=60)
        answers: list[Any] = []
        request = json.dumps(
            {
                "inputs": [
                    {"name": "x", "datatype": "FP32", "shape": [256, 256], "data": SLOW.ravel().tolist()}
                ]
            }
        ).encode()
        over_http = threading.Thread(
            target=lambda: answers.append(gateway.ask("POST", "/v2/models/slow/infer", request))
        )
        over_http.start()
        kept = socket.create_connection(("127.0.0.1", gateway.ports["http"]), timeout=30)
        text = "nv_inference_pending_request_count"
        gateway.wait(
            lambda: (
                f'{text}{{model="slow",version="1"}} 2.0'
                in gateway.ask("GET", "/metrics", port="metrics").body.decode()
            )
        )
        gateway.process.send_signal(signal.SIGTERM)
        gateway.wait(lambda: gateway.ask("GET", "/v2/health/ready").status == 503)
        assert gateway.ask("GET", "/v2/health/live").status == 503
        refused = gateway.ask("POST", "/v2/models/slow/infer", request)
        assert refused.status == 503
        assert refused.headers["connection"] == "close"
        assert "shutting down" in refused.error
        with pytest.raises(grpc.RpcError, match="shutting down") as caught:
            stub.ModelInfer(slow_message(), timeout=30)
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        assert gateway.ask("POST", "/v2/repository/models/slow/load", port="admin").status == 503
        assert in_flight.result().model_version == "1"
        over_http.join()
        assert answers[0].status == 200
        assert gateway.process.wait(20) == 0
        assert kept.recv(10) == b""
        kept.close()
        channel.close()
        assert "Traceback" not in gateway.log()


def test_drain_delay_still_answers_while_readiness_says_no(repository: Path, tmp_path: Path) -> None:
    write_model(repository, "add", add_model(1.0))
    request = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1], "data": [1.0]}]}
    with running_gateway(
        repository, tmp_path / "gw", "--allow-unproven", "--drain-delay-s", "1.5"
    ) as gateway:
        gateway.process.send_signal(signal.SIGTERM)
        gateway.wait(lambda: gateway.ask("GET", "/v2/health/ready").status == 503)
        answer = gateway.infer("add", request)
        assert (answer.status, answer.headers["connection"]) == (200, "close")
        assert gateway.process.wait(20) == 0


def wait_until_listening(port: int, process: subprocess.Popen[bytes]) -> None:
    """Until the gateway has its ports; it begins to load models then."""
    deadline = time.monotonic() + 60
    while process.poll() is None and time.monotonic() < deadline:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.02)
    raise AssertionError(f"nothing listens on {port}; exit code {process.poll()}")


def test_sigterm_while_loading_ends_at_once(repository: Path, tmp_path: Path) -> None:
    for number in range(200):
        write_model(repository, f"m{number}", add_model(float(number)))
    (port,) = reserve_ports(1)
    options = ["--allow-unproven", "--http-port", str(port)]
    command = gateway_command(repository, tmp_path / "ready.json", options)
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
        wait_until_listening(port, process)
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
        assert b"Traceback" not in (process.stdout.read() if process.stdout else b"")


def test_module_imports_no_framework_before_it_serves() -> None:
    code = (
        "import sys, paritygate.serving.config, paritygate.serving.app, paritygate.serving.errors;"
        "print(sorted({'torch', 'tensorflow', 'onnxruntime', 'fastapi', 'grpc', 'uvicorn'} & set(sys.modules)))"
    )
    assert run([sys.executable, "-c", code]).stdout.strip() == "[]"


# --- error styles and timings ---


def test_kserve_style_gives_its_codes_where_the_two_differ(repository: Path, tmp_path: Path) -> None:
    write_model(repository, "add", add_model(1.0))
    (repository / "broken").mkdir()
    for style, not_ready, unknown in (("triton", 400, 400), ("kserve", 503, 404)):
        options = ("--allow-unproven", "--error-style", style)
        with running_gateway(repository, tmp_path / style, *options) as gateway:
            assert gateway.ask("GET", "/v2/models/add/ready").status == 200
            assert gateway.ask("GET", "/v2/health/ready").status == not_ready
            assert gateway.ask("GET", "/v2/models/nobody/ready").status == unknown
            assert gateway.ask("POST", "/v2/models/nobody/infer", b"{}").status == 400
            request = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1], "data": [1]}]}
            assert gateway.infer("nobody", request).status == 404


def test_answers_tell_their_timing_only_where_it_is_asked_for(repository: Path, tmp_path: Path) -> None:
    write_model(repository, "add", add_model(1.0))
    request = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1], "data": [1]}]}
    with running_gateway(repository, tmp_path / "without", "--allow-unproven") as gateway:
        assert "server-timing" not in gateway.infer("add", request).headers
    with running_gateway(repository, tmp_path / "with", "--allow-unproven", "--server-timing") as gateway:
        for _ in range(30):
            told = gateway.infer("add", request).headers["server-timing"]
            parts = dict(part.split(";dur=") for part in told.split(", "))
            assert list(parts) == ["queue", "input", "infer", "output"]
            assert all(float(duration) >= 0 for duration in parts.values())
        message = service_pb2.ModelInferRequest(model_name="add", raw_input_contents=[bytes(4)])
        message.inputs.add(name="x", datatype="FP32", shape=[1])
        with grpc.insecure_channel(gateway.grpc) as channel:
            call = service_pb2_grpc.GRPCInferenceServiceStub(channel).ModelInfer
            _, outcome = call.with_call(message, timeout=30)
        assert dict(outcome.trailing_metadata())["server-timing"].startswith("queue;dur=")
