"""The gateway beside a real Triton on one repository: the same answers to the same questions."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as grpcclient
import tritonclient.http as httpclient

from paritygate.serving.publish import publish_bundle
from support.bundles import proven_bundle
from support.gateway import running_gateway
from support.onnx_models import identity_model, two_input_model, write_model
from support.triton import running_triton

pytestmark = pytest.mark.real

MODELS = ("linear", "two", "batched", "text", "labelled", "tuned")

# What differs, and why. Everything else of a config must be equal.
DIFFERS = {
    "runtime": "the Triton of the tests runs onnxruntime as a python-based backend and names its file",
}


@dataclass(frozen=True)
class Pair:
    """A gateway and a Triton over the same repository."""

    ours: str
    theirs: str
    ours_grpc: str
    theirs_grpc: str


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    repository = tmp_path_factory.mktemp("repo")
    publish_bundle(proven_bundle(tmp_path_factory.mktemp("b") / "b", num_probes=2).path, repository)
    write_model(repository, "two", two_input_model())
    write_model(repository, "batched", identity_model("FP32", ("n", 4)), max_batch_size=8)
    write_model(
        repository,
        "text",
        identity_model("BYTES"),
        extra="instance_group [ { count: 1 }, { count: 1 kind: KIND_CPU } ]",
    )
    write_model(repository, "labelled", identity_model("FP32", ("n", 4)), max_batch_size=8)
    config = repository / "labelled" / "config.pbtxt"
    config.write_text(
        config.read_text().replace('output [ { name: "y"', 'output [ { label_filename: "l.txt" name: "y"')
    )
    (repository / "labelled" / "l.txt").write_text("ant\nbee\ncow")
    parameters = 'parameters { key: "k" value { string_value: "v" } }'
    extra = "dynamic_batching { max_queue_delay_microseconds: 100 } " + parameters
    write_model(repository, "tuned", identity_model("INT64", ("n", 2)), max_batch_size=4, extra=extra)
    work = tmp_path_factory.mktemp("work")
    with running_gateway(repository, work / "gw", "--allow-unproven") as gateway:
        with running_triton(repository, work / "triton") as triton:
            yield Pair(gateway.http, triton.http, gateway.grpc, triton.grpc)


def both(pair: Pair, ask: Any) -> tuple[Any, Any]:
    answers = []
    for address in (pair.ours, pair.theirs):
        client = httpclient.InferenceServerClient(address)
        try:
            answers.append(ask(client))
        except httpclient.InferenceServerException as error:
            answers.append((error.status(), error.message()))
        finally:
            client.close()
    return answers[0], answers[1]


@pytest.mark.parametrize("model", MODELS)
def test_config_is_equal_but_for_the_listed_fields(pair: Pair, model: str) -> None:
    ours, theirs = both(pair, lambda client: client.get_model_config(model))
    assert {k: v for k, v in ours.items() if k not in DIFFERS} == {
        k: v for k, v in theirs.items() if k not in DIFFERS
    }
    assert list(ours) == list(theirs)


@pytest.mark.parametrize("model", MODELS)
def test_config_is_equal_over_grpc(pair: Pair, model: str) -> None:
    configs = []
    for address in (pair.ours_grpc, pair.theirs_grpc):
        with grpcclient.InferenceServerClient(address) as client:
            config = client.get_model_config(model).config
            config.ClearField("runtime")
            configs.append(config)
    assert configs[0] == configs[1]


@pytest.mark.parametrize("model", MODELS)
def test_metadata_is_equal(pair: Pair, model: str) -> None:
    ours, theirs = both(pair, lambda client: client.get_model_metadata(model))
    # Triton names the backend where the config names no platform.
    assert {**ours, "platform": ""} == {**theirs, "platform": ""}


def test_index_is_equal(pair: Pair) -> None:
    ours, theirs = both(pair, lambda client: client.get_model_repository_index())
    told = [{(e["name"], e["version"], e["state"]) for e in index} for index in (ours, theirs)]
    assert told[0] == told[1]


def test_statistics_have_the_same_form(pair: Pair) -> None:
    def form(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: form(item) for key, item in value.items()}
        return [form(value[0])] if isinstance(value, list) and value else type(value).__name__

    ours, theirs = both(pair, lambda client: client.get_inference_statistics("two")["model_stats"][0])
    for told in (ours, theirs):
        # Both are empty lists where nothing was asked or measured yet.
        told.pop("batch_stats")
        told.pop("memory_usage")
    assert form(ours) == form(theirs)


def tensor(name: str, array: np.ndarray, datatype: str) -> Any:
    made = httpclient.InferInput(name, list(array.shape), datatype)
    made.set_data_from_numpy(array)
    return made


def test_answers_are_equal(pair: Pair) -> None:
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((3, 4)).astype(np.float32)
    ours, theirs = both(pair, lambda c: c.infer("linear", [tensor("x", rows, "FP32")]).as_numpy("y"))
    np.testing.assert_allclose(ours, theirs, rtol=1e-6, atol=1e-6)
    text = np.array(["", "grün", "漢字"], dtype=object)
    ours, theirs = both(pair, lambda c: c.infer("text", [tensor("x", text, "BYTES")]).as_numpy("y"))
    assert ours.tolist() == theirs.tolist()


def test_classification_is_equal(pair: Pair) -> None:
    rows = np.array([[1, 5, 10, 4], [4, 3, 2, 1]], np.float32)
    output = httpclient.InferRequestedOutput("y", class_count=3)
    ours, theirs = both(
        pair, lambda c: c.infer("labelled", [tensor("x", rows, "FP32")], outputs=[output]).as_numpy("y")
    )
    assert ours.tolist() == theirs.tolist()


@pytest.mark.parametrize(
    "ask",
    [
        lambda c: c.get_model_metadata("nomodel"),
        lambda c: c.get_model_metadata("two", "9"),
        lambda c: c.infer("nomodel", [tensor("x", np.zeros(1, np.float32), "FP32")]),
        lambda c: c.infer("two", [tensor("a", np.zeros((2, 3), np.float32), "FP32")]),
        lambda c: c.infer("batched", [tensor("x", np.zeros((2, 5), np.float32), "FP32")]),
        lambda c: c.infer("batched", [tensor("x", np.zeros((9, 4), np.float32), "FP32")]),
        lambda c: c.infer("batched", [tensor("x", np.zeros((2, 4), np.float64), "FP64")]),
        lambda c: c.infer("batched", [tensor("z", np.zeros((2, 4), np.float32), "FP32")]),
        lambda c: c.load_model("two"),
        lambda c: c.unload_model("two"),
    ],
    ids=[
        "unknown model",
        "unknown version",
        "infer on unknown model",
        "missing input",
        "wrong shape",
        "batch too large",
        "wrong datatype",
        "unknown input",
        "load",
        "unload",
    ],
)
def test_refusals_have_the_same_status(pair: Pair, ask: Any) -> None:
    ours, theirs = both(pair, ask)
    assert ours[0] == theirs[0], (ours, theirs)


@pytest.mark.parametrize(
    "path", ["/v2/health/live", "/v2/health/ready", "/v2/models/two/ready", "/v2/models/no/ready", "/x"]
)
def test_health_has_the_same_status(pair: Pair, path: str) -> None:
    import urllib.error
    import urllib.request

    statuses = []
    for address in (pair.ours, pair.theirs):
        try:
            with urllib.request.urlopen(f"http://{address}{path}", timeout=10) as response:
                statuses.append(response.status)
        except urllib.error.HTTPError as error:
            statuses.append(error.code)
            error.close()
    assert statuses[0] == statuses[1]
