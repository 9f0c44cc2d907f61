"""REST and gRPC answer the same cases from one table, and every datatype passes through every stock client."""

from __future__ import annotations

import asyncio
import gc
import json
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import grpc
import ml_dtypes
import numpy as np
import pytest
import tritonclient.grpc as grpcclient
import tritonclient.grpc.aio as grpcclient_aio
import tritonclient.http as httpclient
import tritonclient.http.aio as httpclient_aio
from tritonclient.grpc import service_pb2, service_pb2_grpc

from paritygate.serving.errors import Kind
from paritygate.serving.facades import FACADES, get_facade
from paritygate.serving.facades.base import Facade
from paritygate.serving.facades.http_errors import STATUS
from paritygate.serving.facades.v2_grpc import CODES
from support.gateway import Gateway, running_gateway
from support.onnx_models import (
    ELEMENT_TYPES,
    add_model,
    identity_model,
    two_input_model,
    write_config,
    write_model,
    write_version,
)

TEXTS = ["", "plain", "Jägerapfel", "漢字 🍏", "with\nline", "nul\0inside"]

VALUES: dict[str, Any] = {
    "BOOL": [True, False, True],
    "UINT8": [0, 255, 7],
    "UINT16": [0, 65535, 7],
    "UINT32": [0, 2**32 - 1, 7],
    "UINT64": [0, 2**64 - 1, 2**53 + 1],
    "INT8": [-128, 127, 0],
    "INT16": [-32768, 32767, 0],
    "INT32": [-(2**31), 2**31 - 1, 0],
    "INT64": [-(2**63), 2**63 - 1, 2**53 + 1],
    "FP16": [1.5, -65504.0, 6e-8],
    "BF16": [1.5, -2.0, 3.0e38],
    "FP32": [0.1, -3.4e38, 1e-45],
    "FP64": [0.1, -1.7e308, 5e-324],
    "BYTES": TEXTS,
}


def array_of(datatype: str) -> np.ndarray:
    """The values as a client holds them."""
    if datatype == "BYTES":
        return np.array([text.encode() for text in TEXTS], dtype=object)
    names: dict[str, Any] = {
        "FP16": "float16",
        "BF16": ml_dtypes.bfloat16,
        "FP32": "float32",
        "FP64": "float64",
        "BOOL": "bool",
    }
    return np.array(VALUES[datatype], dtype=names.get(datatype, datatype.lower()))


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    repository = tmp_path_factory.mktemp("repo")
    for datatype in ELEMENT_TYPES:
        write_model(repository, f"echo_{datatype.lower()}", identity_model(datatype))
    write_model(repository, "two", two_input_model())
    write_model(repository, "batched", identity_model("FP32", ("n", 2)), max_batch_size=4)
    versioned = add_model(1.0)
    write_model(repository, "add", versioned)
    write_version(repository, "add", 2, add_model(2.0))
    write_config(repository, "add", versioned, [1, 2])
    work = tmp_path_factory.mktemp("gateway")
    with running_gateway(repository, work, "--allow-unproven", "--max-body-bytes", "65536") as running:
        yield running


# --- one table for both protocols ---


@dataclass(frozen=True)
class Tensor:
    name: str
    datatype: str
    shape: list[int]
    data: bytes


def fp32(name: str, *shape: int) -> Tensor:
    return Tensor(name, "FP32", list(shape), np.arange(np.prod(shape), dtype=np.float32).tobytes())


@dataclass(frozen=True)
class Case:
    """One request and what comes of it: a kind of error and its text, or (kind None) an answer."""

    kind: Kind | None
    match: str
    model: str = "two"
    version: str = ""
    tensors: tuple[Tensor, ...] = (fp32("a", 2, 3), fp32("b", 2, 3))
    outputs: tuple[tuple[str, int], ...] = ()
    parameters: dict[str, Any] = field(default_factory=dict)
    headers: dict[str, str] = field(default_factory=dict)


BAD = Kind.INVALID_ARGUMENT
CASES = {
    "good": Case(None, "sum,difference"),
    "one output": Case(None, "difference", outputs=(("difference", 0),)),
    "classified output": Case(None, "sum", outputs=(("sum", 2),)),
    "named version": Case(None, "y", "add", "2", (fp32("x", 3),)),
    "empty tensor": Case(None, "sum,difference", tensors=(fp32("a", 0, 3), fp32("b", 0, 3))),
    "custom parameter": Case(None, "sum,difference", parameters={"mine": "x"}),
    "unknown model": Case(Kind.NOT_FOUND, "unknown model: 'nomodel' is not found", "nomodel"),
    "unknown version": Case(Kind.NOT_FOUND, "unknown model: 'two' version 9 is not found", version="9"),
    "odd version": Case(BAD, "version string '1.5'", version="1.5"),
    "negative version": Case(BAD, "version string '-1'", version="-1"),
    "unknown input": Case(BAD, "unexpected inference input 'z'.*takes 'a', 'b'", tensors=(fp32("z", 2, 3),)),
    "missing input": Case(BAD, "expected 2 inputs but got 1.*missing 'b'", tensors=(fp32("a", 2, 3),)),
    "no inputs": Case(BAD, "expected 2 inputs but got 0", tensors=()),
    "input twice": Case(BAD, "input 'a' is given twice", tensors=(fp32("a", 2, 3), fp32("a", 2, 3))),
    "extra input": Case(
        BAD, "unexpected inference input 'c'", tensors=(fp32("a", 1, 3), fp32("b", 1, 3), fp32("c", 1, 3))
    ),
    "wrong datatype": Case(
        BAD,
        "input 'a' data-type is 'FP64', but model 'two' expects 'FP32'",
        tensors=(Tensor("a", "FP64", [1, 3], bytes(24)), fp32("b", 1, 3)),
    ),
    "no such datatype": Case(
        BAD,
        "input 'a' has datatype 'FLOAT'",
        tensors=(Tensor("a", "FLOAT", [1, 3], bytes(12)), fp32("b", 1, 3)),
    ),
    "wrong size": Case(
        BAD, r"'a'.*Expected \[-1,3\], got \[2,4\]", tensors=(fp32("a", 2, 4), fp32("b", 2, 3))
    ),
    "wrong rank": Case(
        BAD, r"input 'a'.*Expected \[-1,3\], got \[3\]", tensors=(fp32("a", 3), fp32("b", 2, 3))
    ),
    "rank zero": Case(
        BAD, r"Expected \[-1,3\], got \[\]", tensors=(Tensor("a", "FP32", [], bytes(4)), fp32("b", 2, 3))
    ),
    "sizes that must agree": Case(
        BAD,
        "dimension 'n' .* is 2 in input 'a' but 3 in input 'b'",
        tensors=(fp32("a", 2, 3), fp32("b", 3, 3)),
    ),
    "negative size": Case(
        BAD,
        "input 'a' has -2 in its shape",
        tensors=(Tensor("a", "FP32", [-2, 3], bytes(24)), fp32("b", 2, 3)),
    ),
    "size beyond all bytes": Case(
        BAD, "input 'a' claims", tensors=(Tensor("a", "FP32", [2**61, 3], bytes(24)), fp32("b", 2, 3))
    ),
    "too few bytes": Case(
        BAD,
        r"input 'a' came with 20 bytes; FP32 of shape \[2, 3\] takes 24",
        tensors=(Tensor("a", "FP32", [2, 3], bytes(20)), fp32("b", 2, 3)),
    ),
    "too many bytes": Case(
        BAD, "input 'a' came with 28 bytes", tensors=(Tensor("a", "FP32", [2, 3], bytes(28)), fp32("b", 2, 3))
    ),
    "unknown output": Case(
        BAD, "unexpected inference output 'y'.*gives 'sum', 'difference'", outputs=(("y", 0),)
    ),
    "output twice": Case(BAD, "output 'sum' is asked for twice", outputs=(("sum", 0), ("sum", 0))),
    "negative classification": Case(BAD, "'sum' has classification -1", outputs=(("sum", -1),)),
    "reserved parameter": Case(
        BAD, "parameter 'triton_secret' is reserved", parameters={"triton_secret": True}
    ),
    "batch too large": Case(BAD, "batch size 5; .* takes 1 to 4", "batched", tensors=(fp32("x", 5, 2),)),
    "batch of none": Case(BAD, "batch size 0", "batched", tensors=(fp32("x", 0, 2),)),
    "text that is not UTF-8": Case(
        BAD,
        "input 'x' has no UTF-8 at element 1",
        "echo_bytes",
        tensors=(Tensor("x", "BYTES", [2], b"\x01\0\0\0a\x02\0\0\0\xff\xfe"),),
    ),
    "text that breaks off": Case(
        BAD,
        "says 9 bytes for BYTES element 0, but only 1 follow",
        "echo_bytes",
        tensors=(Tensor("x", "BYTES", [1], b"\x09\0\0\0a"),),
    ),
    "text left over": Case(
        BAD,
        "3 unexpected additional bytes",
        "echo_bytes",
        tensors=(Tensor("x", "BYTES", [1], b"\x01\0\0\0aabc"),),
    ),
    "neither true nor false": Case(
        BAD,
        "byte 2 at element 1; a BOOL is 0 or 1",
        "echo_bool",
        tensors=(Tensor("x", "BOOL", [2], b"\x01\x02"),),
    ),
    "header of the gateway": Case(BAD, "'x-pg-bucket' is reserved", headers={"x-pg-bucket": "0001"}),
}


def http_request(case: Case) -> tuple[bytes, dict[str, str]]:
    inputs = [
        {
            "name": t.name,
            "datatype": t.datatype,
            "shape": t.shape,
            "parameters": {"binary_data_size": len(t.data)},
        }
        for t in case.tensors
    ]
    document: dict[str, Any] = {
        "inputs": inputs,
        "parameters": {**case.parameters, "binary_data_output": True},
    }
    if case.outputs:
        document["outputs"] = [
            {"name": name, **({"parameters": {"classification": k}} if k else {})} for name, k in case.outputs
        ]
    head = json.dumps(document).encode()
    body = head + b"".join(t.data for t in case.tensors)
    return body, {"Inference-Header-Content-Length": str(len(head)), **case.headers}


def grpc_request(case: Case) -> Any:
    message = service_pb2.ModelInferRequest(model_name=case.model, model_version=case.version)
    for tensor in case.tensors:
        message.inputs.add(name=tensor.name, datatype=tensor.datatype, shape=tensor.shape)
        message.raw_input_contents.append(tensor.data)
    for name, k in case.outputs:
        output = message.outputs.add(name=name)
        if k:
            output.parameters["classification"].int64_param = k
    for key, value in case.parameters.items():
        field_name = "bool_param" if isinstance(value, bool) else "string_param"
        setattr(message.parameters[key], field_name, value)
    return message


def ask_http(gateway: Gateway, case: Case) -> tuple[Kind | None, str]:
    body, headers = http_request(case)
    place = f"/v2/models/{case.model}/versions/{case.version}" if case.version else f"/v2/models/{case.model}"
    answer = gateway.ask("POST", f"{place}/infer", body, headers)
    if answer.status == 200:
        length = int(answer.headers.get("inference-header-content-length", len(answer.body)))
        return None, ",".join(output["name"] for output in json.loads(answer.body[:length])["outputs"])
    (kind,) = [kind for kind, status in STATUS.items() if status == answer.status]
    return kind, answer.error


def ask_grpc(gateway: Gateway, case: Case) -> tuple[Kind | None, str]:
    with grpc.insecure_channel(gateway.grpc) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        try:
            answer = stub.ModelInfer(grpc_request(case), metadata=tuple(case.headers.items()), timeout=30)
        except grpc.RpcError as error:
            full = "retry-after" in dict(error.trailing_metadata())
            kinds = [kind for kind, code in CODES.items() if code == error.code()]
            (kind,) = [kind for kind in kinds if (kind is Kind.EXHAUSTED) == full]
            return kind, error.details()
    return None, ",".join(output.name for output in answer.outputs)


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
@pytest.mark.parametrize("ask", [ask_http, ask_grpc], ids=["http", "grpc"])
def test_case(gateway: Gateway, ask: Any, case: Case) -> None:
    kind, text = ask(gateway, case)
    assert kind == case.kind, text
    import re

    assert re.search(case.match, text), text


def test_both_protocols_say_the_same_sentence(gateway: Gateway) -> None:
    """Only the word for a header differs: gRPC calls it metadata."""
    differ = []
    for name, case in CASES.items():
        http_text, grpc_text = ask_http(gateway, case)[1], ask_grpc(gateway, case)[1]
        if (
            http_text.replace("header 'x-pg", "metadata 'x-pg").replace("headers are", "entries are")
            != grpc_text
        ):
            differ.append((name, http_text, grpc_text))
    assert differ == []


@pytest.mark.parametrize("kind", Kind)
def test_every_kind_of_error_has_a_code_in_both_protocols(kind: Kind) -> None:
    assert 400 <= STATUS[kind] < 600
    assert CODES[kind] is not grpc.StatusCode.OK


# --- every datatype through every stock client ---


def http_input(module: Any, datatype: str, *, binary: bool) -> Any:
    array = array_of(datatype)
    tensor = module.InferInput("x", list(array.shape), datatype)
    tensor.set_data_from_numpy(array, binary_data=binary)
    return tensor


def grpc_input(module: Any, datatype: str) -> Any:
    array = array_of(datatype)
    tensor = module.InferInput("x", list(array.shape), datatype)
    tensor.set_data_from_numpy(array)
    return tensor


def assert_same(result: Any, datatype: str) -> None:
    got = result.as_numpy("y")
    want = array_of(datatype)
    if datatype == "BYTES":
        # In JSON text comes back as str, in binary as bytes; tritonclient hands on what it got.
        assert [v.encode() if isinstance(v, str) else v for v in got.tolist()] == want.tolist()
    else:
        assert got.dtype == want.dtype
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("datatype", ELEMENT_TYPES)
@pytest.mark.parametrize("binary_output", [True, False], ids=["binary-out", "json-out"])
@pytest.mark.parametrize("binary_input", [True, False], ids=["binary-in", "json-in"])
def test_http_client_gets_back_what_it_sent(
    gateway: Gateway, datatype: str, binary_input: bool, binary_output: bool
) -> None:
    if datatype in ("FP16", "BF16") and not binary_input:
        pytest.skip("tritonclient itself refuses half precision in JSON; test_rest.py sends it by hand")
    client = httpclient.InferenceServerClient(gateway.http)
    try:
        tensor = http_input(httpclient, datatype, binary=binary_input)
        output = httpclient.InferRequestedOutput("y", binary_data=binary_output)
        assert_same(client.infer(f"echo_{datatype.lower()}", [tensor], outputs=[output]), datatype)
    finally:
        client.close()


@pytest.mark.parametrize("datatype", ELEMENT_TYPES)
def test_grpc_client_gets_back_what_it_sent(gateway: Gateway, datatype: str) -> None:
    with grpcclient.InferenceServerClient(gateway.grpc) as client:
        tensor = grpc_input(grpcclient, datatype)
        assert_same(client.infer(f"echo_{datatype.lower()}", [tensor]), datatype)


def test_asyncio_http_client_gets_back_what_it_sent(gateway: Gateway) -> None:
    async def ask() -> None:
        async with httpclient_aio.InferenceServerClient(gateway.http) as client:
            for datatype in ELEMENT_TYPES:
                tensor = http_input(httpclient_aio, datatype, binary=True)
                assert_same(await client.infer(f"echo_{datatype.lower()}", [tensor]), datatype)
            assert await client.is_server_live()
            assert await client.is_model_ready("two")

    with warnings.catch_warnings():
        # The stock client never closes the answers of its health calls; it is said when they are collected.
        warnings.simplefilter("ignore", ResourceWarning)
        asyncio.run(ask())
        gc.collect()


def test_asyncio_grpc_client_gets_back_what_it_sent(gateway: Gateway) -> None:
    async def ask() -> None:
        async with grpcclient_aio.InferenceServerClient(gateway.grpc) as client:
            for datatype in ELEMENT_TYPES:
                tensor = grpc_input(grpcclient_aio, datatype)
                assert_same(await client.infer(f"echo_{datatype.lower()}", [tensor]), datatype)
            assert await client.is_server_ready()
            assert await client.is_model_ready("two")

    asyncio.run(ask())


@pytest.mark.parametrize("algorithm", ["gzip", "deflate"])
def test_http_client_may_compress_both_ways(gateway: Gateway, algorithm: str) -> None:
    array = np.arange(4096, dtype=np.float32)
    client = httpclient.InferenceServerClient(gateway.http)
    tensor = httpclient.InferInput("x", [4096], "FP32")
    tensor.set_data_from_numpy(array)
    result = client.infer(
        "echo_fp32", [tensor],
        request_compression_algorithm=algorithm, response_compression_algorithm=algorithm,
    )  # fmt: skip
    client.close()
    np.testing.assert_array_equal(result.as_numpy("y"), array)


def test_grpc_client_may_compress(gateway: Gateway) -> None:
    array = np.arange(4096, dtype=np.float32)
    tensor = grpcclient.InferInput("x", [4096], "FP32")
    tensor.set_data_from_numpy(array)
    with grpcclient.InferenceServerClient(gateway.grpc) as client:
        result = client.infer("echo_fp32", [tensor], compression_algorithm="gzip")
    np.testing.assert_array_equal(result.as_numpy("y"), array)


# --- the rest of the surface, the same over both ---


def test_metadata_is_the_same_over_both(gateway: Gateway) -> None:
    client = httpclient.InferenceServerClient(gateway.http)
    with grpcclient.InferenceServerClient(gateway.grpc) as other:
        assert client.get_server_metadata() == other.get_server_metadata(as_json=True)
        over_grpc = other.get_model_metadata("add", as_json=True)
        for tensor in (*over_grpc["inputs"], *over_grpc["outputs"]):
            tensor["shape"] = [int(size) for size in tensor["shape"]]
        assert client.get_model_metadata("add") == over_grpc
    assert over_grpc["versions"] == ["1", "2"]
    client.close()


def test_config_is_the_same_over_both(gateway: Gateway) -> None:
    client = httpclient.InferenceServerClient(gateway.http)
    from paritygate.serving.triton_view import message_to_json

    with grpcclient.InferenceServerClient(gateway.grpc) as other:
        assert client.get_model_config("batched") == message_to_json(other.get_model_config("batched").config)
    client.close()


def test_index_is_the_same_over_both(gateway: Gateway) -> None:
    client = httpclient.InferenceServerClient(gateway.http)
    with grpcclient.InferenceServerClient(gateway.grpc) as other:
        index = client.get_model_repository_index()
        over_grpc = [
            {"name": m.name, "version": m.version, "state": m.state, "reason": m.reason}
            for m in other.get_model_repository_index().models
        ]
    client.close()
    assert index == over_grpc
    assert {"name": "add", "version": "2", "state": "READY", "reason": ""} in index


def test_statistics_count_what_was_asked(gateway: Gateway) -> None:
    client = httpclient.InferenceServerClient(gateway.http)

    def counts() -> tuple[int, int, int, int]:
        (stats,) = client.get_inference_statistics("batched")["model_stats"]
        inference = stats["inference_stats"]
        return (
            stats["inference_count"], stats["execution_count"],
            inference["success"]["count"], inference["fail"]["count"],
        )  # fmt: skip

    before = counts()
    for batch in (1, 3):
        assert ask_grpc(gateway, Case(None, "", "batched", tensors=(fp32("x", batch, 2),)))[0] is None
    assert ask_http(gateway, CASES["batch too large"])[0] is BAD
    after = counts()
    assert tuple(b - a for a, b in zip(before, after, strict=True)) == (4, 2, 2, 1)
    with grpcclient.InferenceServerClient(gateway.grpc) as other:
        over_grpc = other.get_inference_statistics("batched").model_stats[0]
    assert over_grpc.inference_count == after[0]
    assert {b.batch_size for b in over_grpc.batch_stats} >= {1, 3}
    client.close()


def test_load_and_unload_are_refused_on_the_inference_ports(gateway: Gateway) -> None:
    refused = "explicit model load / unload is not allowed if polling is enabled"
    for verb in ("load", "unload"):
        answer = gateway.ask("POST", f"/v2/repository/models/two/{verb}")
        assert (answer.status, answer.error) == (503, refused)
    with grpcclient.InferenceServerClient(gateway.grpc) as client:
        for call in (client.load_model, client.unload_model):
            with pytest.raises(grpcclient.InferenceServerException, match=refused) as caught:
                call("two")
            assert "UNAVAILABLE" in caught.value.status()


def test_stream_answers_in_order_and_survives_an_error(gateway: Gateway) -> None:
    def requests() -> Iterator[Any]:
        for index in range(5):
            case = CASES["wrong rank"] if index == 2 else CASES["good"]
            message = grpc_request(case)
            message.id = str(index)
            yield message

    with grpc.insecure_channel(gateway.grpc) as channel:
        answers = list(
            service_pb2_grpc.GRPCInferenceServiceStub(channel).ModelStreamInfer(requests(), timeout=30)
        )
    assert [answer.infer_response.id for answer in answers] == ["0", "1", "2", "3", "4"]
    assert [bool(answer.error_message) for answer in answers] == [False, False, True, False, False]


def test_answer_tells_version_and_proof_over_both(gateway: Gateway) -> None:
    body, headers = http_request(CASES["named version"])
    answer = gateway.ask("POST", "/v2/models/add/versions/2/infer", body, headers)
    with grpc.insecure_channel(gateway.grpc) as channel:
        call = service_pb2_grpc.GRPCInferenceServiceStub(channel).ModelInfer
        _, outcome = call.with_call(grpc_request(CASES["named version"]), timeout=30)
    told = {"x-pg-model-version": "2", "x-pg-rule": "named", "x-pg-proof": "unproven"}
    assert {k: v for k, v in answer.headers.items() if k.startswith("x-pg-")} == told
    assert {k: v for k, v in outcome.trailing_metadata() if k.startswith("x-pg-")} == told


def test_grpc_message_over_the_limit_is_refused_by_name_of_the_limit(gateway: Gateway) -> None:
    kind, text = ask_grpc(gateway, Case(None, "", "echo_fp32", tensors=(fp32("x", 32768),)))
    assert kind is Kind.TOO_LARGE
    assert "65536" in text


def test_grpc_message_that_grows_beyond_the_limit_when_decompressed_is_refused(gateway: Gateway) -> None:
    case = Case(None, "", "echo_fp32", tensors=(Tensor("x", "FP32", [2**20], bytes(2**22)),))
    with grpc.insecure_channel(gateway.grpc) as channel:
        call = service_pb2_grpc.GRPCInferenceServiceStub(channel).ModelInfer
        with pytest.raises(grpc.RpcError) as caught:
            call(grpc_request(case), timeout=30, compression=grpc.Compression.Gzip)
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


@pytest.mark.parametrize("contents", ["both", "wrong field", "too few", "half precision", "out of range"])
def test_typed_contents_that_do_not_fit_are_refused(gateway: Gateway, contents: str) -> None:
    message = service_pb2.ModelInferRequest(model_name="echo_int8")
    tensor = message.inputs.add(name="x", datatype="INT8", shape=[2])
    if contents == "both":
        tensor.contents.int_contents.extend([1, 2])
        message.raw_input_contents.append(b"\x01\x02")
        match = "both"
    elif contents == "wrong field":
        tensor.contents.fp32_contents.extend([1, 2])
        match = "INT8 but has its values in fp32_contents"
    elif contents == "too few":
        tensor.contents.int_contents.extend([1])
        match = r"1 elements in int_contents; shape \[2\] takes 2"
    elif contents == "half precision":
        tensor.datatype = "FP16"
        tensor.contents.fp32_contents.extend([1, 2])
        match = "only raw_input_contents can carry"
    else:
        tensor.contents.int_contents.extend([1, 300])
        match = "has 300; INT8 takes -128 to 127"
    with grpc.insecure_channel(gateway.grpc) as channel:
        with pytest.raises(grpc.RpcError, match=match) as caught:
            service_pb2_grpc.GRPCInferenceServiceStub(channel).ModelInfer(message, timeout=30)
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT


TYPED = {
    "BOOL": "bool_contents",
    "UINT8": "uint_contents",
    "UINT16": "uint_contents",
    "UINT32": "uint_contents",
    "UINT64": "uint64_contents",
    "INT8": "int_contents",
    "INT16": "int_contents",
    "INT32": "int_contents",
    "INT64": "int64_contents",
    "FP32": "fp32_contents",
    "FP64": "fp64_contents",
    "BYTES": "bytes_contents",
}


@pytest.mark.parametrize("datatype", TYPED)
def test_typed_contents_are_taken(gateway: Gateway, datatype: str) -> None:
    array = array_of(datatype)
    message = service_pb2.ModelInferRequest(model_name=f"echo_{datatype.lower()}")
    tensor = message.inputs.add(name="x", datatype=datatype, shape=array.shape)
    getattr(tensor.contents, TYPED[datatype]).extend(array.tolist())
    with grpc.insecure_channel(gateway.grpc) as channel:
        answer = service_pb2_grpc.GRPCInferenceServiceStub(channel).ModelInfer(message, timeout=30)
    want = (
        b"".join(len(v).to_bytes(4, "little") + v for v in array) if datatype == "BYTES" else array.tobytes()
    )
    assert answer.raw_output_contents[0] == want


def test_standard_health_service_answers(gateway: Gateway) -> None:
    from paritygate.serving.facades.grpc_health import SERVING, HealthCheckRequest, HealthCheckResponse

    with grpc.insecure_channel(gateway.grpc) as channel:
        check = channel.unary_unary(
            "/grpc.health.v1.Health/Check",
            HealthCheckRequest.SerializeToString,
            HealthCheckResponse.FromString,
        )
        assert check(HealthCheckRequest(), timeout=10).status == SERVING
        assert (
            check(HealthCheckRequest(service="inference.GRPCInferenceService"), timeout=10).status == SERVING
        )
        with pytest.raises(grpc.RpcError) as caught:
            check(HealthCheckRequest(service="other"), timeout=10)
        assert caught.value.code() is grpc.StatusCode.NOT_FOUND


# --- the registry ---


@pytest.mark.parametrize("name", FACADES)
def test_every_registered_facade_is_one(name: str) -> None:
    assert issubclass(get_facade(name), Facade)


def test_unknown_facade_lists_the_known_ones() -> None:
    with pytest.raises(ValueError, match="there is no facade 'v3'; known: admin, metrics, v2_grpc, v2_rest"):
        get_facade("v3")
