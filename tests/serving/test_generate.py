"""The generate extension: keys to inputs and parameters, shapes, answers, events, refusals."""

from __future__ import annotations

import json
import queue
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as grpcclient

from support.gateway import Answer, Gateway, running_gateway
from support.onnx_models import add_model, identity_model, two_input_model, write_model


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    repository = tmp_path_factory.mktemp("repository")
    write_model(repository, "add", add_model(1.0))
    write_model(repository, "two", two_input_model())
    write_model(repository, "text", identity_model("BYTES"))
    write_model(repository, "half", identity_model("FP16"))
    write_model(repository, "flag", identity_model("BOOL"))
    write_model(repository, "batched", identity_model("FP32", ("n", 4)), max_batch_size=8)
    write_model(repository, "planes", identity_model("INT64", ("n", "m", 2)))
    with running_gateway(repository, tmp_path_factory.mktemp("gw"), "--allow-unproven") as made:
        yield made


def generate(gateway: Gateway, model: str, document: Any, what: str = "generate", **headers: str) -> Answer:
    names = {name.replace("_", "-"): value for name, value in headers.items()}
    return gateway.ask("POST", f"/v2/models/{model}/{what}", json.dumps(document).encode(), names)


@pytest.mark.parametrize(
    ("model", "document", "outputs"),
    [
        ("add", {"x": 1}, {"y": 2.0}),
        ("add", {"x": [1, 2.5]}, {"y": [2.0, 3.5]}),
        ("add", {"x": [0.1]}, {"y": 1.1}),
        ("add", {"x": []}, {"y": []}),
        ("add", {"x": [[1.0]]}, {"y": 2.0}),
        ("add", {"x": 1, "temperature": 0.5, "stream": False}, {"y": 2.0}),
        ("add", {"parameters": {"x": 3, "k": "v"}}, {"y": 4.0}),
        ("two", {"a": [1, 2, 3], "b": [1, 1, 1]}, {"sum": [2, 3, 4], "difference": [0, 1, 2]}),
        ("text", {"x": "wörd"}, {"y": "wörd"}),
        ("text", {"x": ["a", "b"]}, {"y": ["a", "b"]}),
        ("half", {"x": [0.5, 65504]}, {"y": [0.5, 65504]}),
        ("flag", {"x": True}, {"y": True}),
        ("batched", {"x": [1, 2, 3, 4, 5, 6, 7, 8]}, {"y": [1, 2, 3, 4, 5, 6, 7, 8]}),
        ("planes", {"x": [1, 2, 3, 4]}, {"y": [1, 2, 3, 4]}),
    ],
)
def test_inputs_by_name_give_outputs_by_name(
    gateway: Gateway, model: str, document: dict[str, Any], outputs: dict[str, Any]
) -> None:
    answer = generate(gateway, model, document)
    assert answer.status == 200, answer.body
    assert answer.json == {"model_name": model, "model_version": "1", **outputs}
    assert answer.headers["x-pg-model-version"] == "1"
    assert answer.headers["x-pg-proof"] == "unproven"


def test_id_comes_back_and_the_version_may_be_named(gateway: Gateway) -> None:
    answer = gateway.ask("POST", "/v2/models/add/versions/1/generate", {"x": 1, "id": "7"})
    assert answer.json["id"] == "7"
    assert answer.headers["x-pg-rule"] == "named"


def test_numbers_that_json_has_not_are_written(gateway: Gateway) -> None:
    answer = gateway.ask("POST", "/v2/models/add/generate", b'{"x": [NaN, Infinity, 1]}')
    first, second, third = json.loads(answer.body)["y"]
    assert (np.isnan(first), second, third) == (True, np.inf, 2.0)


def test_stream_is_one_event(gateway: Gateway) -> None:
    answer = generate(gateway, "add", {"x": [1, 2]}, "generate_stream")
    assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert answer.body == b'data: {"model_name":"add","model_version":"1","y":[2.0,3.0]}\n\n'
    refused = generate(gateway, "add", {"x": "a"}, "generate_stream")
    assert refused.status == 400
    assert "input 'x'" in refused.error


@pytest.mark.parametrize(
    ("model", "document", "status", "text"),
    [
        ("add", [1], 400, "not a JSON object"),
        ("add", {}, 400, "expected 1 inputs but got 0"),
        ("add", {"x": "a"}, 400, "input 'x'"),
        ("add", {"x": None}, 400, "input 'x'"),
        ("add", {"x": {"a": 1}}, 400, "input 'x'"),
        ("add", {"x": 1, "k": [1]}, 400, "'k'"),
        ("add", {"x": 1, "k": {"a": 1}}, 400, "'k'"),
        ("add", {"x": 1, "parameters": {"x": 2}}, 400, "given twice"),
        ("add", {"x": 1, "triton_k": 2}, 400, "reserved"),
        ("two", {"a": [1, 2], "b": [1, 1, 1]}, 400, "takes a multiple of 3"),
        ("none", {"x": 1}, 404, "unknown model"),
    ],
)
def test_what_does_not_fit_is_one_sentence(
    gateway: Gateway, model: str, document: Any, status: int, text: str
) -> None:
    answer = generate(gateway, model, document)
    assert (answer.status, text in answer.error) == (status, True), answer


def test_compressed_and_reserved_headers_are_refused(gateway: Gateway) -> None:
    assert generate(gateway, "add", {"x": 1}, content_encoding="gzip").status == 400
    assert generate(gateway, "add", {"x": 1}, x_pg_rule="a").status == 400


def test_each_answer_of_a_stream_is_its_requests_last(gateway: Gateway) -> None:
    """As the real Triton does it, whether the client asks for it or not."""
    answers: queue.Queue[Any] = queue.Queue()
    with grpcclient.InferenceServerClient(gateway.grpc) as client:
        client.start_stream(lambda result, error: answers.put((result, error)))
        tensor = grpcclient.InferInput("x", [1], "FP32")
        tensor.set_data_from_numpy(np.ones(1, np.float32))
        for wanted in (False, True):
            client.async_stream_infer("add", [tensor], enable_empty_final_response=wanted)
            result, error = answers.get(timeout=20)
            assert error is None
            assert result.get_response().parameters["triton_final_response"].bool_param
        client.stop_stream()
        assert answers.empty()
