"""What is HTTP's alone: header length, JSON values, encodings, limits, connections, routes, errors' form."""

from __future__ import annotations

import gzip
import json
import os
import socket
import threading
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support.gateway import Gateway, running_gateway
from support.onnx_models import (
    expanding_model,
    identity_model,
    two_input_model,
    write_model,
)

LIMIT = 65536


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    repository = tmp_path_factory.mktemp("repo")
    for datatype in ("BOOL", "INT8", "UINT64", "INT64", "FP16", "BF16", "FP32", "FP64", "BYTES"):
        write_model(repository, datatype.lower(), identity_model(datatype))
    write_model(repository, "two", two_input_model())
    write_model(repository, "pair", identity_model("FP32", ("n", 2)), max_batch_size=4)
    write_model(repository, "expand", expanding_model())
    options = ("--allow-unproven", "--max-body-bytes", str(LIMIT), "--body-timeout-s", "1.5")
    limits = ("--max-response-bytes", "1000000", "--max-header-bytes", "8192")
    memory = ("--max-memory-bytes", "4000000000")
    with running_gateway(
        repository, tmp_path_factory.mktemp("gateway"), *options, *limits, *memory
    ) as running:
        yield running


def document(datatype: str, data: Any, shape: list[int] | None = None) -> dict[str, Any]:
    count = len(data) if isinstance(data, list) else 1
    return {"inputs": [{"name": "x", "datatype": datatype, "shape": shape or [count], "data": data}]}


def data_of(answer: Any) -> Any:
    assert answer.status == 200, answer.body
    return answer.json["outputs"][0]["data"]


# --- JSON values ---


@pytest.mark.parametrize(
    ("datatype", "data", "back"),
    [
        ("FP16", [1.5, -2.25], [1.5, -2.25]),
        ("BF16", [1.5, -2.0], [1.5, -2.0]),
        ("FP32", [0.1, 1, -3], [0.1, 1.0, -3.0]),
        ("FP32", [16777217], [16777216.0]),
        ("FP64", [0.1, 5e-324], [0.1, 5e-324]),
        ("INT64", [2**63 - 1, -(2**63)], [2**63 - 1, -(2**63)]),
        ("UINT64", [2**64 - 1], [2**64 - 1]),
        ("BOOL", [True, False], [True, False]),
        ("BYTES", ["a", "", "漢\0字 🍏"], ["a", "", "漢\0字 🍏"]),
    ],
)
def test_json_values_come_back(gateway: Gateway, datatype: str, data: list[Any], back: list[Any]) -> None:
    assert data_of(gateway.infer(datatype.lower(), document(datatype, data))) == back


def test_nested_data_is_read_row_by_row(gateway: Gateway) -> None:
    answer = gateway.infer("pair", document("FP32", [[1.0, 2.0], [3.0, 4.0]], [2, 2]))
    assert answer.json["outputs"][0]["shape"] == [2, 2]
    assert data_of(answer) == [1.0, 2.0, 3.0, 4.0]


@pytest.mark.parametrize("datatype", ["FP16", "BF16", "FP32", "FP64"])
def test_nan_and_infinities_are_read_and_written_as_tokens(gateway: Gateway, datatype: str) -> None:
    body = json.dumps(document(datatype, [float("nan"), float("inf"), float("-inf"), 1.0])).encode()
    assert b"NaN, Infinity, -Infinity" in body
    answer = gateway.ask("POST", f"/v2/models/{datatype.lower()}/infer", body)
    assert b'"data":[NaN,Infinity,-Infinity,1.0]' in answer.body


@pytest.mark.parametrize(
    ("datatype", "data", "match"),
    [
        ("INT8", [1, 300], "input 'x' has 300 at element 1; INT8 takes -128 to 127"),
        ("INT8", [1.5], "input 'x' has 1.5 at element 0; INT8 takes whole numbers"),
        ("INT8", [True], "has True at element 0; INT8 takes whole numbers"),
        ("UINT64", [-1], "has -1 at element 0; UINT64 takes 0 to"),
        ("INT64", [2**64], "INT64 takes whole numbers of at most 64 bits"),
        ("FP32", [1e39], "has 1e[+]39 at element 0, out of range for FP32"),
        ("FP16", [70000], "has 70000 at element 0, out of range for FP16"),
        ("FP32", ["1"], "has '1' at element 0; FP32 takes numbers"),
        ("FP32", [None], "has None at element 0; FP32 takes numbers"),
        ("FP32", {"a": 1}, "'data' of input 'x' is a JSON object; expected a list"),
        ("FP32", [[1.0], 2.0], "mixes lists and values"),
        ("BOOL", [1], "has 1 at element 0; BOOL takes true and false"),
        ("BYTES", [1], "has 1 at element 0; BYTES takes strings"),
    ],
)
def test_json_values_that_do_not_fit_are_refused(
    gateway: Gateway, datatype: str, data: Any, match: str
) -> None:
    answer = gateway.infer(datatype.lower(), document(datatype, data))
    assert answer.status == 400
    import re

    assert re.search(match, answer.error), answer.error


@pytest.mark.parametrize(
    ("body", "match"),
    [
        (b"", "body is empty"),
        (b"{", "not valid JSON"),
        (b"[]", "JSON list; expected an object"),
        (b"null", "JSON null"),
        (b"{}", "'inputs' is missing"),
        (b'{"inputs": {}}', "'inputs' is a JSON object"),
        (b'{"inputs": [3]}', "entry of 'inputs' is a JSON number"),
        (b'{"inputs": [{"datatype": "FP32"}]}', "no 'name'"),
        (b'{"inputs": [{"name": "x", "datatype": "FP32"}]}', "has shape None"),
        (b'{"inputs": [{"name": "x", "datatype": "FP32", "shape": [1.5], "data": [1]}]}', "has 1.5 in its shape"),
        (b'{"inputs": [{"name": "x", "datatype": "FP32", "shape": [true], "data": [1]}]}', "has True in its"),
        (b'{"inputs": [{"name": "x", "datatype": "FP32", "shape": [1]}]}', "neither 'data' nor"),
        (b'{"inputs": [{"name": "x", "datatype": "FP32", "shape": [2], "data": [1]}]}', r"1 elements .*takes 2"),
        (b'{"inputs": [{"name": "x", "datatype": "FP32", "shape": [1000000000000], "data": [1]}]}', "1 elements"),
        (b'{"id": 7, "inputs": []}', "'id' is a JSON number"),
        (b'{"parameters": {"a": {}}, "inputs": []}', "parameter 'a' of the request is a JSON object"),
        (b'{"parameters": {"binary_data_output": 1}, "inputs": []}', "'binary_data_output' of the request is 1"),
        (b'{"inputs": [], "outputs": [{}]}', "entry of 'outputs' has no 'name'"),
        (b"\xff\xfe{", "not valid JSON"),
        (b'{"inputs": ' + b"[" * 2000 + b"]" * 2000 + b"}", "not valid JSON"),
        (b'{"a": NaN, "inputs": ' + b"[" * 20000 + b"}", "not valid JSON"),
        (
            b'{"inputs": [{"name": "x", "datatype": "FP32", "shape": [1], "data": '
            + b"[" * 100 + b"1" + b"]" * 100 + b"}]}",
            "nested deeper than 32",
        ),
        (
            b'{"inputs": [{"name": "x", "datatype": "FP32", "shape": [1], "data": [1],'
            b' "parameters": {"shared_memory_region": "r"}}]}',
            "names a shared memory region",
        ),
    ],
)  # fmt: skip
def test_json_that_is_no_request_is_refused(gateway: Gateway, body: bytes, match: str) -> None:
    answer = gateway.ask("POST", "/v2/models/fp32/infer", body)
    assert answer.status == 400, answer.body
    import re

    assert re.search(match, answer.error), answer.error


# --- header length and raw bodies ---


@pytest.mark.parametrize("value", ["-1", "12abc", "", " ", "1e3", "99999999999999999999", "0x10", "١"])
def test_header_length_that_is_no_number_is_refused(gateway: Gateway, value: str) -> None:
    body = json.dumps(document("FP32", [1.0])).encode()
    head = (
        f"POST /v2/models/fp32/infer HTTP/1.1\r\nhost: x\r\ninference-header-content-length: {value}\r\n"
        f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
    )
    answer = gateway.raw(head.encode() + body)
    assert answer.startswith(b"HTTP/1.1 400"), answer
    assert b"Inference-Header-Content-Length" in answer


def test_two_header_lengths_are_refused(gateway: Gateway) -> None:
    body = json.dumps(document("FP32", [1.0])).encode()
    lengths = f"inference-header-content-length: {len(body)}\r\ninference-header-content-length: 3\r\n"
    head = f"POST /v2/models/fp32/infer HTTP/1.1\r\nhost: x\r\n{lengths}content-length: {len(body)}\r\n"
    answer = gateway.raw(head.encode() + b"connection: close\r\n\r\n" + body)
    assert answer.startswith(b"HTTP/1.1 400")
    assert b"given twice" in answer


RAW = {"Inference-Header-Content-Length": "0"}


def test_raw_body_takes_its_shape_from_the_number_of_bytes(gateway: Gateway) -> None:
    values = np.array([1.5, -2.0, 3.0], np.float32)
    answer = gateway.ask("POST", "/v2/models/fp32/infer", values.tobytes(), RAW)
    length = int(answer.headers["inference-header-content-length"])
    assert json.loads(answer.body[:length])["outputs"][0]["shape"] == [3]
    assert answer.body[length:] == values.tobytes()


def test_raw_body_of_a_batching_model_is_one_row(gateway: Gateway) -> None:
    answer = gateway.ask("POST", "/v2/models/pair/infer", np.ones(2, np.float32).tobytes(), RAW)
    length = int(answer.headers["inference-header-content-length"])
    assert json.loads(answer.body[:length])["outputs"][0]["shape"] == [1, 2]


def test_raw_body_of_text_is_one_element(gateway: Gateway) -> None:
    answer = gateway.ask("POST", "/v2/models/bytes/infer", "grün".encode(), RAW)
    assert answer.body.endswith("\5\0\0\0grün".encode())


@pytest.mark.parametrize(
    ("model", "body", "match"),
    [("two", b"", "has 2 inputs"), ("fp32", b"12345", "multiple of 4"), ("pair", bytes(12), "takes 8")],
)
def test_raw_body_that_does_not_fit_is_refused(gateway: Gateway, model: str, body: bytes, match: str) -> None:
    answer = gateway.ask("POST", f"/v2/models/{model}/infer", body, RAW)
    assert answer.status == 400
    assert match in answer.error


def test_answer_without_a_byte_has_no_header_length(gateway: Gateway) -> None:
    request = document("FP32", [], [0]) | {"parameters": {"binary_data_output": True}}
    answer = gateway.infer("fp32", request)
    assert "inference-header-content-length" not in answer.headers
    assert answer.json["outputs"][0]["parameters"] == {"binary_data_size": 0}


# --- encodings and limits ---


def test_compressed_body_is_read(gateway: Gateway) -> None:
    body = json.dumps(document("FP32", [1.0])).encode()
    bare = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    for encoding, packed in {
        "gzip": gzip.compress(body[:20], mtime=0) + gzip.compress(body[20:]),
        "deflate": zlib.compress(body),
        "DEFLATE": bare.compress(body) + bare.flush(),
    }.items():
        answer = gateway.ask("POST", "/v2/models/fp32/infer", packed, {"Content-Encoding": encoding})
        assert data_of(answer) == [1.0]


@pytest.mark.parametrize(
    ("encoding", "body", "status", "match"),
    [
        ("gzip", gzip.compress(bytes(50_000_000)), 413, f"more than the {LIMIT} bytes"),
        ("deflate", zlib.compress(bytes(50_000_000)), 413, f"more than the {LIMIT} bytes"),
        ("gzip", b"no gzip", 400, "not valid gzip"),
        ("gzip", gzip.compress(b"{}" * 100, mtime=0)[:-6], 400, "breaks off"),
        ("gzip", gzip.compress(b"{}", mtime=0) + b"rest", 400, "not valid gzip"),
        ("br", b"x", 501, "Content-Encoding 'br' is not known"),
        ("gzip, gzip", b"x", 501, "not known"),
    ],
)
def test_body_that_cannot_be_decompressed_is_refused(
    gateway: Gateway, encoding: str, body: bytes, status: int, match: str
) -> None:
    answer = gateway.ask("POST", "/v2/models/fp32/infer", body, {"Content-Encoding": encoding})
    assert answer.status == status
    assert match in answer.error
    if status == 501:
        assert answer.headers["accept-encoding"] == "gzip, deflate"


def test_body_over_the_limit_is_refused_before_it_is_sent(gateway: Gateway) -> None:
    head = b"POST /v2/models/fp32/infer HTTP/1.1\r\nhost: x\r\ncontent-length: 9999999999\r\n\r\n"
    answer = gateway.raw(head)
    assert answer.startswith(b"HTTP/1.1 413")
    assert b"connection: close" in answer


def test_chunked_body_over_the_limit_is_refused_on_the_way(gateway: Gateway) -> None:
    head = b"POST /v2/models/fp32/infer HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"
    chunk = b"8000\r\n" + bytes(0x8000) + b"\r\n"
    assert gateway.raw(head + chunk * 3).startswith(b"HTTP/1.1 413")


def test_answer_over_the_limit_is_refused(gateway: Gateway) -> None:
    request = {"inputs": [{"name": "shape", "datatype": "INT64", "shape": [2], "data": [1000, 1000]}]}
    answer = gateway.infer("expand", request)
    assert answer.status == 400
    assert "the answer has 4000000 bytes, more than the 1000000" in answer.error


@pytest.mark.parametrize("size", [2**23, 2**34, 2**50])
def test_run_that_wants_too_much_memory_fails_alone_and_gives_it_back(gateway: Gateway, size: int) -> None:
    request = {"inputs": [{"name": "shape", "datatype": "INT64", "shape": [2], "data": [size, 1024]}]}
    answer = gateway.infer("expand", request)
    assert answer.status == 413
    assert "takes more memory for these inputs" in answer.error
    assert resident_bytes(gateway) < 500_000_000
    request["inputs"][0]["data"] = [2, 3]
    assert gateway.infer("expand", request).status == 200


def test_memory_of_a_large_run_is_given_back(gateway: Gateway) -> None:
    before = resident_bytes(gateway)
    request = {"inputs": [{"name": "shape", "datatype": "INT64", "shape": [2], "data": [2**18, 1024]}]}
    assert gateway.infer("expand", request).status == 400  # a GiB, more than one answer may have
    assert resident_bytes(gateway) < before + 100_000_000


def resident_bytes(gateway: Gateway) -> int:
    fields = Path(f"/proc/{gateway.process.pid}/statm").read_text().split()
    return int(fields[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.parametrize("key", ["inputs", "outputs"])
def test_too_many_tensors_are_refused(gateway: Gateway, key: str) -> None:
    tensor = {"name": "x", "datatype": "FP32", "shape": [1], "data": [1]}
    answer = gateway.infer("fp32", {"inputs": [tensor]} | {key: [tensor] * 5000})
    assert answer.status in (400, 413)


def test_failing_runtime_is_an_internal_error_in_one_line(gateway: Gateway) -> None:
    request = {"inputs": [{"name": "shape", "datatype": "INT64", "shape": [2], "data": [-5, 2**40]}]}
    answer = gateway.infer("expand", request)
    assert answer.status == 500
    assert "the model failed while it computed" in answer.error
    assert "\n" not in answer.error


# --- connections ---


def test_slow_body_is_given_up(gateway: Gateway) -> None:
    began = time.monotonic()
    head = b"POST /v2/models/fp32/infer HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\n{"
    answer = gateway.raw(head, timeout_s=10)
    assert answer.startswith(b"HTTP/1.1 408")
    assert b"did not arrive within 1.5 s" in answer
    assert time.monotonic() - began < 8


def test_slow_head_is_given_up(gateway: Gateway) -> None:
    assert gateway.raw(b"GET /v2/health/live HT", timeout_s=10).startswith(b"HTTP/1.1 408")


def test_head_sent_byte_by_byte_does_not_last_for_ever(gateway: Gateway) -> None:
    with socket.create_connection(("127.0.0.1", gateway.ports["http"]), timeout=10) as connection:
        ended = threading.Event()

        def drip() -> None:
            connection.sendall(b"GET /v2/health/live HTTP/1.1\r\nx: ")
            while not ended.is_set():
                try:
                    connection.sendall(b"a")
                except OSError:
                    return
                time.sleep(0.1)

        thread = threading.Thread(target=drip)
        thread.start()
        answer = connection.recv(4096)
        ended.set()
        thread.join()
    assert answer.startswith(b"HTTP/1.1 408")


@pytest.mark.parametrize(
    "head",
    [
        b"GET /v2 HTTP/1.1\r\nhost: x\r\nx-long: " + b"a" * 20000 + b"\r\n\r\n",
        b"GET /v2 HTTP/1.1\r\n" + b"".join(b"h%d: v\r\n" % i for i in range(2000)) + b"\r\n",
        b"GET /" + b"a" * 20000 + b" HTTP/1.1\r\nhost: x\r\n\r\n",
    ],
    ids=["one long line", "many lines", "long path"],
)
def test_head_over_the_limit_is_refused(gateway: Gateway, head: bytes) -> None:
    answer = gateway.raw(head)
    assert answer.startswith(b"HTTP/1.1 431")
    assert answer.count(b"HTTP/1.1") == 1


def test_what_is_no_http_gets_one_json_error(gateway: Gateway) -> None:
    answer = gateway.raw(b"\x16\x03\x01\x02\x00\x01\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 400")
    assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"]


# --- routes and errors ---


@pytest.mark.parametrize(
    ("method", "path", "status", "error"),
    [
        ("GET", "/no-such-page", 404, "Not Found"),
        ("GET", "/v2/", 404, "Not Found"),
        ("GET", "/v2/models/fp32/", 404, "Not Found"),
        ("GET", "/v2/models/fp32/infer/x", 404, "Not Found"),
        ("POST", "/v2/models//infer", 404, "Not Found"),
        ("GET", "/v2/models/fp32/infer", 405, "Method Not Allowed"),
        ("POST", "/v2/health/live", 405, "Method Not Allowed"),
        ("GET", "/v2/repository/index", 405, "Method Not Allowed"),
        ("GET", "/v2/models/none", 404, "Request for unknown model: 'none' is not found"),
        ("GET", "/v2/models/none/config", 404, "Request for unknown model: 'none' is not found"),
        ("GET", "/v2/models/none/stats", 404, "Request for unknown model: 'none' is not found"),
        ("GET", "/v2/models/none/ready", 400, "Model version not ready"),
        ("GET", "/v2/models/fp32/versions/7/ready", 400, "Model version not ready"),
        ("GET", "/v2/models/fp32/versions/7", 404, "'fp32' version 7 is not found"),
        ("POST", "/v2/models/..%2F..%2Fetc/infer", 404, "'../../etc' is not found"),
    ],
)
def test_route_answers_in_the_form_of_triton(
    gateway: Gateway, method: str, path: str, status: int, error: str
) -> None:
    body = json.dumps(document("FP32", [1.0])).encode() if path.endswith("infer") else None
    answer = gateway.ask(method, path, body)
    assert answer.status == status
    assert error in answer.error


def test_model_name_in_the_path_is_decoded(gateway: Gateway) -> None:
    assert gateway.ask("POST", "/v2/models/f%703%32/infer", document("FP32", [1.0])).status == 200


@pytest.mark.parametrize(
    "path", ["/v2/health/live", "/v2/health/ready", "/v2/models/fp32/ready", "/v2/models"]
)
def test_health_is_good(gateway: Gateway, path: str) -> None:
    assert gateway.ask("GET", path).status == 200


@pytest.mark.parametrize(
    ("body", "status"),
    [(b"", 200), (b"{}", 200), (b'{"ready": true}', 200), (b'{"ready": 1}', 400), (b"[]", 400), (b"{", 400)],
)
def test_index_takes_no_body_or_ready(gateway: Gateway, body: bytes, status: int) -> None:
    answer = gateway.ask("POST", "/v2/repository/index", body)
    assert answer.status == status
    assert answer.error if status == 400 else isinstance(answer.json, list)


@pytest.mark.parametrize(
    ("port", "name", "start"),
    [("http", "paritygate", "/v2"), ("admin", "paritygate admin", "/v2/repository")],
)
def test_the_root_says_what_answers_and_where_to_read_on(
    gateway: Gateway, port: str, name: str, start: str
) -> None:
    front = gateway.ask("GET", "/", port=port)
    assert front.status == 200
    version = gateway.ask("GET", "/v2").json["version"]
    assert front.json == {"name": name, "version": version, "docs": "/docs", "api": start}
    assert gateway.ask("GET", front.json["docs"], port=port).status == 200
    assert any(
        path.startswith(start) for path in gateway.ask("GET", "/openapi.json", port=port).json["paths"]
    )


def test_openapi_document_names_every_call(gateway: Gateway) -> None:
    paths = gateway.ask("GET", "/openapi.json").json["paths"]
    assert {
        "/v2",
        "/v2/health/live",
        "/v2/health/ready",
        "/v2/models/{model}",
        "/v2/models/{model}/config",
    } <= set(paths)
    assert {"/v2/models/{model}/infer", "/v2/models/{model}/versions/{version}/infer"} <= set(paths)
    assert {"/v2/models/stats", "/v2/repository/index", "/v2/repository/models/{model}/load"} <= set(paths)


def test_metrics_have_the_names_of_triton_and_real_counts(gateway: Gateway) -> None:
    def value(name: str) -> float:
        text = gateway.ask("GET", "/metrics", port="metrics").body.decode()
        (line,) = [
            line for line in text.splitlines() if line.startswith(f'{name}{{model="fp64",version="1"}}')
        ]
        return float(line.rpartition(" ")[2])

    before = value("nv_inference_request_success")
    for _ in range(3):
        assert gateway.infer("fp64", document("FP64", [1.0])).status == 200
    assert value("nv_inference_request_success") == before + 3
    assert value("nv_inference_request_duration_us") > 0
    assert value("nv_inference_pending_request_count") == 0
    assert value("nv_inference_request_duration_histogram_us_count") == before + 3


def test_reserved_header_is_refused_over_http(gateway: Gateway) -> None:
    answer = gateway.infer("fp32", document("FP32", [1.0]), x_pg_model_version="2")
    assert answer.status == 400
    assert "'x-pg-model-version' is reserved" in answer.error


def test_log_holds_no_traceback(gateway: Gateway) -> None:
    assert "Traceback" not in gateway.log()
