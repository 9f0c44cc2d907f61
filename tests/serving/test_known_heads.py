"""Requests whose head came before: answered past the parser, and no client can tell except by the clock."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from paritygate.serving.facades.known_heads import KnownHeads
from support.gateway import Answer, Gateway, running_gateway
from support.onnx_models import add_model, slow_model, write_model

REPEATS = 40
"""Enough for a head to be known and for a small model to run on the event loop."""


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    root = tmp_path_factory.mktemp("heads")
    repository = root / "models"
    for name, constant in (("one", 1.0), ("two", 2.0)):
        write_model(repository, name, add_model(constant))
    write_model(repository, "slow", slow_model(2_000))
    options = ("--allow-unproven", "--keep-alive-timeout-s", "2")
    with running_gateway(repository, root / "gateway", *options) as running:
        yield running


class Client:
    """One connection on which exact bytes are sent."""

    def __init__(self, gateway: Gateway) -> None:
        self.socket = socket.create_connection(("127.0.0.1", gateway.ports["http"]), timeout=20)
        self.file = self.socket.makefile("rb")

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.file.close()
        self.socket.close()

    def receive(self) -> Answer:
        status = int(self.file.readline().split()[1])
        lines = iter(lambda: self.file.readline().decode().strip(), "")
        headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in lines)}
        return Answer(status, headers, self.file.read(int(headers["content-length"])))

    def ask(self, request: bytes) -> Answer:
        self.socket.sendall(request)
        return self.receive()


def binary(values: list[float], shape: list[int] | None = None) -> tuple[bytes, int]:
    array = np.array(values, np.float32)
    parameters = {"binary_data_size": array.nbytes}
    tensor = {"name": "x", "datatype": "FP32", "shape": shape or [len(values)], "parameters": parameters}
    head = json.dumps({"inputs": [tensor], "parameters": {"binary_data_output": True}}).encode()
    return head + array.tobytes(), len(head)


def request(
    values: list[float],
    model: str = "one",
    headers: str = "",
    shape: list[int] | None = None,
    end: str = "\r\n",
) -> bytes:
    body, length = binary(values, shape)
    lines = [
        f"POST /v2/models/{model}/infer HTTP/1.1",
        "Host: here",
        f"Content-Length: {len(body)}",
        f"Inference-Header-Content-Length: {length}",
    ]
    return (end.join(lines) + end + headers + end).encode() + body


def values_of(answer: Answer) -> list[float]:
    assert answer.status == 200, answer.body
    skipped = int(answer.headers["inference-header-content-length"])
    return np.frombuffer(answer.body[skipped:], np.float32).tolist()


def steady(answer: Answer) -> dict[str, str]:
    return {name: value for name, value in answer.headers.items() if name != "date"}


def test_answers_are_the_same_before_and_after_a_head_is_known(gateway: Gateway) -> None:
    with Client(gateway) as client:
        answers = [client.ask(request([float(n), 2.0])) for n in range(REPEATS)]
    assert [values_of(answer) for answer in answers] == [[n + 1.0, 3.0] for n in range(REPEATS)]
    assert all(steady(answer) == steady(answers[0]) for answer in answers)
    assert all("date" in answer.headers for answer in answers)


def test_heads_that_differ_are_not_taken_for_each_other(gateway: Gateway) -> None:
    with Client(gateway) as client:
        for n in range(REPEATS):
            for model, plus in (("one", 1.0), ("two", 2.0)):
                for count in (1, 2, 3):
                    answer = client.ask(request([float(n)] * count, model))
                    assert values_of(answer) == [n + plus] * count


def test_what_a_known_head_asks_for_in_vain_is_refused_each_time_alike(gateway: Gateway) -> None:
    wrong = request([1.0, 2.0], shape=[3])
    unknown = request([1.0, 2.0], "nobody")
    with Client(gateway) as client:
        for refused, status in ((wrong, 400), (unknown, 404)):
            answers = [client.ask(refused) for _ in range(6)]
            assert [answer.status for answer in answers] == [status] * 6
            assert len({answer.error for answer in answers}) == 1
        assert values_of(client.ask(request([1.0]))) == [2.0]


def test_requests_that_come_together_or_in_pieces_are_answered_in_order(gateway: Gateway) -> None:
    with Client(gateway) as client:
        for n in range(REPEATS):
            values_of(client.ask(request([float(n)])))
        client.socket.sendall(b"".join(request([float(n)]) for n in range(5)))
        assert [values_of(client.receive()) for _ in range(5)] == [[n + 1.0] for n in range(5)]
        whole = request([7.0])
        for cut in (1, 20, whole.index(b"\r\n\r\n") + 2, whole.index(b"\r\n\r\n") + 4, len(whole) - 1):
            client.socket.sendall(whole[:cut])
            time.sleep(0.02)
            client.socket.sendall(whole[cut:])
            assert values_of(client.receive()) == [8.0]
        client.socket.sendall(whole + whole[:30])
        assert values_of(client.receive()) == [8.0]
        client.socket.sendall(whole[30:])
        assert values_of(client.receive()) == [8.0]


def test_a_slow_model_with_a_known_head_waits_for_its_answer(gateway: Gateway) -> None:
    body = np.random.default_rng(0).standard_normal((256, 256)).astype(np.float32)
    tensor = {
        "name": "x",
        "datatype": "FP32",
        "shape": [256, 256],
        "parameters": {"binary_data_size": body.nbytes},
    }
    head = json.dumps({"inputs": [tensor], "parameters": {"binary_data_output": True}}).encode()
    lines = (
        "POST /v2/models/slow/infer HTTP/1.1\r\nHost: here\r\n"
        f"Content-Length: {len(head) + body.nbytes}\r\nInference-Header-Content-Length: {len(head)}\r\n\r\n"
    )
    before = counted(gateway, "slow")
    with Client(gateway) as client:
        for _ in range(5):
            answer = client.ask(lines.encode() + head + body.tobytes())
            skipped = int(answer.headers["inference-header-content-length"])
            assert answer.body[skipped:] == body.tobytes()
    assert counted(gateway, "slow") == before + 5


def test_every_request_is_counted_once(gateway: Gateway) -> None:
    before, failed = counted(gateway, "two"), counted(gateway, "two", "fail")
    with Client(gateway) as client:
        for _ in range(REPEATS):
            client.ask(request([1.0], "two"))
            client.ask(request([1.0, 2.0], "two", shape=[3]))
            client.ask(request([1.0, 2.0], "two", shape=[1, 2]))
    assert counted(gateway, "two") == before + REPEATS
    # The body that does not fit its shape is refused before it is a request to a model.
    assert counted(gateway, "two", "fail") == failed + REPEATS


def counted(gateway: Gateway, model: str, what: str = "success") -> int:
    (stats,) = gateway.ask("GET", f"/v2/models/{model}/stats").json["model_stats"]
    return int(stats["inference_stats"][what]["count"])


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ("x-pg-model-version: 2\r\n", 400),
        ("Content-Encoding: br\r\n", 501),
        ("Content-Encoding: gzip\r\n", 400),
        ("Content-Length: 1\r\n", 400),
        ("Inference-Header-Content-Length: 3\r\n", 400),
    ],
)
def test_heads_that_are_refused_never_become_known(gateway: Gateway, headers: str, status: int) -> None:
    for _ in range(5):
        with Client(gateway) as client:
            answer = client.ask(request([1.0], headers=headers))
            assert answer.status == status


def test_a_connection_that_is_to_close_is_closed_each_time(gateway: Gateway) -> None:
    for _ in range(5):
        with Client(gateway) as client:
            assert values_of(client.ask(request([1.0], headers="Connection: close\r\n"))) == [2.0]
            assert client.file.read(1) == b""


def test_lines_that_end_without_a_return_are_no_known_head(gateway: Gateway) -> None:
    """Whatever the parser makes of them: an empty line in a body must not be taken for the end of a head."""
    for _ in range(5):
        with Client(gateway) as client:
            client.socket.sendall(request([1.0], end="\n"))
            answer = client.receive()
            assert answer.status in (200, 400)
    with Client(gateway) as client:
        assert values_of(client.ask(request([1.0]))) == [2.0]


def test_a_client_that_likes_gzip_gets_large_answers_compressed_and_small_ones_not(gateway: Gateway) -> None:
    with Client(gateway) as client:
        for count, encoding in ((4, None), (4_000, "gzip")):
            for _ in range(REPEATS):
                answer = client.ask(request([1.0] * count, headers="Accept-Encoding: gzip\r\n"))
                assert answer.status == 200
                assert answer.headers.get("content-encoding") == encoding


def test_a_connection_stays_while_it_is_used_and_goes_when_it_idles(gateway: Gateway) -> None:
    with Client(gateway) as client:
        for _ in range(REPEATS):
            client.ask(request([1.0]))
        began = time.monotonic()
        while time.monotonic() < began + 3:  # longer than a connection may idle
            assert values_of(client.ask(request([1.0]))) == [2.0]
            time.sleep(0.3)
        assert client.file.read(1) == b""
        assert time.monotonic() < began + 10


def test_a_client_that_leaves_while_a_known_request_waits_ends_it(gateway: Gateway) -> None:
    body = np.zeros((256, 256), np.float32)
    tensor = {"name": "x", "datatype": "FP32", "shape": [256, 256], "data": body.ravel().tolist()}
    whole = json.dumps({"inputs": [tensor]}).encode()
    head = (
        f"POST /v2/models/slow/infer HTTP/1.1\r\nHost: here\r\nContent-Length: {len(whole)}\r\n\r\n".encode()
    )
    for _ in range(4):
        with Client(gateway) as client:
            client.socket.sendall(head + whole)
    gateway.wait(lambda: gateway.ask("GET", "/v2/health/ready").status == 200)
    assert values_of_one(gateway) == [2.0]


def values_of_one(gateway: Gateway) -> list[float]:
    with Client(gateway) as client:
        return values_of(client.ask(request([1.0])))


def read(scope: Any) -> str | None:
    return scope["means"]


def test_a_head_is_known_when_it_comes_a_second_time() -> None:
    heads: KnownHeads[str] = KnownHeads(read)
    heads.offer(b"a", {"means": "A"})
    assert heads.get(b"a") is None
    heads.offer(b"a", {"means": "A"})
    assert heads.get(b"a") == "A"


def test_what_has_no_meaning_or_is_long_is_never_known() -> None:
    heads: KnownHeads[str] = KnownHeads(read)
    for _ in range(3):
        heads.offer(b"none", {"means": None})
        heads.offer(b"x" * 5_000, {"means": "long"})
    assert heads.get(b"none") is None
    assert heads.get(b"x" * 5_000) is None


def test_heads_are_bounded_however_many_come() -> None:
    heads: KnownHeads[str] = KnownHeads(read)
    for n in range(5_000):
        heads.offer(b"once %d" % n, {"means": "A"})
        for _ in range(2):
            heads.offer(b"twice %d" % n, {"means": "A"})
    assert len(heads._known) <= 1024
    assert len(heads._seen_once) <= 1024
    assert heads.get(b"twice 4999") == "A"
    assert heads.get(b"twice 0") is None
