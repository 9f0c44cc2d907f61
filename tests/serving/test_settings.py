"""Trace and log settings: they are shown, changed by operators alone, and do what they say."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tritonclient import grpc as grpcclient
from tritonclient import http as httpclient
from tritonclient.utils import InferenceServerException

from paritygate.serving.errors import InvalidArgument, Unsupported
from paritygate.serving.log_settings import LogSettings
from paritygate.serving.tracing import Tracer
from paritygate.serving.types import InferTensor
from support.gateway import Gateway, running_gateway
from support.onnx_models import add_model, write_model

# --- traces ---


def noted(tracer: Tracer, count: int, model: str = "m") -> None:
    x = np.arange(3, dtype=np.float32)
    for _ in range(count):
        if tracer.on:
            tracer.note(model, 1, "", [("REQUEST_START", 1)], {"x": x}, [InferTensor("y", "FP32", x + 1)])


async def traced(tracer: Tracer, path: Path) -> list[dict[str, Any]]:
    await tracer.flush()
    return json.loads(path.read_text()) if path.exists() else []


async def test_one_in_so_many_requests_is_traced_until_the_count_is_used_up(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    tracer = Tracer(path)
    assert not tracer.on
    tracer.update({"trace_level": ["TIMESTAMPS"], "trace_rate": "3", "trace_count": 2})
    noted(tracer, 10)
    found = await traced(tracer, path)
    assert [trace["id"] for trace in found] == [1, 2]
    assert found[0] == {
        "id": 1,
        "model_name": "m",
        "model_version": 1,
        "timestamps": [{"name": "REQUEST_START", "ns": 1}],
    }
    assert tracer.settings()["trace_count"] == "0"
    tracer.update({"trace_count": "-1"})
    noted(tracer, 3)
    assert len(await traced(tracer, path)) == 3, "the file stays one list"


async def test_a_models_own_settings_stand_before_those_of_all(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    tracer = Tracer(path)
    tracer.update({"trace_level": ["TENSORS"], "trace_rate": "1"})
    tracer.update({"trace_level": ["OFF"]}, "quiet")
    noted(tracer, 1, "quiet")
    assert await traced(tracer, path) == []
    noted(tracer, 1, "loud")
    assert [entry.get("activity") for entry in await traced(tracer, path)] == [
        None,
        "TENSOR_QUEUE_INPUT",
        "TENSOR_BACKEND_OUTPUT",
    ]
    assert (await traced(tracer, path))[2]["tensor"] == {
        "name": "y",
        "data": "1.0,2.0,3.0",
        "shape": "3",
        "dtype": "FP32",
    }
    tracer.update({"trace_level": None}, "quiet")
    assert tracer.settings("quiet") == tracer.settings()
    tracer.update({"trace_level": None, "trace_rate": None})
    assert (tracer.settings()["trace_level"], tracer.settings()["trace_rate"]) == (["OFF"], "1000")
    assert not tracer.on


async def test_a_new_file_is_begun_after_so_many_traces(tmp_path: Path) -> None:
    tracer = Tracer(tmp_path / "trace.json")
    tracer.update({"trace_level": "TIMESTAMPS", "trace_rate": 1, "log_frequency": "2"})
    noted(tracer, 5)
    await tracer.flush()
    sizes = {path.name: len(json.loads(path.read_text())) for path in tmp_path.iterdir()}
    assert sizes == {"trace.json.0": 2, "trace.json.1": 2, "trace.json.2": 1}


async def test_a_file_that_cannot_be_written_is_said_and_nothing_fails(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tracer = Tracer(tmp_path / "missing" / "trace.json")
    tracer.update({"trace_level": ["TIMESTAMPS"], "trace_rate": "1"})
    noted(tracer, 1)
    await tracer.flush()
    assert "traces cannot be written" in caplog.text


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"trace_level": ["ALL"]}, "expected a list of OFF, TIMESTAMPS, TENSORS"),
        ({"trace_level": []}, "expected a list"),
        ({"trace_level": ["OFF", "TENSORS"]}, "OFF stands alone"),
        ({"trace_rate": "0"}, "expected a whole number, 1 or more"),
        ({"trace_rate": True}, "expected a whole number"),
        ({"trace_count": "-2"}, "-1 or more"),
        ({"log_frequency": "1.5"}, "0 or more"),
        ({"trace_depth": "1"}, "there is no trace setting 'trace_depth'"),
    ],
)
def test_trace_settings_that_are_none_are_refused(changes: Mapping[str, Any], says: str) -> None:
    tracer = Tracer(Path("trace.json"))
    before = tracer.settings()
    with pytest.raises(InvalidArgument, match=says):
        tracer.update({"trace_rate": "5", **changes} if "trace_rate" not in changes else changes)
    assert tracer.settings() == before, "all of them or none"


def test_what_is_set_at_the_start_cannot_be_changed() -> None:
    with pytest.raises(Unsupported, match="'trace_file' is set when the gateway is started"):
        Tracer(Path("trace.json")).update({"trace_file": "/etc/passwd"})
    with pytest.raises(Unsupported, match="--trace-file"):
        Tracer(None).update({"trace_level": ["TIMESTAMPS"]})


# --- logs ---


@pytest.fixture
def lines() -> Iterator[list[str]]:
    written: list[str] = []

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            written.append(record.getMessage())

    handler = Handler()
    logging.getLogger().addHandler(handler)
    yield written
    logging.getLogger().removeHandler(handler)


def test_a_switch_turns_its_lines_on_and_off(lines: list[str]) -> None:
    settings = LogSettings("warning")
    settings.install()
    try:
        log = logging.getLogger("paritygate.serving")

        def written() -> list[str]:
            lines.clear()
            for level in ("debug", "info", "warning", "error"):
                getattr(log, level)(level)
            return list(lines)

        assert written() == ["warning", "error"]
        settings.update({"log_info": True, "log_warning": False})
        assert written() == ["info", "error"]
        settings.update({"log_verbose_level": 1})
        assert written() == ["debug", "info", "error"]
    finally:
        settings.uninstall()


@pytest.mark.parametrize(
    ("changes", "error", "says"),
    [
        ({"log_info": 1}, InvalidArgument, "expected true or false"),
        ({"log_verbose_level": -1}, InvalidArgument, "0 or more"),
        ({"log_format": "xml"}, InvalidArgument, "default or ISO8601"),
        ({"log_colour": True}, InvalidArgument, "there is no log setting 'log_colour'"),
        ({"log_file": "/etc/passwd"}, Unsupported, "log_file cannot be changed"),
    ],
)
def test_log_settings_that_are_none_are_refused(
    changes: Mapping[str, Any], error: type[Exception], says: str
) -> None:
    settings = LogSettings("info")
    before = settings.settings()
    with pytest.raises(error, match=says):
        settings.update({"log_warning": False, **changes})
    assert settings.settings() == before


# --- through the gateway, by Triton's own clients ---


@pytest.fixture(scope="module")
def explicit(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Gateway, Path]]:
    root = tmp_path_factory.mktemp("settings")
    write_model(root / "models", "add", add_model(1.0))
    trace = root / "trace.json"
    options = ("--allow-unproven", "--model-control-mode", "explicit", "--load-model", "*")
    with running_gateway(root / "models", root / "gw", *options, "--trace-file", str(trace)) as gateway:
        yield gateway, trace


REQUEST = {"id": "seven", "inputs": [{"name": "x", "datatype": "FP32", "shape": [1], "data": [1]}]}


@pytest.mark.parametrize(
    ("module", "port"), [(httpclient, "http"), (grpcclient, "grpc")], ids=["http", "grpc"]
)
def test_tritons_client_has_requests_traced_and_lines_logged(
    explicit: tuple[Gateway, Path], module: Any, port: str
) -> None:
    gateway, path = explicit
    assert {"trace", "logging"} <= set(gateway.ask("GET", "/v2").json["extensions"])
    path.unlink(missing_ok=True)
    with module.InferenceServerClient(getattr(gateway, port)) as client:
        client.update_trace_settings(
            "add", {"trace_level": ["TIMESTAMPS"], "trace_rate": "1", "trace_count": "3"}
        )
        for _ in range(30):
            gateway.infer("add", REQUEST)
        gateway.wait(lambda: path.exists() and len(json.loads(path.read_text())) == 3)
        names = [stamp["name"] for stamp in json.loads(path.read_text())[0]["timestamps"]]
        assert names[0] == "REQUEST_START"
        assert names[-1] == "REQUEST_END"
        times = [stamp["ns"] for stamp in json.loads(path.read_text())[0]["timestamps"]]
        assert times == sorted(times)
        assert json.loads(path.read_text())[0]["request_id"] == "seven"
        assert "TIMESTAMPS" in str(client.get_trace_settings("add"))
        client.update_trace_settings("add", {"trace_level": None, "trace_rate": None, "trace_count": None})
        assert "OFF" in str(client.get_trace_settings("add"))
        with pytest.raises(InferenceServerException, match="unknown model: 'nobody'"):
            client.update_trace_settings("nobody", {"trace_rate": "1"})
        client.update_log_settings({"log_info": True})
        assert "log_info" in str(client.get_log_settings())
        assert gateway.ask("GET", "/v2/logging").json["log_info"] is True
        client.update_log_settings({"log_info": False})
        assert gateway.ask("GET", "/v2/logging").json["log_info"] is False


def test_clients_cannot_change_settings_where_only_operators_may(repository: Path, tmp_path: Path) -> None:
    write_model(repository, "add", add_model(1.0))
    trace = tmp_path / "trace.json"
    options = ("--allow-unproven", "--trace-file", str(trace))
    with running_gateway(repository, tmp_path / "gw", *options) as gateway:
        for path, change in (
            ("/v2/trace/setting", {"trace_rate": "1"}),
            ("/v2/logging", {"log_error": False}),
        ):
            refused = gateway.ask("POST", path, change)
            assert (refused.status, "admin port" in refused.error) == (503, True)
            assert gateway.ask("GET", path).status == 200
            assert gateway.ask("POST", path, change, port="admin").status == 200
        assert gateway.ask("GET", "/v2/logging").json["log_error"] is False
        gateway.ask("POST", "/v2/trace/setting", {"trace_level": ["TIMESTAMPS"]}, port="admin")
        gateway.infer("add", REQUEST)
    assert len(json.loads(trace.read_text())) == 1, "what waits is written before the end"


def test_tracing_is_not_announced_without_a_file(repository: Path, tmp_path: Path) -> None:
    write_model(repository, "add", add_model(1.0))
    with running_gateway(repository, tmp_path / "gw", "--allow-unproven") as gateway:
        assert "trace" not in gateway.ask("GET", "/v2").json["extensions"]
        refused = gateway.ask("POST", "/v2/trace/setting", {"trace_rate": "1"}, port="admin")
        assert (refused.status, "--trace-file" in refused.error) == (501, True)
