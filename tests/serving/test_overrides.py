"""Load calls that bring a config or files: what they change, for how long, and what they must not do."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import tritonclient.grpc as grpcclient
import tritonclient.http as httpclient

from paritygate.converter.bundle import MANIFEST_FILE, Bundle
from paritygate.serving.publish import publish_bundle
from support.gateway import Answer, Gateway, running_gateway
from support.onnx_models import add_model, write_config, write_model, write_version

ROW = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1], "data": [1.0]}]}
LINEAR = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [1, 2, 3, 4]}]}
CONFIG: dict[str, Any] = {
    "name": "add",
    "backend": "onnxruntime",
    "input": [{"name": "x", "data_type": "TYPE_FP32", "dims": [-1]}],
    "output": [{"name": "y", "data_type": "TYPE_FP32", "dims": [-1]}],
}


def load(gateway: Gateway, parameters: dict[str, Any], model: str = "add", port: str = "http") -> Answer:
    return gateway.ask("POST", f"/v2/repository/models/{model}/load", {"parameters": parameters}, port=port)


def value(gateway: Gateway, model: str = "add", version: str = "") -> float:
    answer = gateway.infer(model, ROW, version)
    assert answer.status == 200, answer.body
    return float(answer.json["outputs"][0]["data"][0])


def model_file(constant: float) -> str:
    return base64.b64encode(add_model(constant).SerializeToString()).decode()


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    repository = tmp_path_factory.mktemp("repository")
    write_model(repository, "add", add_model(1.0), versions=[1, 2])
    write_version(repository, "add", 2, add_model(2.0))
    work = tmp_path_factory.mktemp("gw")
    options = ("--allow-unproven", "--model-control-mode", "explicit", "--load-model", "add")
    with running_gateway(repository, work, *options) as made:
        yield made


@pytest.fixture(autouse=True)
def as_published(gateway: Gateway) -> Iterator[None]:
    yield
    assert load(gateway, {}).status == 200


def test_config_changes_what_is_served_until_the_next_load(gateway: Gateway) -> None:
    assert value(gateway) == 2.0
    only_two = CONFIG | {"version_policy": {"specific": {"versions": ["2"]}}}
    assert load(gateway, {"config": json.dumps(only_two)}).status == 200
    assert value(gateway) == 3.0
    assert gateway.infer("add", ROW, "1").status == 404
    assert load(gateway, {}).status == 200
    assert value(gateway) == 2.0
    assert value(gateway, version="2") == 3.0


def test_files_stand_for_the_repository_and_are_unproven(gateway: Gateway) -> None:
    files = {"config": json.dumps(CONFIG), "file:7/model.onnx": model_file(70.0)}
    assert load(gateway, files).status == 200
    answer = gateway.infer("add", ROW)
    assert answer.json["outputs"][0]["data"] == [71.0]
    assert answer.json["model_version"] == "7"
    assert answer.headers["x-pg-proof"] == "unproven"
    assert gateway.infer("add", ROW, "1").status == 404


def test_model_that_is_in_no_repository(gateway: Gateway) -> None:
    files = {"config": json.dumps(CONFIG | {"name": "new"}), "file:1/model.onnx": model_file(5.0)}
    assert load(gateway, files, "new").status == 200
    assert value(gateway, "new") == 6.0
    assert gateway.ask("POST", "/v2/repository/models/new/unload", {}).status == 200
    assert gateway.infer("new", ROW).status == 404


@pytest.mark.parametrize("module", [httpclient, grpcclient])
def test_stock_clients_override(gateway: Gateway, module: Any) -> None:
    address = gateway.http if module is httpclient else gateway.grpc
    client = module.InferenceServerClient(address)
    content = add_model(40.0).SerializeToString()
    client.load_model("add", config=json.dumps(CONFIG), files={"file:4/model.onnx": content})
    client.close()
    assert value(gateway) == 41.0


def test_failed_override_keeps_what_was_live(gateway: Gateway) -> None:
    good = {"config": json.dumps(CONFIG), "file:7/model.onnx": model_file(70.0)}
    assert load(gateway, good).status == 200
    bad = {"config": json.dumps(CONFIG), "file:8/model.onnx": base64.b64encode(b"no model").decode()}
    answer = load(gateway, bad)
    assert answer.status == 400
    assert "failed to load 'add'" in answer.error
    assert value(gateway) == 71.0


@pytest.mark.parametrize(
    ("parameters", "status", "text"),
    [
        ({"odd": 1}, 400, "load parameter 'odd' is not known"),
        ({"config": 3}, 400, "'config' is no text"),
        ({"config": "{"}, 400, "cannot be read"),
        ({"config": "[" * 100_000}, 400, "cannot be read"),
        ({"config": '{"max_batch_sizes": 3}'}, 400, "max_batch_sizes"),
        ({"config": '{"name": "other"}'}, 400, "other"),
        ({"config": '{"max_batch_size": -1}'}, 400, "max_batch_size"),
        ({"file:1/model.onnx": "AAAA"}, 400, "needs the parameter 'config' too"),
        ({"config": "{}", "file:1/model.onnx": "a b"}, 400, "is not base64"),
        ({"config": "{}", "file:1/model.onnx": ""}, 400, "is empty"),
        ({"config": "{}", "file:../1/model.onnx": "AAAA"}, 400, "names no file of a version"),
        ({"config": "{}", "file:1/../../x": "AAAA"}, 400, "names no file of a version"),
        ({"config": "{}", "file:/etc/passwd": "AAAA"}, 400, "names no file of a version"),
        ({"config": "{}", "file:0/model.onnx": "AAAA"}, 400, "names no file of a version"),
        ({"config": "{}", f"file:1/{MANIFEST_FILE}": "AAAA"}, 400, "names no file of a version"),
        ({"config": json.dumps({"backend": "python"}), "file:1/model.py": "AAAA"}, 400, "backend 'python'"),
    ],
)
def test_what_is_wrong_is_one_line(
    gateway: Gateway, parameters: dict[str, Any], status: int, text: str
) -> None:
    answer = load(gateway, parameters)
    assert (answer.status, text in answer.error) == (status, True), answer
    assert value(gateway) == 2.0


@pytest.mark.parametrize("name", ["..", "a b", "a%2Fb", "%2e%2e%2fx"])
def test_names_never_leave_the_repository(gateway: Gateway, name: str) -> None:
    files = {"config": "{}", "file:1/model.onnx": model_file(5.0)}
    answer = gateway.ask(
        "POST", f"/v2/repository/models/{name.replace(' ', '%20')}/load", {"parameters": files}
    )
    assert answer.status in (400, 404), answer


def test_proven_bytes_stay_proven_and_files_need_permission(
    repository: Path, tmp_path: Path, bundles: list[Bundle]
) -> None:
    publish_bundle(bundles[0].path, repository)
    with running_gateway(repository, tmp_path / "gw") as gateway:
        config = {"backend": "onnxruntime", "dynamic_batching": {}, "version_policy": {"all": {}}}
        assert load(gateway, {"config": json.dumps(config)}, "linear").status == 503  # not on this port
        answer = load(gateway, {"config": json.dumps(config)}, "linear", "admin")
        assert answer.status == 200, answer.body
        assert gateway.infer("linear", LINEAR).headers["x-pg-proof"] == "proven"
        found = gateway.ask("GET", "/v2/models/linear/config").json
        assert "dynamic_batching" in found
        files = {"config": json.dumps(CONFIG | {"name": "linear"}), "file:1/model.onnx": model_file(1.0)}
        refused = load(gateway, files, "linear", "admin")
        assert refused.status == 400
        assert "--allow-unproven" in refused.error
        assert gateway.infer("linear", LINEAR).headers["x-pg-proof"] == "proven"


def test_files_of_a_load_are_removed(repository: Path, tmp_path: Path) -> None:
    write_config_of = add_model(1.0)
    write_model(repository, "add", write_config_of)
    write_config(repository, "add", write_config_of, [1])
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    options = ("--allow-unproven", "--model-control-mode", "explicit", "--load-model", "*")
    with running_gateway(repository, tmp_path / "gw", *options, environ={"TMPDIR": str(scratch)}) as gateway:
        for constant in range(3):
            files = {"config": json.dumps(CONFIG), "file:1/model.onnx": model_file(float(constant))}
            assert load(gateway, files).status == 200
        assert len(list(scratch.glob("paritygate-load-*"))) == 1
        assert load(gateway, {}).status == 200
        assert list(scratch.glob("paritygate-load-*")) == []
