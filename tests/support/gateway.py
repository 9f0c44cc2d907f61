"""Starts `paritygate serve` as a real process on free local ports."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 30.0


class GatewayDied(RuntimeError):
    """The gateway ended before it was ready; the text is what it wrote."""


@dataclass(frozen=True)
class Answer:
    """One HTTP answer."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        """The body as JSON."""
        return json.loads(self.body)

    @property
    def error(self) -> str:
        """The text of an error answer; fails if it has another form."""
        document = self.json
        assert isinstance(document, dict)
        assert list(document) == ["error"]
        assert isinstance(document["error"], str)
        assert "Traceback" not in document["error"]
        return str(document["error"])


@dataclass(frozen=True)
class Gateway:
    """A running gateway.

    Attributes:
        process: The process.
        ports: Real ports by name: `http`, `grpc`, `metrics`, `admin`.
        log_path: Everything that it wrote to standard output and error.
    """

    process: subprocess.Popen[bytes]
    ports: Mapping[str, int]
    log_path: Path

    @property
    def http(self) -> str:
        """`host:port` of the HTTP port."""
        return f"127.0.0.1:{self.ports['http']}"

    @property
    def grpc(self) -> str:
        """`host:port` of the gRPC port."""
        return f"127.0.0.1:{self.ports['grpc']}"

    def log(self) -> str:
        """What it wrote so far."""
        return self.log_path.read_text(errors="replace")

    def ask(
        self,
        method: str,
        path: str,
        body: bytes | dict[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
        *,
        port: str = "http",
    ) -> Answer:
        """One request on a connection of its own."""
        payload = json.dumps(body).encode() if isinstance(body, dict) else body
        connection = http.client.HTTPConnection("127.0.0.1", self.ports[port], timeout=30)
        with contextlib.closing(connection):
            connection.request(method, path, payload, dict(headers or {}))
            response = connection.getresponse()
            names = {name.lower(): value for name, value in response.getheaders()}
            return Answer(response.status, names, response.read())

    def infer(self, model: str, document: dict[str, Any], version: str = "", **headers: str) -> Answer:
        """One inference over HTTP; header names have `_` for `-`."""
        place = f"/v2/models/{model}/versions/{version}" if version else f"/v2/models/{model}"
        names = {name.replace("_", "-"): value for name, value in headers.items()}
        return self.ask("POST", f"{place}/infer", document, names)

    def raw(self, octets: bytes, *, timeout_s: float = 5.0, port: str = "http") -> bytes:
        """Send exact bytes and give everything that comes until it ends or nothing comes for `timeout_s`."""
        with socket.create_connection(("127.0.0.1", self.ports[port]), timeout=timeout_s) as connection:
            connection.sendall(octets)
            received = b""
            with contextlib.suppress(TimeoutError, ConnectionResetError):
                while part := connection.recv(65536):
                    received += part
            return received

    def index(self) -> dict[tuple[str, str], tuple[str, str]]:
        """State and reason by (model, version)."""
        entries = self.ask("POST", "/v2/repository/index").json
        return {(e["name"], e.get("version", "")): (e.get("state", ""), e.get("reason", "")) for e in entries}

    def wait_state(self, model: str, version: int, state: str, timeout_s: float = 20.0) -> str:
        """Wait until a version is in a state; gives the reason that the index tells."""
        return self.wait(lambda: self._reason(model, version, state), timeout_s, f"{model} {version} {state}")

    def _reason(self, model: str, version: int, state: str) -> str | None:
        now, reason = self.index().get((model, str(version)), ("", ""))
        return reason if now == state else None

    def wait(self, look: Any, timeout_s: float = 20.0, what: str = "it") -> Any:
        """Wait until `look` gives something other than None or False."""
        deadline = time.monotonic() + timeout_s
        while True:
            found = look()
            if found is not None and found is not False:
                return found
            if time.monotonic() > deadline:
                raise AssertionError(
                    f"waited {timeout_s} s for {what}; index {self.index()}\n{self.log()[-3000:]}"
                )
            time.sleep(0.05)

    def stop(self) -> int:
        """End it with SIGTERM and give the exit code."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        return self.process.wait(STOP_TIMEOUT_S)


def gateway_command(repository: Path, ready_file: Path, options: Sequence[str] = ()) -> list[str]:
    """The command line of a gateway on free ports."""
    ports = [word for name in ("http", "grpc", "metrics", "admin") for word in (f"--{name}-port", "0")]
    return [
        sys.executable, "-m", "paritygate", "serve", "--repo", str(repository), *ports,
        "--ready-file", str(ready_file), "--poll-interval-s", "0.1", *options,
    ]  # fmt: skip


@contextlib.contextmanager
def running_gateway(
    repository: Path, workdir: Path, *options: str, environ: Mapping[str, str] | None = None
) -> Iterator[Gateway]:
    """A gateway that is ready, for the length of a `with` block; its end must be orderly.

    Args:
        repository: The model repository.
        workdir: A folder for the log and the ready file; made if it is missing.
        options: Further command-line options.
        environ: Added to the environment.

    Raises:
        GatewayDied: If it ends before it is ready.
    """
    workdir.mkdir(parents=True, exist_ok=True)
    ready_file, log_path = workdir / "ready.json", workdir / "gateway.log"
    ready_file.unlink(missing_ok=True)
    with log_path.open("wb") as log:
        process = subprocess.Popen(
            gateway_command(repository, ready_file, options),
            stdout=log,
            stderr=subprocess.STDOUT,
            env={**os.environ, **(environ or {})},
        )
    try:
        ports = _wait_ready(process, ready_file, log_path)
        gateway = Gateway(process, ports, log_path)
        yield gateway
        if process.poll() is None:
            assert gateway.stop() == 0, gateway.log()
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()


def _wait_ready(process: subprocess.Popen[bytes], ready_file: Path, log_path: Path) -> dict[str, int]:
    deadline = time.monotonic() + START_TIMEOUT_S
    while not ready_file.exists():
        if process.poll() is not None or time.monotonic() > deadline:
            raise GatewayDied(f"exit code {process.returncode}: {log_path.read_text(errors='replace')}")
        time.sleep(0.02)
    return dict(json.loads(ready_file.read_text()))
