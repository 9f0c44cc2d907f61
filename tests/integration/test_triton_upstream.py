"""The gateway before real Tritons: killed, hung, restarted, dead inside while they say that they are ready."""

from __future__ import annotations

import os
import shutil
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np
import pytest
import tritonclient.grpc as grpcclient
import tritonclient.http as httpclient

from paritygate.mesh.actions import apply_rollout
from paritygate.mesh.config import parse_rollout
from paritygate.mesh.state import FileStateStore
from paritygate.serving.publish import publish_bundle
from support.bundles import proven_bundle
from support.gateway import Gateway, running_gateway
from support.triton import Triton, running_triton

pytestmark = pytest.mark.real

ROW = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [1.0, 2.0, 3.0, 4.0]}]}
X = np.array([[1, 2, 3, 4]], np.float32)


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("repo")
    for seed in range(2):
        publish_bundle(
            proven_bundle(tmp_path_factory.mktemp("b") / "b", seed=seed, num_probes=3).path, folder
        )
    return folder


@pytest.fixture(scope="module")
def expected(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> list[float]:
    """What version 2 gives where it is computed in the gateway."""
    with running_gateway(repository, tmp_path_factory.mktemp("embedded")) as gateway:
        return list(gateway.infer("linear", ROW, "2").json["outputs"][0]["data"])


@contextmanager
def gateway_before(
    repository: Path, folder: Path, models: str, *options: str, **urls: str
) -> Iterator[Gateway]:
    lines = ["schema: paritygate.upstreams/v1", "upstreams:"]
    checks = "timeout_s: 10, check_interval_s: 0.5, check_timeout_s: 1"
    lines += [f"  {name}: {{url: '{url}', {checks}}}" for name, url in urls.items()]
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "upstreams.yaml"
    file.write_text("\n".join([*lines, f"models: {models}"]))
    with running_gateway(repository, folder, "--upstreams", str(file), *options) as gateway:
        yield gateway


class Load:
    """Requests for version 2 from a few threads until it is told to stop."""

    def __init__(self, gateway: Gateway, expected: list[float]) -> None:
        self.outcomes: Counter[str] = Counter()
        self._gateway = gateway
        self._expected = expected
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._run) for _ in range(4)]

    def __enter__(self) -> Load:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(30)

    def _run(self) -> None:
        until = time.monotonic() + 60
        while not self._stop.is_set() and time.monotonic() < until:
            answer = self._gateway.infer("linear", ROW, "2")
            right = answer.status == 200 and np.allclose(
                answer.json["outputs"][0]["data"], self._expected, rtol=1e-5
            )
            self.outcomes["ok" if right else f"{answer.status} {answer.body[:200]!r}"] += 1
            time.sleep(0.002)

    def wait_for(self, more: int) -> None:
        """Until so many more were answered well."""
        target, until = self.outcomes["ok"] + more, time.monotonic() + 30
        while self.outcomes["ok"] < target:
            assert time.monotonic() < until, self.outcomes
            time.sleep(0.02)


def in_service(gateway: Gateway, upstream: str) -> bool:
    text = gateway.ask("GET", "/metrics", port="metrics").body.decode()
    lines = [li for li in text.splitlines() if li.startswith("paritygate_upstream_in_service{")]
    return any(f'upstream="{upstream}"' in li and 'version="2"' in li and li.endswith(" 1.0") for li in lines)


def kill_models(triton: Triton) -> None:
    """Kill the processes in which the server runs its models; the server stays."""
    killed = 0
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            command = (folder / "cmdline").read_bytes()
            parent = int((folder / "stat").read_text().rsplit(")", 1)[1].split()[1])
        except OSError:
            continue
        if b"triton_python_backend_stub" in command and parent == triton.process.pid:
            os.kill(int(folder.name), signal.SIGKILL)
            killed += 1
    assert killed


@pytest.mark.parametrize("scheme", ["http", "grpc"])
def test_one_real_triton_gives_its_numbers_and_its_words(
    scheme: str, repository: Path, expected: list[float], tmp_path: Path
) -> None:
    with ExitStack() as stack:
        triton = stack.enter_context(running_triton(repository, tmp_path / "t"))
        triton.wait_ready("linear", [1, 2])
        url = f"{scheme}://{getattr(triton, scheme)}"
        gateway = stack.enter_context(
            gateway_before(repository, tmp_path / "g", '{linear: {"*": [up]}}', up=url)
        )
        for module, kind in ((httpclient, "http"), (grpcclient, "grpc")):
            found = []
            for server in (gateway, triton):
                with module.InferenceServerClient(getattr(server, kind)) as client:
                    tensor = module.InferInput("x", [1, 4], "FP32")
                    tensor.set_data_from_numpy(X)
                    found.append(client.infer("linear", [tensor], "2").as_numpy("y"))
            assert found[0].tobytes() == found[1].tobytes()
            assert np.allclose(found[0].ravel(), expected)
        assert gateway.infer("linear", ROW, "2").headers["x-pg-proof"] == "proven"
        kill_models(triton)
        answered = gateway.infer("linear", ROW, "2")
        assert answered.status == 500
        assert "Stub process 'linear_" in answered.error
        assert triton_says_ready(triton)
        reason = gateway.wait_state("linear", 2, "UNAVAILABLE")
        assert "a sealed probe failed" in reason
        assert gateway.infer("linear", ROW, "2").status == 503


def triton_says_ready(triton: Triton) -> bool:
    with httpclient.InferenceServerClient(triton.http) as client:
        return bool(client.is_server_ready() and client.is_model_ready("linear", "2"))


def test_of_two_tritons_one_is_killed_hung_and_dead_inside_and_no_request_fails(
    repository: Path, expected: list[float], tmp_path: Path
) -> None:
    with ExitStack() as stack:
        well = stack.enter_context(running_triton(repository, tmp_path / "well"))
        sick = stack.enter_context(running_triton(repository, tmp_path / "sick"))
        well.wait_ready("linear", [1, 2])
        sick.wait_ready("linear", [1, 2])
        urls = {"well": f"http://{well.http}", "sick": f"http://{sick.http}"}
        gateway = stack.enter_context(
            gateway_before(repository, tmp_path / "g", '{linear: {"*": [well, sick]}}', **urls)
        )
        gateway.wait(lambda: in_service(gateway, "sick") and in_service(gateway, "well"))
        with Load(gateway, expected) as load:
            load.wait_for(200)
            os.kill(sick.process.pid, signal.SIGSTOP)
            gateway.wait(lambda: not in_service(gateway, "sick"), what="the hung one to be left")
            load.wait_for(200)
            os.kill(sick.process.pid, signal.SIGCONT)
            gateway.wait(lambda: in_service(gateway, "sick"), what="it to come back")
            load.wait_for(200)
            kill_models(sick)
            gateway.wait(lambda: not in_service(gateway, "sick"), what="the one with dead models to be left")
            assert triton_says_ready(sick)
            load.wait_for(200)
            os.killpg(sick.process.pid, signal.SIGKILL)
            load.wait_for(200)
        assert set(load.outcomes) == {"ok"}, load.outcomes


def test_one_that_restarts_with_other_numbers_stays_out(
    repository: Path, expected: list[float], tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Its repository is a copy in which version 2 was exchanged: the files here cannot show that."""
    copy = tmp_path / "copy"
    shutil.copytree(repository, copy)
    with ExitStack() as stack:
        well = stack.enter_context(running_triton(repository, tmp_path / "well"))
        well.wait_ready("linear", [1, 2])
        moved = stack.enter_context(
            running_triton(copy, tmp_path / "moved", mode="explicit", load=["linear"])
        )
        moved.wait_ready("linear", [1, 2])
        urls = {"well": f"grpc://{well.grpc}", "moved": f"http://{moved.http}"}
        gateway = stack.enter_context(
            gateway_before(repository, tmp_path / "g", "{linear: {2: [well, moved]}}", **urls)
        )
        gateway.wait(lambda: in_service(gateway, "moved") and in_service(gateway, "well"))
        other = proven_bundle(tmp_path_factory.mktemp("b") / "b", seed=9, num_probes=3)
        shutil.copy(other.path / "model.onnx", copy / "linear" / "2" / "model.onnx")
        with httpclient.InferenceServerClient(moved.http) as client:
            client.load_model("linear")
        gateway.wait(lambda: not in_service(gateway, "moved"), what="the exchanged one to be left")
        for _ in range(30):
            data = gateway.infer("linear", ROW, "2").json["outputs"][0]["data"]
            assert np.allclose(data, expected, rtol=1e-5)
        assert "does not give the proven numbers" in gateway.log()


def test_a_rollout_splits_between_embedded_and_triton(repository: Path, tmp_path: Path) -> None:
    store = FileStateStore(tmp_path / "state")
    text = "schema: paritygate.rollout/v1\nmodel: linear\nstable: 1\nroutes: [{weights: {1: 50, 2: 50}}]"
    with ExitStack() as stack:
        triton = stack.enter_context(running_triton(repository, tmp_path / "t"))
        triton.wait_ready("linear", [1, 2])
        options = ("--rollouts", str(tmp_path / "state"))
        gateway = stack.enter_context(
            gateway_before(
                repository, tmp_path / "g", "{linear: {2: [up]}}", *options, up=f"http://{triton.http}"
            )
        )
        outcome = apply_rollout(store, parse_rollout(text), signatures=None, actor="test", wait_s=10)
        assert outcome.acknowledgement.ok
        counted = Counter(gateway.infer("linear", ROW).headers["x-pg-model-version"] for _ in range(200))
        assert set(counted) == {"1", "2"}
        with httpclient.InferenceServerClient(triton.http) as client:
            stats = client.get_inference_statistics("linear")["model_stats"]
        served = {entry["version"]: entry["inference_stats"]["success"]["count"] for entry in stats}
        assert served["2"] >= counted["2"]
        assert served["1"] == 0
