"""The handed serving cases, and the serving half of the model-repository cases: exact bytes over a socket.

The repositories carry no certificates, so they are served as unproven, and by Triton's version policy where a case
counts on it.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import shutil
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from support.gateway import Answer, Gateway, running_gateway
from support.onnx_models import slow_model, write_model
from support.shared import shared_dir

SERVING = {
    38: "case_38_binary_header_length",
    41: "case_41_half_precision_in_json",
    47: "case_47_classification_answers",
    48: "case_48_load_and_unload_at_once",
    49: "case_49_connections",
}
OPTIONS = ("--allow-unproven", "--default-version", "latest")


def folder(number: int) -> Path:
    return shared_dir("cases", "serving", SERVING[number])


def case(number: int) -> dict[str, Any]:
    return dict(yaml.safe_load((folder(number) / "case.yaml").read_text()))


def split_answers(octets: bytes) -> list[Answer]:
    """Every HTTP answer in a stream, interim ones included."""
    answers = []
    while octets:
        head, separator, rest = octets.partition(b"\r\n\r\n")
        assert separator, octets
        first, *lines = head.decode("latin-1").split("\r\n")
        status = int(first.split()[1])
        pairs = (line.partition(": ") for line in lines)
        headers = {name.lower(): value for name, _, value in pairs}
        length = int(headers.get("content-length", 0))
        answers.append(Answer(status, headers, rest[:length]))
        octets = rest[length:]
    return answers


def ask(gateway: Gateway, number: int, request: str, timeout_s: float = 2.0) -> list[Answer]:
    return split_answers(gateway.raw((folder(number) / request).read_bytes(), timeout_s=timeout_s))


def first_output(answer: Answer) -> tuple[dict[str, Any], bytes]:
    """The first output of an answer, and its bytes where it is binary."""
    length = answer.headers.get("inference-header-content-length")
    text = answer.body if length is None else answer.body[: int(length)]
    output = json.loads(text)["outputs"][0]
    size = output.get("parameters", {}).get("binary_data_size", 0)
    return output, answer.body[len(text) : len(text) + size]


def check_refusal(answer: Answer, expected: dict[str, Any]) -> None:
    text = answer.error
    assert all(word in text for word in expected.get("error_names_all", [])), text
    any_of = expected.get("error_names_any", [])
    assert not any_of or any(str(word) in text for word in any_of), text


def served(number: int, tmp_path_factory: pytest.TempPathFactory, *options: str) -> Any:
    repository = folder(number) / "repo"
    return running_gateway(repository, tmp_path_factory.mktemp("gw"), *OPTIONS, *options)


def exchanges(number: int) -> list[Any]:
    """The exchanges of a case as parameters; one that skips where the cases are not there."""
    base = Path(os.environ.get("PARITYGATE_SHARED", Path(__file__).resolve().parents[3] / "shared"))
    path = base / "cases" / "serving" / SERVING[number] / "case.yaml"
    if not path.exists():
        return [pytest.param({}, id="not-handed")]
    found = yaml.safe_load(path.read_text())["exchanges"]
    names = [
        entry["request"] + ("-" + entry["then"].split()[0] if "then" in entry else "") for entry in found
    ]
    return [pytest.param(entry, id=name) for entry, name in zip(found, names, strict=True)]


# --- 38: the length of the JSON part ---


@pytest.fixture(scope="module")
def gateway_38(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    with served(38, tmp_path_factory) as gateway:
        yield gateway


@pytest.mark.parametrize("exchange", exchanges(38))
def test_case_38(gateway_38: Gateway, exchange: dict[str, Any]) -> None:
    (answer,) = ask(gateway_38, 38, exchange["request"], timeout_s=0.5)
    assert answer.status == exchange["status"], answer.body
    if answer.status == 200:
        output, _ = first_output(answer)
        want = exchange["outputs"]["OUTPUT0"]
        assert {key: output[key] for key in want} == want
    else:
        check_refusal(answer, exchange)
    assert gateway_38.ask("GET", "/v2/health/live").status == 200


# --- 41: half precision ---


@pytest.fixture(scope="module")
def gateway_41(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    with served(41, tmp_path_factory) as gateway:
        yield gateway


@pytest.mark.parametrize("exchange", exchanges(41))
def test_case_41(gateway_41: Gateway, exchange: dict[str, Any]) -> None:
    (answer,) = ask(gateway_41, 41, exchange["request"], timeout_s=0.5)
    extension = exchange.get("or_documented_extension")
    if extension and answer.status == 200:
        assert first_output(answer)[0]["data"] == extension["data"]
    elif exchange["status"] == 200:
        assert answer.status == 200, answer.body
        output, octets = first_output(answer)
        want = dict(exchange["outputs"]["OUTPUT0"])
        if want.pop("binary_same_as_request", False):
            sent = (folder(41) / exchange["request"]).read_bytes().partition(b"}}")[2]
            assert octets == sent[-len(octets) :]
            assert len(octets) == 2 * output["shape"][0]
        assert {key: output[key] for key in want} == want
    else:
        assert answer.status in np.atleast_1d(exchange["status"])
        check_refusal(answer, exchange)
    assert gateway_41.ask("GET", "/v2/health/live").status == 200


# --- 47: classification ---


@pytest.fixture(scope="module")
def gateway_47(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    with served(47, tmp_path_factory) as gateway:
        yield gateway


def entries_of(answer: Answer) -> list[list[Any]]:
    """`[value, index]` or `[value, index, label]` of every entry."""
    output, octets = first_output(answer)
    assert output["datatype"] == "BYTES"
    texts = output.get("data")
    if texts is None:
        texts = []
        while octets:
            size = int.from_bytes(octets[:4], "little")
            texts.append(octets[4 : 4 + size].decode())
            octets = octets[4 + size :]
    split = [text.split(":", 2) for text in texts]
    return [[float(value), int(index), *label] for value, index, *label in split]


@pytest.mark.parametrize("exchange", exchanges(47))
def test_case_47(gateway_47: Gateway, exchange: dict[str, Any]) -> None:
    name = exchange["request"]
    (answer,) = ask(gateway_47, 47, name, timeout_s=0.5)
    assert answer.status in np.atleast_1d(exchange["status"]), answer.body
    if answer.status == 400:
        check_refusal(answer, exchange)
        return
    if "shape" in exchange:
        assert first_output(answer)[0]["shape"] == exchange["shape"]
    if want := exchange.get("entries", exchange.get("binary_bytes_entries")):
        assert entries_of(answer) == want
    if name.startswith("02"):
        assert first_output(answer)[0]["shape"] == [1, 4]
        assert [entry[1] for entry in entries_of(answer)] == [2, 1, 3, 0]
    elif name.startswith("04"):
        assert first_output(answer)[0]["data"] == [1.0, 5.0, 10.0, 4.0]
    elif name.startswith("06"):
        entries = entries_of(answer)
        assert [entry[0] for entry in entries] == [7.0, 7.0]
        assert {entry[1] for entry in entries} < {0, 1, 3}
        again = [entries_of(ask(gateway_47, 47, name, timeout_s=0.3)[0]) for _ in range(5)]
        assert again == [entries] * 5
    elif name.startswith("07"):
        entries = entries_of(answer)
        assert [4.0, 3] in [entry[:2] for entry in entries]
        assert entries_of(ask(gateway_47, 47, name, timeout_s=0.3)[0]) == entries


# --- 48: load and unload at once ---

ROW = {"inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [1, 4], "data": [1.0, 2.0, 3.0, 4.0]}]}


@pytest.fixture
def explicit(tmp_path: Path) -> Iterator[tuple[Gateway, Path]]:
    repository = tmp_path / "repo"
    shutil.copytree(folder(48) / "repo", repository, copy_function=shutil.copyfile)
    for path in (repository, *repository.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
    options = (*OPTIONS, "--model-control-mode", "explicit")
    with running_gateway(repository, tmp_path / "gw", *options) as gateway:
        yield gateway, repository


def post(gateway: Gateway, verb: str, model: str = "echo_float") -> Answer:
    return gateway.ask("POST", f"/v2/repository/models/{model}/{verb}")


def at_once(*calls: Any) -> list[Any]:
    """Run calls in threads that start together."""
    results: list[Any] = [None] * len(calls)
    gate = threading.Barrier(len(calls))

    def run(index: int) -> None:
        gate.wait()
        results[index] = calls[index]()

    threads = [threading.Thread(target=run, args=(index,)) for index in range(len(calls))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    return results


def ready(gateway: Gateway) -> bool:
    return gateway.ask("GET", "/v2/models/echo_float/ready").status == 200


def test_case_48_two_loads_at_once(explicit: tuple[Gateway, Path]) -> None:
    gateway, _ = explicit
    answers = at_once(lambda: post(gateway, "load"), lambda: post(gateway, "load"))
    assert [answer.status for answer in answers] == [200, 200]
    assert ready(gateway)
    assert gateway.index() == {("echo_float", "1"): ("READY", "")}


def test_case_48_unload_right_after_load(explicit: tuple[Gateway, Path]) -> None:
    gateway, _ = explicit
    for _ in range(10):
        loading = threading.Thread(target=post, args=(gateway, "load"))
        loading.start()
        unloaded_while_ready = ready(gateway)
        assert post(gateway, "unload").status == 200
        loading.join(30)
        assert not loading.is_alive()
        # Whichever came last has the word; nothing in between may remain.
        assert isinstance(unloaded_while_ready, bool)
    assert post(gateway, "unload").status == 200
    assert not ready(gateway)
    assert gateway.index()["echo_float", "1"][0] != "READY"


def test_case_48_unload_waits(explicit: tuple[Gateway, Path]) -> None:
    gateway, _ = explicit
    assert post(gateway, "load").status == 200
    calls: list[Any] = [lambda: [gateway.infer("echo_float", ROW) for _ in range(25)] for _ in range(8)]
    answers = at_once(*calls, lambda: (time.sleep(0.05), post(gateway, "unload"), gateway.index())[1:])
    unloaded, index = answers.pop()
    assert unloaded.status == 200
    assert index["echo_float", "1"][0] != "READY"
    for answer in (a for batch in answers for a in batch):
        if answer.status == 200:
            assert answer.json["outputs"][0]["data"] == [1.0, 2.0, 3.0, 4.0]
        else:
            assert answer.status in (400, 404, 503)
            assert "echo_float" in answer.error


def test_case_48_load_right_after_unload(explicit: tuple[Gateway, Path]) -> None:
    gateway, _ = explicit
    assert post(gateway, "load").status == 200
    for _ in range(3):
        assert post(gateway, "unload").status == 200
        assert post(gateway, "load").status == 200
        assert ready(gateway)


def test_case_48_new_version_while_busy_then_a_broken_one(explicit: tuple[Gateway, Path]) -> None:
    gateway, repository = explicit
    assert post(gateway, "load").status == 200
    stop = threading.Event()

    def keep_asking() -> list[tuple[int, str, list[float]]]:
        seen = []
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", gateway.ports["http"])) as connection:
            while not stop.is_set():
                connection.request("POST", "/v2/models/echo_float/infer", json.dumps(ROW))
                response = connection.getresponse()
                document = json.loads(response.read())
                seen.append((response.status, document["model_version"], document["outputs"][0]["data"]))
        return seen

    def publish() -> int:
        time.sleep(0.2)
        version = repository / "echo_float" / "2"
        version.mkdir()
        shutil.copyfile(folder(48) / "next_version" / "2" / "model.onnx", version / "model.onnx")
        status = post(gateway, "load").status
        after = gateway.infer("echo_float", ROW).json["model_version"]
        time.sleep(0.2)
        stop.set()
        assert after == "2"
        return status

    *seen, status = at_once(*[keep_asking] * 8, publish)
    assert status == 200
    assert {entry[0] for batch in seen for entry in batch} == {200}
    by_version = {(entry[1], tuple(entry[2])) for batch in seen for entry in batch}
    assert {version for version, _ in by_version} == {"1", "2"}
    assert len(by_version) == 2
    broken = repository / "echo_float" / "3"
    broken.mkdir()
    (broken / "model.onnx").write_bytes(bytes(10))
    answer = post(gateway, "load")
    assert answer.status in (400, 500)
    assert "version 3" in answer.error
    assert gateway.infer("echo_float", ROW).json["model_version"] == "2"


def test_case_48_load_of_nothing(explicit: tuple[Gateway, Path]) -> None:
    gateway, _ = explicit
    before = gateway.index()
    answer = post(gateway, "load", "nothing")
    assert answer.status in (400, 404)
    assert "nothing" in answer.error
    assert gateway.index() == before


def test_case_48_leaves_no_file_and_no_thread_behind(explicit: tuple[Gateway, Path]) -> None:
    gateway, _ = explicit

    def used() -> tuple[int, int]:
        process = Path("/proc") / str(gateway.process.pid)
        return len(list((process / "fd").iterdir())), len(list((process / "task").iterdir()))

    for verb in ("load", "unload"):
        post(gateway, verb)
    files, threads = used()
    for _ in range(10):
        for verb in ("load", "unload"):
            assert post(gateway, verb).status == 200
    gateway.wait(
        lambda: used()[0] <= files + 2 and used()[1] <= threads + 2, 10, f"{used()} <= {files, threads}"
    )
    assert gateway.ask("GET", "/v2/health/live").status == 200


# --- 49: connections ---


@pytest.fixture(scope="module")
def gateway_49(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    with served(49, tmp_path_factory, "--body-timeout-s", "1") as gateway:
        yield gateway


def closed_by_server(connection: socket.socket, timeout_s: float) -> tuple[bytes, bool]:
    """What comes, and whether the server ends the connection within the time."""
    connection.settimeout(timeout_s)
    received = b""
    try:
        while part := connection.recv(65536):
            received += part
    except TimeoutError:
        return received, False
    except ConnectionResetError:
        return received, True
    return received, True


@pytest.mark.parametrize("exchange", exchanges(49))
def test_case_49(gateway_49: Gateway, exchange: dict[str, Any]) -> None:
    octets = (folder(49) / exchange["request"]).read_bytes()
    wanted = [exchange["answers"]]
    wanted += [exchange["or_answers"]] if "or_answers" in exchange else []
    counted = gateway_49.ask("GET", "/v2/models/add_sub/stats").json["model_stats"][0]["execution_count"]
    with socket.create_connection(("127.0.0.1", gateway_49.ports["http"])) as connection:
        connection.sendall(octets)
        if exchange.get("then") == "close the socket":
            connection.close()
            received, closed = b"", True
        else:
            received, closed = closed_by_server(connection, 3.0 if "then" in exchange else 1.0)
    statuses = [answer.status for answer in split_answers(received)]
    if exchange["request"].startswith("07"):
        # The ten bytes too many are a second message that is none; saying so is allowed, a 200 is not.
        assert statuses[0] == 400
        assert set(statuses) == {400}
    else:
        assert statuses in wanted, received
    if "closed" in exchange.get("connection", ""):
        assert closed
    if exchange.get("connection") == "stays open":
        assert not closed
    if exchange["request"].startswith("03"):
        after = gateway_49.ask("GET", "/v2/models/add_sub/stats").json["model_stats"][0]["execution_count"]
        assert after == counted
    assert "Traceback" not in gateway_49.log()
    assert gateway_49.ask("GET", "/v2/health/live").status == 200


def test_case_49_fifty_clients_that_go_away(tmp_path: Path) -> None:
    """The case asks for a run of 5 s and a second each; a tenth of both shows the same and costs a tenth."""
    assert case(49)["disconnect"]
    repository = tmp_path / "repo"
    repository.mkdir()
    write_model(repository, "slow", slow_model(400))
    eye = np.eye(256, dtype=np.float32).tobytes()
    tensor = {
        "name": "x",
        "datatype": "FP32",
        "shape": [256, 256],
        "parameters": {"binary_data_size": len(eye)},
    }
    head = json.dumps({"inputs": [tensor]}).encode()
    request = (
        f"POST /v2/models/slow/infer HTTP/1.1\r\nhost: x\r\ninference-header-content-length: {len(head)}\r\n"
        f"content-length: {len(head) + len(eye)}\r\n\r\n"
    ).encode()
    with running_gateway(repository, tmp_path / "gw", *OPTIONS, "--inference-threads", "1") as gateway:

        def pending() -> dict[str, float]:
            text = gateway.ask("GET", "/metrics", port="metrics").body.decode()
            found = re.findall(
                r"^(paritygate_pending_runs|nv_inference_pending_request_count\{.*\}) (.*)$", text, re.M
            )
            return {name: float(value) for name, value in found}

        for _ in range(50):
            with socket.create_connection(("127.0.0.1", gateway.ports["http"])) as connection:
                connection.sendall(request + head + eye)
                time.sleep(0.1)
        gateway.wait(lambda: not any(pending().values()), 10, "no run to be left")
        stats = gateway.ask("GET", "/v2/models/slow/stats").json["model_stats"][0]
        assert stats["execution_count"] + stats["inference_stats"]["fail"]["count"] == 50
        assert stats["inference_stats"]["fail"]["count"] > 0
        assert gateway.ask("GET", "/v2/health/live").status == 200
        assert "Traceback" not in gateway.log()


# --- the serving half of the model-repository cases ---


@pytest.fixture(scope="module")
def repositories(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """All model-repository cases in one gateway: their models have different names."""
    repository = tmp_path_factory.mktemp("repo")
    for name in (
        "case_31_odd_version_directories",
        "case_32_version_policy_minus_one",
        "case_36_label_files",
    ):
        source = shared_dir("cases", "model-repository", name, "repo")
        shutil.copytree(source, repository, dirs_exist_ok=True, copy_function=shutil.copyfile)
    for path in (repository, *repository.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
    began = time.monotonic()
    with running_gateway(repository, tmp_path_factory.mktemp("gw"), *OPTIONS) as gateway:
        assert time.monotonic() - began < 30
        yield gateway


def two(name: str, version: str, gateway: Gateway) -> Answer:
    row = {"inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [1, 2], "data": [0, 0]}]}
    return gateway.infer(name, row, version)


def test_case_31_odd_version_directories(repositories: Gateway) -> None:
    index = repositories.index()
    assert {version for model, version in index if model == "counter"} == {"1", "2"}
    for version in ("2", ""):
        assert two("counter", version, repositories).json["outputs"][0]["data"] == [2.0, 2.0]
    answer = two("counter", "10", repositories)
    assert answer.status in (400, 404)
    assert "counter" in answer.error
    assert "10" in answer.error
    for ignored in ("010", "model", "v3", "2.5"):
        assert repositories.log().count(f"'counter/{ignored}'") == 1


def test_case_31_versions_without_a_usable_folder_or_file_are_refused(repositories: Gateway) -> None:
    index = repositories.index()
    (reason,) = [reason for (model, _), (_, reason) in index.items() if model == "zero_first"]
    assert "version" in reason or "01" in reason
    state, reason = index["gap", "2"]
    assert state == "UNAVAILABLE"
    assert "gap" in reason
    assert "model.onnx" in reason
    answer = two("gap", "", repositories)
    assert answer.status in (404, 503), "version 1 must not answer for the version 2 that is wanted"


def test_case_32_versions_that_cannot_be_are_told(repositories: Gateway) -> None:
    reasons = {model: reason for (model, _), (_, reason) in repositories.index().items() if reason}
    assert "pinned" in reasons["pinned"]
    assert "-1" in reasons["pinned"]
    assert "18446744073709551615" not in reasons["pinned"]
    assert repositories.index()["absent", "4"][0] == "UNAVAILABLE"
    assert "4" in reasons["absent"]
    assert repositories.ask("GET", "/v2/health/live").status == 200


def fruit(gateway: Gateway, rows: int, data: list[float], count: int) -> Answer:
    tensor = {"name": "logits", "datatype": "FP32", "shape": [rows, 4], "data": data}
    output = {"name": "scores", "parameters": {"classification": count}}
    return gateway.infer("fruit", {"inputs": [tensor], "outputs": [output]})


def test_case_36_label_files(repositories: Gateway) -> None:
    answer = fruit(repositories, 1, [0.5, 3.0, 1.5, 9.0], 4)
    assert first_output(answer)[0]["shape"] == [1, 4]
    assert entries_of(answer) == [
        [9.0, 3],
        [3.0, 1, "banana, ripe"],
        [1.5, 2, "Jägerapfel:süß"],
        [0.5, 0, "apple"],
    ]
    state, reason = repositories.index()["no_file", "1"]
    assert state == "UNAVAILABLE"
    assert "no_file" in reason
    assert "labels.txt" in reason
    answer = fruit(repositories, 2, [1, 2, 3, 4, 4, 3, 2, 1], 1)
    assert first_output(answer)[0]["shape"] == [2, 1]
    assert entries_of(answer) == [[4.0, 3], [4.0, 0, "apple"]]
