"""Runs `paritygate serve` as its own process for the length of the story."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

_START_TIMEOUT_S = 60.0
_STOP_TIMEOUT_S = 40.0


class GatewayFailed(RuntimeError):
    """The gateway did not become ready, or did not stop."""


@dataclass(frozen=True)
class Ports:
    """Where a gateway listens, as host:port."""

    http: str
    grpc: str


@contextmanager
def running_gateway(repository: Path, rollouts: Path, scratch: Path) -> Iterator[Ports]:
    """Start a gateway on free ports and stop it, with SIGTERM, when the block ends.

    Raises:
        GatewayFailed: If it is not ready within a minute; the text has its last lines.
    """
    ready, log = scratch / "gateway-ready.json", scratch / "gateway.log"
    ready.unlink(missing_ok=True)
    command = [sys.executable, "-m", "paritygate", "serve", "--repo", str(repository)]
    command += ["--rollouts", str(rollouts), "--ready-file", str(ready), "--poll-interval-s", "0.3"]
    for port in ("http", "grpc", "metrics", "admin"):
        command += [f"--{port}-port", "0"]
    with log.open("w", encoding="utf-8") as sink:
        process = subprocess.Popen(command, stdout=sink, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL)
    try:
        yield _wait_until_ready(process, ready, log)
    finally:
        _stop(process)


def _wait_until_ready(process: subprocess.Popen[bytes], ready: Path, log: Path) -> Ports:
    deadline = time.monotonic() + _START_TIMEOUT_S
    while time.monotonic() < deadline:
        if ready.exists():
            ports = json.loads(ready.read_text(encoding="utf-8"))
            return Ports(f"127.0.0.1:{ports['http']}", f"127.0.0.1:{ports['grpc']}")
        if process.poll() is not None:
            break
        time.sleep(0.05)
    tail = " | ".join(log.read_text(encoding="utf-8", errors="replace").splitlines()[-3:])
    raise GatewayFailed(f"the gateway did not become ready within {_START_TIMEOUT_S:.0f} s: {tail}")


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(_STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        raise GatewayFailed(f"the gateway did not stop within {_STOP_TIMEOUT_S:.0f} s of SIGTERM") from None
