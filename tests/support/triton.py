"""Starts a real Triton on free local ports, with our onnxruntime backend, over a repository on disk."""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import secrets
import shutil
import signal
import subprocess
import sysconfig
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from support.ports import reserve_ports

ROOT = Path(__file__).resolve().parents[2]
BACKEND_MODEL = Path(__file__).parent / "triton_backend" / "model.py"
START_TIMEOUT_S = 120.0

# Each instance is one stub process of some 60 MB; Triton's own default would be two for every version.
ONE_INSTANCE = "\ninstance_group [ { count: 1 kind: KIND_CPU } ]\n"


class TritonDied(RuntimeError):
    """The server ended before it was ready; the text is the end of its log."""


def triton_environment() -> Path:
    """The environment that holds the server, or a visible skip where it was not made."""
    environment = Path(os.environ.get("PARITYGATE_TRITON_ENV", ROOT / ".venvs" / "triton"))
    if not next(environment.glob("lib/python3*/site-packages/pytriton/tritonserver"), None):
        pytest.skip(f"no Triton in {environment}: run `make real-environment`, or set PARITYGATE_TRITON_ENV")
    return environment


@dataclass(frozen=True)
class Triton:
    """A running server.

    Attributes:
        process: The server; it leads its own process group.
        http: `host:port` of the HTTP endpoint.
        grpc: `host:port` of the gRPC endpoint.
        log_path: Everything that it wrote.
    """

    process: subprocess.Popen[bytes]
    http: str
    grpc: str
    log_path: Path

    def client(self) -> Any:
        """A tritonclient over HTTP; close it after use."""
        from tritonclient.http import InferenceServerClient

        return InferenceServerClient(self.http, connection_timeout=30.0, network_timeout=60.0)

    def log(self) -> str:
        """What the server wrote so far."""
        return self.log_path.read_text(errors="replace")

    def loads(self, model: str) -> list[int]:
        """The version of every instance that really began, in order; Triton's own "loading" lines say less."""
        began = re.compile(rf"began \S+ of {re.escape(model)}:(\d+)")
        return [int(version) for version in began.findall(self.log())]

    def unloads(self, model: str) -> list[int]:
        """The versions that the server finished to unload, in order."""
        return [
            int(v)
            for v in re.findall(rf"successfully unloaded '{re.escape(model)}' version (\d+)", self.log())
        ]

    def versions(self) -> dict[str, dict[int, str]]:
        """The state of every version by model, as the repository index tells it."""
        with contextlib.closing(self.client()) as client:
            index = client.get_model_repository_index()
        found: dict[str, dict[int, str]] = {}
        for entry in index:
            states = found.setdefault(entry["name"], {})
            if entry.get("version"):
                states[int(entry["version"])] = entry.get("state", "")
        return found

    def ready(self, model: str) -> list[int]:
        """The versions of a model that are ready, ascending."""
        states = self.versions().get(model, {})
        return sorted(version for version, state in states.items() if state == "READY")

    def wait_ready(self, model: str, versions: Sequence[int], timeout_s: float = 60.0) -> None:
        """Wait until exactly these versions are ready."""
        deadline = time.monotonic() + timeout_s
        while (now := self.ready(model)) != sorted(versions):
            if time.monotonic() > deadline:
                raise AssertionError(
                    f"{model}: versions {now} are ready, expected {versions}\n{self.log()[-3000:]}"
                )
            time.sleep(0.1)


@contextlib.contextmanager
def running_triton(
    repository: Path,
    workdir: Path,
    *,
    mode: str = "none",
    poll_s: int = 1,
    load: Sequence[str] = (),
    options: Sequence[str] = (),
) -> Iterator[Triton]:
    """A server that is ready, for the length of a `with` block.

    Args:
        repository: The model repository.
        workdir: An empty or missing folder for the backend directory and the log.
        mode: `none`, `poll` or `explicit`.
        poll_s: Seconds between polls.
        load: Models to load at the start in explicit mode.
        options: Further command-line options.

    Raises:
        TritonDied: If it ends before it is ready, as it does in mode none when a model cannot be loaded.
    """
    environment = triton_environment()
    workdir.mkdir(parents=True, exist_ok=True)
    backends = _backend_directory(environment, workdir)
    shm_prefix = f"pg{secrets.token_hex(4)}_"
    http, grpc, metrics = reserve_ports(3)
    command = [
        str(_server_folder(environment) / "bin" / "tritonserver"),
        f"--model-repository={repository}",
        f"--backend-directory={backends}",
        f"--backend-config=python,shm-region-prefix-name={shm_prefix}",
        "--http-address=127.0.0.1",
        "--grpc-address=127.0.0.1",
        "--metrics-address=127.0.0.1",
        f"--http-port={http}",
        f"--grpc-port={grpc}",
        f"--metrics-port={metrics}",
        "--http-thread-count=2",
        f"--model-control-mode={mode}",
        *([f"--repository-poll-secs={poll_s}"] if mode == "poll" else []),
        *(f"--load-model={name}" for name in load),
        *options,
    ]
    log_path = workdir / "triton.log"
    with log_path.open("wb") as log:
        process = subprocess.Popen(
            command,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=_environ(environment),
            start_new_session=True,
            preexec_fn=_die_with_parent,
        )
    try:
        triton = Triton(process, f"127.0.0.1:{http}", f"127.0.0.1:{grpc}", log_path)
        _wait_started(triton)
        yield triton
    finally:
        # The whole group at once: a server that is asked politely takes five seconds more.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        for region in Path("/dev/shm").glob(f"{shm_prefix}*"):
            region.unlink(missing_ok=True)


def _die_with_parent() -> None:
    """A test run that is killed leaves no server behind (prctl PR_SET_PDEATHSIG)."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)


def _server_folder(environment: Path) -> Path:
    return next(environment.glob("lib/python3*/site-packages/pytriton/tritonserver"))


def _backend_directory(environment: Path, workdir: Path) -> Path:
    """A backend directory with Triton's python backend and ours, which needs the former's library and stub."""
    server = _server_folder(environment)
    version = server.parents[2].name.removeprefix("python")
    backends = workdir / "backends"
    if backends.exists():
        return backends
    python = backends / "python"
    python.mkdir(parents=True)
    for file in (server / "backends" / "python").iterdir():
        if file.is_file():
            shutil.copy(file, python / file.name)  # links are refused: "escapes backend directory"
    stub = python / "triton_python_backend_stub"
    stub.unlink(missing_ok=True)
    shutil.copy(server / "python_backend_stubs" / version / stub.name, stub)
    stub.chmod(0o755)
    ours = backends / "onnxruntime"
    ours.mkdir()
    shutil.copy(BACKEND_MODEL, ours / "model.py")
    return backends


def _environ(environment: Path) -> dict[str, str]:
    """The stub takes its packages from the first python in PATH and ignores PYTHONPATH."""
    libraries = [
        str(_server_folder(environment).parents[1] / "nvidia_pytriton.libs"),
        _python_library_folder(),
    ]
    kept = {
        name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV"))
    }
    path = f"{environment / 'bin'}{os.pathsep}{kept.get('PATH', '')}"
    return {**kept, "PATH": path, "LD_LIBRARY_PATH": os.pathsep.join(libraries)}


def _python_library_folder() -> str:
    return str(sysconfig.get_config_var("LIBDIR"))


def _wait_started(triton: Triton) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline:
        if triton.process.poll() is not None:
            raise TritonDied(f"exit code {triton.process.returncode}\n{triton.log()[-4000:]}")
        if _answers(triton):
            return
        time.sleep(0.05)
    raise TritonDied(f"not ready after {START_TIMEOUT_S:g} s\n{triton.log()[-4000:]}")


def _answers(triton: Triton) -> bool:
    """Whether the server is live; whether its models are ready is for the test to ask."""
    import http.client

    connection = http.client.HTTPConnection(triton.http, timeout=5.0)
    try:
        connection.request("GET", "/v2/health/live")
        return connection.getresponse().status == 200
    except OSError:
        return False
    finally:
        connection.close()
