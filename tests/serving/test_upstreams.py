"""Versions that other servers compute: proven over the wire, balanced, retried where safe, ejected on answers.

The upstream is a second gateway, which is a v2 server; before it stands one that spoils what it is told to. The
real Triton is in tests/integration/test_triton_upstream.py.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as grpcclient
import tritonclient.http as httpclient

from paritygate.converter.bundle import Bundle
from paritygate.mesh.actions import apply_rollout
from paritygate.mesh.config import parse_rollout
from paritygate.mesh.state import FileStateStore
from paritygate.serving.publish import publish_bundle
from paritygate.serving.upstreams import UpstreamTable, load_upstreams
from paritygate.serving.upstreams.config import UpstreamsInvalid
from support.gateway import Answer, Gateway, running_gateway
from support.onnx_models import ELEMENT_TYPES, identity_model, write_model
from support.spoiling_upstream import spoiling_upstream

ROW = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [1.0, 2.0, 3.0, 4.0]}]}


def upstreams_file(folder: Path, models: str, **urls: str) -> Path:
    """An upstreams file with quick checks."""
    lines = ["schema: paritygate.upstreams/v1", "upstreams:"]
    for name, url in urls.items():
        lines.append(
            f"  {name}: {{url: '{url}', timeout_s: 5, check_interval_s: 0.3, check_timeout_s: 0.5, failures: 2}}"
        )
    path = folder / "upstreams.yaml"
    folder.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join([*lines, f"models: {models}"]))
    return path


@pytest.fixture(scope="module")
def repository(bundles: list[Bundle], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`linear` in two versions, both proven."""
    folder = tmp_path_factory.mktemp("repository")
    for bundle in bundles[:2]:
        publish_bundle(bundle.path, folder)
    return folder


@pytest.fixture(scope="module")
def origin(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """The server that computes."""
    with running_gateway(repository, tmp_path_factory.mktemp("origin")) as gateway:
        yield gateway


@contextlib.contextmanager
def before(repository: Path, folder: Path, models: str, *options: str, **urls: str) -> Iterator[Gateway]:
    """A gateway whose versions are computed by upstreams."""
    file = upstreams_file(folder, models, **urls)
    with running_gateway(repository, folder, "--upstreams", str(file), *options) as gateway:
        yield gateway


def answer(gateway: Gateway, version: str = "2", **headers: str) -> Answer:
    return gateway.infer("linear", ROW, version, **headers)


def numbers(answered: Answer) -> list[float]:
    assert answered.status == 200, answered.body
    return list(answered.json["outputs"][0]["data"])


# --- the same answers --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scheme", ["http", "grpc"])
def test_answers_are_the_upstreams_bit_for_bit(
    scheme: str, repository: Path, origin: Gateway, tmp_path: Path
) -> None:
    url = f"{scheme}://{getattr(origin, scheme)}"
    with before(repository, tmp_path, '{linear: {"*": [up]}}', up=url) as gateway:
        x = np.random.default_rng(1).standard_normal((5, 4)).astype(np.float32)
        for version in ("1", "2"):
            for module, kind in ((httpclient, "http"), (grpcclient, "grpc")):
                found = []
                for server in (gateway, origin):
                    client = module.InferenceServerClient(getattr(server, kind))
                    tensor = module.InferInput("x", [5, 4], "FP32")
                    tensor.set_data_from_numpy(x)
                    found.append(client.infer("linear", [tensor], version, request_id="7").as_numpy("y"))
                    client.close()
                assert found[0].tobytes() == found[1].tobytes()
        facts = answer(gateway).headers
        assert facts["x-pg-proof"] == "proven"
        assert facts["x-pg-model-version"] == "2"


@pytest.mark.parametrize("scheme", ["http", "grpc"])
def test_every_type_and_size_passes(scheme: str, tmp_path: Path) -> None:
    repository = tmp_path / "repository"
    repository.mkdir()
    for datatype in ELEMENT_TYPES:
        write_model(repository, datatype.lower(), identity_model(datatype))
    write_model(repository, "large", identity_model("FP32"))
    with ExitStack() as stack:
        origin = stack.enter_context(running_gateway(repository, tmp_path / "o", "--allow-unproven"))
        url = f"{scheme}://{getattr(origin, scheme)}"
        gateway = stack.enter_context(
            before(repository, tmp_path / "g", '{"*": {"*": [up]}}', "--allow-unproven", up=url)
        )
        client = httpclient.InferenceServerClient(gateway.http)
        for datatype, array in samples().items():
            tensor = httpclient.InferInput("x", list(array.shape), datatype)
            tensor.set_data_from_numpy(array)
            result = client.infer(datatype.lower(), [tensor])
            assert result.as_numpy("y").tolist() == array.tolist(), datatype
        big = np.arange(1 << 20, dtype=np.float32)
        tensor = httpclient.InferInput("x", list(big.shape), "FP32")
        tensor.set_data_from_numpy(big)
        assert (client.infer("large", [tensor]).as_numpy("y") == big).all()
        client.close()
        assert gateway.infer("fp32", ROW_OF_ONE).headers["x-pg-proof"] == "unproven"


ROW_OF_ONE = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1], "data": [1.0]}]}


def samples() -> dict[str, Any]:
    """An array of each type that tritonclient sends over HTTP."""
    kinds = {"INT8": np.int8, "INT64": np.int64, "UINT16": np.uint16, "FP16": np.float16, "FP64": np.float64}
    found: dict[str, Any] = {name: np.array([0, 1, 2], kind) for name, kind in kinds.items()}
    found["FP32"] = np.array([np.nan, np.inf, -0.0], np.float32)[1:]
    found["BOOL"] = np.array([True, False])
    found["BYTES"] = np.array([b"a", b"", "ü\0".encode()], dtype=object)
    return found


def test_the_version_is_always_told_and_the_trace_goes_on(
    repository: Path, origin: Gateway, tmp_path: Path
) -> None:
    with spoiling_upstream(origin.http) as up:
        models = '{linear: {"*": [up]}}'
        with before(repository, tmp_path, models, up=f"http://127.0.0.1:{up.port}") as gateway:
            up.paths.clear()
            up.headers.clear()
            trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
            assert gateway.infer("linear", ROW, traceparent=trace).headers["x-pg-model-version"] == "1"
            assert "/v2/models/linear/versions/1/infer" in up.paths
            assert any(headers.get("traceparent") == trace for headers in up.headers)


def test_an_upstream_without_binary_tensors_is_asked_in_json(
    repository: Path, origin: Gateway, tmp_path: Path
) -> None:
    with spoiling_upstream(origin.http) as up:
        up.plain = True
        with before(repository, tmp_path, "{linear: {2: [up]}}", up=f"http://127.0.0.1:{up.port}") as gateway:
            assert numbers(answer(gateway)) == numbers(answer(origin))
            assert all("inference-header-content-length" not in headers for headers in up.headers)
            assert up.headers


# --- proof -------------------------------------------------------------------------------------------------------


def test_an_upstream_that_computes_other_numbers_gets_no_traffic(
    bundles: list[Bundle], repository: Path, tmp_path: Path
) -> None:
    other = tmp_path / "other"
    other.mkdir()
    for bundle in (bundles[2], bundles[0]):
        publish_bundle(bundle.path, other)
    with ExitStack() as stack:
        wrong = stack.enter_context(running_gateway(other, tmp_path / "w"))
        file = upstreams_file(tmp_path / "g", "{linear: {2: [up]}}", up=f"http://{wrong.http}")
        gateway = stack.enter_context(
            running_gateway(repository, tmp_path / "g", "--upstreams", str(file), "--allow-unproven")
        )
        reason = gateway.index()["linear", "2"][1]
        assert "does not give the proven numbers" in reason
        assert "up:" in reason
        answered = answer(gateway)
        assert answered.status == 503
        assert "does not give the proven numbers" in answered.error
        assert numbers(answer(gateway, "1"))  # computed here


def test_a_wrong_upstream_beside_a_right_one_never_answers(
    bundles: list[Bundle], repository: Path, origin: Gateway, tmp_path: Path
) -> None:
    other = tmp_path / "other"
    other.mkdir()
    for bundle in (bundles[2], bundles[0]):
        publish_bundle(bundle.path, other)
    expected = numbers(answer(origin))
    with ExitStack() as stack:
        wrong = stack.enter_context(running_gateway(other, tmp_path / "w"))
        urls = {"wrong": f"http://{wrong.http}", "right": f"http://{origin.http}"}
        gateway = stack.enter_context(
            before(repository, tmp_path / "g", "{linear: {2: [wrong, right]}}", **urls)
        )
        for _ in range(50):
            assert numbers(answer(gateway)) == expected
        assert upstream_metric(gateway, "paritygate_upstream_in_service", "wrong") == 0
        assert upstream_metric(gateway, "paritygate_upstream_in_service", "right") == 1


def test_an_upstream_that_is_not_there_yet_is_taken_up_when_it_comes(
    repository: Path, tmp_path: Path
) -> None:
    from support.ports import reserve_ports

    (port,) = reserve_ports(1)
    with before(repository, tmp_path / "g", "{linear: {2: [up]}}", up=f"http://127.0.0.1:{port}") as gateway:
        assert answer(gateway).status == 503
        assert "no connection" in answer(gateway).error
        origin_folder = tmp_path / "o"
        with running_gateway(repository, origin_folder, "--http-port", str(port)):
            gateway.wait_state("linear", 2, "READY")
            assert numbers(answer(gateway))


def test_wrong_numbers_later_on_take_it_out_of_service(
    repository: Path, origin: Gateway, tmp_path: Path
) -> None:
    with spoiling_upstream(origin.http) as up:
        with before(repository, tmp_path, "{linear: {2: [up]}}", up=f"http://127.0.0.1:{up.port}") as gateway:
            assert numbers(answer(gateway))
            up.mode = "wrong"
            reason = gateway.wait_state("linear", 2, "UNAVAILABLE")
            assert "does not give the proven numbers" in reason
            assert answer(gateway).status == 503
            assert gateway.ask("GET", "/v2/models/linear/versions/2/ready").status == 400
            up.mode = "pass"
            gateway.wait_state("linear", 2, "READY")
            assert numbers(answer(gateway)) == numbers(answer(origin))


# --- faults ------------------------------------------------------------------------------------------------------

FAULTS = ["500", "503", "404", "close", "cut", "noise", "empty"]


@pytest.mark.parametrize("mode", FAULTS)
def test_with_a_second_upstream_no_request_fails(
    mode: str, repository: Path, origin: Gateway, tmp_path: Path
) -> None:
    expected = numbers(answer(origin))
    with spoiling_upstream(origin.http) as up:
        urls = {"sick": f"http://127.0.0.1:{up.port}", "well": f"http://{origin.http}"}
        with before(repository, tmp_path, "{linear: {2: [sick, well]}}", **urls) as gateway:
            gateway.wait(lambda: upstream_metric(gateway, "paritygate_upstream_in_service", "well") == 1)
            up.mode = mode
            for _ in range(60):
                assert numbers(answer(gateway)) == expected
            if mode not in ("503",):
                gateway.wait(lambda: upstream_metric(gateway, "paritygate_upstream_in_service", "sick") == 0)
            up.mode = "pass"
            gateway.wait(lambda: upstream_metric(gateway, "paritygate_upstream_in_service", "sick") == 1)


@pytest.mark.parametrize(
    ("mode", "status", "text"),
    [
        ("500", 500, "Stub process 'linear_0_0' is not healthy."),
        ("400", 400, "Stub process 'linear_0_0' is not healthy."),
        ("503", 429, "Stub process 'linear_0_0' is not healthy."),
        ("404", 503, "Stub process 'linear_0_0' is not healthy."),
        ("close", 503, "did not answer: the connection was closed before the answer came"),
        ("cut", 503, "did not answer: the connection was closed before the answer came"),
        ("noise", 500, "its answer is no HTTP"),
        ("empty", 500, "it says 12 bytes for output 'y', but 0 follow"),
    ],
)
def test_the_text_of_an_upstream_reaches_the_client(
    mode: str, status: int, text: str, repository: Path, origin: Gateway, tmp_path: Path
) -> None:
    with spoiling_upstream(origin.http) as up:
        with before(repository, tmp_path, "{linear: {2: [up]}}", up=f"http://127.0.0.1:{up.port}") as gateway:
            up.mode = mode
            answered = answer(gateway)
            assert answered.status == status
            assert text in answered.error


def test_one_that_hangs_is_left_and_what_waits_there_is_asked_elsewhere(
    repository: Path, origin: Gateway, tmp_path: Path
) -> None:
    with spoiling_upstream(origin.http) as up:
        urls = {"sick": f"http://127.0.0.1:{up.port}", "well": f"http://{origin.http}"}
        with before(repository, tmp_path, "{linear: {2: [sick, well]}}", **urls) as gateway:
            gateway.wait(lambda: upstream_metric(gateway, "paritygate_upstream_in_service", "well") == 1)
            up.mode = "hang"
            statuses: Counter[int] = Counter()
            began = time.monotonic()

            def ask() -> None:
                statuses[answer(gateway).status] += 1

            threads = [threading.Thread(target=ask) for _ in range(8)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(20)
            assert statuses == {200: 8}
            assert time.monotonic() - began < 4.5  # less than the upstream's own limit
            up.mode = "pass"


def test_a_request_that_the_upstream_refuses_is_not_sent_twice_and_ejects_nothing(
    repository: Path, origin: Gateway, tmp_path: Path
) -> None:
    with spoiling_upstream(origin.http) as up:
        urls = {"a": f"http://127.0.0.1:{up.port}", "b": f"http://127.0.0.1:{up.port}"}
        with before(repository, tmp_path, "{linear: {2: [a, b]}}", **urls) as gateway:
            gateway.wait(lambda: upstream_metric(gateway, "paritygate_upstream_in_service", "b") == 1)
            up.mode = "400"
            counted = Counter(answer(gateway).status for _ in range(10))
            assert counted == {400: 10}
            up.mode = "pass"
            assert upstream_metric(gateway, "paritygate_upstream_in_service", "a") == 1


def test_a_member_of_a_sequence_is_not_asked_twice(repository: Path, origin: Gateway, tmp_path: Path) -> None:
    document = ROW | {"parameters": {"sequence_id": 5, "sequence_start": True}}
    with spoiling_upstream(origin.http) as up:
        urls = {"sick": f"http://127.0.0.1:{up.port}", "other": f"http://127.0.0.1:{up.port}"}
        with before(repository, tmp_path, "{linear: {2: [sick, other]}}", **urls) as gateway:
            up.mode = "close"
            before_count = up.seen["close"]
            assert gateway.infer("linear", document, "2").status == 503
            sent = [b for b in up.bodies if b"sequence_id" in b]
            assert len(sent) == 1, before_count


def test_a_rollout_splits_between_what_is_computed_here_and_elsewhere(
    repository: Path, origin: Gateway, tmp_path: Path
) -> None:
    state = tmp_path / "state"
    store = FileStateStore(state)
    text = "schema: paritygate.rollout/v1\nmodel: linear\nstable: 1\nroutes: [{weights: {1: 50, 2: 50}}]"
    with spoiling_upstream(origin.http) as up:
        options = ("--rollouts", str(state))
        url = f"http://127.0.0.1:{up.port}"
        with before(repository, tmp_path / "g", "{linear: {2: [up]}}", *options, up=url) as gateway:
            outcome = apply_rollout(store, parse_rollout(text), signatures=None, actor="test", wait_s=10)
            assert outcome.acknowledgement.ok
            up.paths.clear()
            counted = Counter(gateway.infer("linear", ROW).headers["x-pg-model-version"] for _ in range(200))
            assert set(counted) == {"1", "2"}
            assert 60 < counted["2"] < 140
            assert up.paths["/v2/models/linear/versions/2/infer"] >= counted["2"]
            assert "/v2/models/linear/versions/1/infer" not in up.paths


def upstream_metric(gateway: Gateway, name: str, upstream: str) -> float | None:
    for line in gateway.ask("GET", "/metrics", port="metrics").body.decode().splitlines():
        if line.startswith(f"{name}{{") and f'upstream="{upstream}"' in line:
            return float(line.rsplit(" ", 1)[1])
    return None


# --- the file ----------------------------------------------------------------------------------------------------

GOOD = """
schema: paritygate.upstreams/v1
upstreams:
  a: {url: "http://h:8000/base", timeout_s: 1.5}
  b: {url: "grpcs://[::1]:8001", max_inflight: 4}
models:
  digits: {2: [a, b], "*": embedded}
  "*": {"*": [a]}
"""


def load(tmp_path: Path, text: str) -> UpstreamTable:
    path = tmp_path / "upstreams.yaml"
    path.write_text(text)
    return load_upstreams(path)


def test_the_file_says_who_computes_what(tmp_path: Path) -> None:
    table = load(tmp_path, GOOD)
    assert [each.name for each in table.of("digits", 2)] == ["a", "b"]
    assert table.of("digits", 1) == ()
    assert [each.name for each in table.of("other", 9)] == ["a"]
    a, b = table.of("digits", 2)
    assert (a.scheme, a.host, a.port, a.path, a.timeout_s) == ("http", "h", 8000, "/base", 1.5)
    assert (b.scheme, b.host, b.port, b.max_inflight) == ("grpcs", "::1", 8001, 4)


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (("paritygate.upstreams/v1", "other"), "schema must be 'paritygate.upstreams/v1'"),
        (("http://h:8000/base", "ftp://h"), "url is 'ftp://h'; expected http://"),
        (("http://h:8000/base", "http://h:99999"), "expected http://"),
        (("http://h:8000/base", "http://u:p@h"), "and nothing else"),
        (("grpcs://[::1]:8001", "grpc://h:1/x"), "and nothing else"),
        (("timeout_s: 1.5", "timeout_s: -1"), "timeout_s is -1.0; give at least 0.01"),
        (("timeout_s: 1.5", "timeuot_s: 1"), "unknown key 'timeuot_s'; did you mean 'timeout_s'?"),
        (("timeout_s: 1.5", "timeout_s: soon"), "must be a number, got 'soon'"),
        (("max_inflight: 4", "max_inflight: 1.5"), "must be a whole number, got 1.5"),
        (("[a, b]", "[a, c]"), "there is no upstream 'c'; known are a, b"),
        (("[a, b]", "[a, a]"), "names an upstream twice"),
        (("[a, b]", "[]"), "must be 'embedded' or a list of upstreams"),
        (("{2: [", "{0: ["), "'0' is no version; give a whole number from 1, or '*'"),
        (("upstreams:\n", "upstraems:\n"), "unknown key 'upstraems'; did you mean 'upstreams'?"),
    ],
)
def test_a_wrong_file_is_one_clear_line(tmp_path: Path, change: tuple[str, str], fault: str) -> None:
    with pytest.raises(UpstreamsInvalid) as caught:
        load(tmp_path, GOOD.replace(*change))
    assert fault in str(caught.value)
    assert "\n" not in str(caught.value)
