"""Spoilt requests of every protocol and spoilt configs: refused with a 4xx of one line, and nothing grows.

Each runs for a few seconds from a fixed seed, and for minutes with `make soak`, from a seed that a failure prints.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import grpc
import numpy as np
import pytest
from tritonclient.grpc import service_pb2 as pb

from paritygate.serving.publish.errors import PublishError
from paritygate.serving.publish.triton_config import parse_config
from support.gateway import Gateway, running_gateway
from support.onnx_models import expanding_model, identity_model, two_input_model, write_model

LENGTHS = [3.0, pytest.param(400.0, marks=pytest.mark.soak)]
INTERESTING = (
    b"",
    b"0",
    b"-1",
    b"4294967296",
    b"9" * 30,
    b"NaN",
    b"null",
    b"\0",
    b"\xff\xfe",
    b"{",
    b"[" * 200,
)
ALLOWED_GRPC = {
    grpc.StatusCode.OK,
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.NOT_FOUND,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
    grpc.StatusCode.UNIMPLEMENTED,
    grpc.StatusCode.UNAVAILABLE,
}


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    repository = tmp_path_factory.mktemp("repository")
    write_model(repository, "fp32", identity_model("FP32"))
    write_model(repository, "text", identity_model("BYTES"))
    write_model(repository, "two", two_input_model())
    write_model(repository, "expand", expanding_model())
    options = ("--allow-unproven", "--max-body-bytes", "1000000", "--body-timeout-s", "1")
    limits = ("--max-response-bytes", "1000000", "--max-memory-bytes", "3000000000")
    folder = tmp_path_factory.mktemp("gw")
    with running_gateway(repository, folder, *options, *limits) as made:
        yield made


def spoilt(octets: bytes, chance: random.Random) -> bytes:
    """Some bytes changed, put in, taken out, doubled, or cut off."""
    data = bytearray(octets)
    for _ in range(chance.randint(1, 4)):
        at = chance.randrange(len(data) + 1)
        kind = chance.randrange(6)
        if kind == 0 and data:
            data[at % len(data)] = chance.randrange(256)
        elif kind == 1:
            data[at:at] = chance.choice(INTERESTING)
        elif kind == 2:
            del data[at : at + chance.randint(1, 16)]
        elif kind == 3:
            data[at:at] = data[at : at + chance.randint(1, 64)]
        elif kind == 4:
            data[at : at + chance.randint(1, 8)] = chance.choice(INTERESTING)
        else:
            data = data[: at or 1]
    return bytes(data)


def for_a_while(length_s: float, step: Callable[[random.Random], None]) -> None:
    """Repeat a step for a time; a failure tells the seed of its step."""
    first = 0 if length_s < 60 else random.SystemRandom().randrange(2**32)
    until, seed = time.monotonic() + length_s, first
    while time.monotonic() < until:
        try:
            step(random.Random(seed))
        except BaseException:
            print(f"seed {seed}")
            raise
        seed += 1


def bodies() -> list[tuple[str, bytes, dict[str, str]]]:
    """Requests that are right: model, body and headers."""
    x = np.arange(3, dtype=np.float32)
    head = {
        "inputs": [{"name": "x", "datatype": "FP32", "shape": [3], "parameters": {"binary_data_size": 12}}]
    }
    binary = json.dumps(head | {"outputs": [{"name": "y", "parameters": {"classification": 2}}]}).encode()
    text = {"inputs": [{"name": "x", "datatype": "BYTES", "shape": [2], "data": ["a", "ü"]}], "id": "7"}
    shape = {"inputs": [{"name": "shape", "datatype": "INT64", "shape": [2], "data": [3, 4]}]}
    row = {"datatype": "FP32", "shape": [1, 3], "data": [[1, 2.5, -3e4]]}
    two = {
        "inputs": [{"name": "a", **row}, {"name": "b", **row}],
        "parameters": {"priority": 1, "timeout": 5},
    }
    length = {"Inference-Header-Content-Length": str(len(binary))}
    return [
        ("fp32", binary + x.tobytes(), length),
        ("text", json.dumps(text).encode(), {}),
        ("expand", json.dumps(shape).encode(), {}),
        ("two", json.dumps(two).encode(), {}),
    ]


@pytest.mark.parametrize("length_s", LENGTHS)
@pytest.mark.timeout(900)
def test_spoilt_bodies_over_http(gateway: Gateway, length_s: float) -> None:
    right, seen = bodies(), Counter[int]()

    def step(chance: random.Random) -> None:
        model, body, headers = chance.choice(right)
        path = f"/v2/models/{model}/{chance.choice(('infer', 'infer', 'generate', 'versions/1/infer'))}"
        answer = gateway.ask("POST", path, spoilt(body, chance), headers)
        seen[answer.status] += 1
        assert answer.status < 500 or answer.status in (501, 503), (answer.status, answer.body)
        if answer.status != 200:
            assert "\n" not in answer.error

    watched(gateway, length_s, step)
    assert seen[400] > 10


@pytest.mark.parametrize("length_s", LENGTHS)
@pytest.mark.timeout(900)
def test_spoilt_bytes_on_the_http_port(gateway: Gateway, length_s: float) -> None:
    model, body, headers = bodies()[0]
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    head = f"POST /v2/models/{model}/infer HTTP/1.1\r\nhost: a\r\n{lines}content-length: {len(body)}\r\n\r\n"

    def step(chance: random.Random) -> None:
        answer = gateway.raw(spoilt(head.encode() + body, chance), timeout_s=0.02)
        if answer:
            status = int(answer.split(b" ", 2)[1])
            assert status < 500 or status in (501, 503, 505), answer[:300]

    watched(gateway, length_s, step)


@pytest.mark.parametrize("length_s", LENGTHS)
@pytest.mark.timeout(900)
def test_spoilt_messages_over_grpc(gateway: Gateway, length_s: float) -> None:
    message = pb.ModelInferRequest(model_name="fp32", id="7", raw_input_contents=[bytes(12)])
    message.inputs.add(name="x", datatype="FP32", shape=[3])
    message.outputs.add(name="y").parameters["classification"].int64_param = 2
    typed = pb.ModelInferRequest(model_name="text", model_version="1")
    typed.inputs.add(name="x", datatype="BYTES", shape=[2]).contents.bytes_contents.extend([b"a", b"b"])
    right = [message.SerializeToString(), typed.SerializeToString()]
    with grpc.insecure_channel(gateway.grpc) as channel:
        infer = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")

        def step(chance: random.Random) -> None:
            call = infer.future(spoilt(chance.choice(right), chance), timeout=20)
            assert call.code() in ALLOWED_GRPC, call
            assert "\n" not in (call.details() or "")

        watched(gateway, length_s, step)


def watched(gateway: Gateway, length_s: float, step: Callable[[random.Random], None]) -> None:
    """Fuzz a gateway; it lives on, has no more memory than after the first steps, and logged no traceback."""
    for_a_while(min(2.0, length_s), step)
    before = resident_bytes(gateway)
    for_a_while(length_s, step)
    assert resident_bytes(gateway) < 1.15 * before
    assert gateway.process.poll() is None
    assert "Traceback" not in gateway.log()
    x = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1], "data": [4]}]}
    assert gateway.infer("fp32", x).json["outputs"][0]["data"] == [4.0]


def resident_bytes(gateway: Gateway) -> int:
    fields = Path(f"/proc/{gateway.process.pid}/statm").read_text().split()
    return int(fields[1]) * os.sysconf("SC_PAGE_SIZE")


CONFIG = """
name: "m"
backend: "onnxruntime"
max_batch_size: 8
input [ { name: "x" data_type: TYPE_FP32 dims: [ -1, 4 ] reshape { shape: [ 4 ] } } ]
output [ { name: "y" data_type: TYPE_STRING dims: [ 2 ] label_filename: "l.txt" } ]
version_policy { specific { versions: [ 1, 2 ] } }
dynamic_batching { preferred_batch_size: [ 4 ] max_queue_delay_microseconds: 100 }
"""


@pytest.mark.parametrize("length_s", LENGTHS)
@pytest.mark.timeout(900)
def test_spoilt_configs(length_s: float) -> None:
    def step(chance: random.Random) -> None:
        text = spoilt(CONFIG.encode(), chance).decode("utf-8", "replace")
        with contextlib.suppress(PublishError):
            parse_config(text, model="m").version_policy.select((1, 2))

    for_a_while(length_s, step)
