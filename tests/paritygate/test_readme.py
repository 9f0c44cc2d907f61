"""The README is run as it stands: its files are written, its commands typed, its server started."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from support.ports import reserve_ports

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
_BLOCK = re.compile(r"(?:<!-- file: (?P<file>\S+) -->\n)?```(?P<kind>[^\n]*)\n(?P<text>.*?)```\n", re.DOTALL)
_PORT_FLAGS = ("--http-port", "--grpc-port", "--metrics-port", "--admin-port")


@dataclass(frozen=True)
class Block:
    """One fenced block: a file to write, commands to type, or a server to start."""

    file: str | None
    kind: str
    text: str


def blocks() -> list[Block]:
    return [Block(m["file"], m["kind"].strip(), m["text"]) for m in _BLOCK.finditer(README)]


def _listening(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _flags(ports: list[int]) -> str:
    return " ".join(f"{flag} {port}" for flag, port in zip(_PORT_FLAGS, ports, strict=True))


@pytest.fixture
def servers() -> Iterator[list[subprocess.Popen[bytes]]]:
    started: list[subprocess.Popen[bytes]] = []
    yield started
    for process in started:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGTERM)
        process.wait(40)


@pytest.mark.real
@pytest.mark.timeout(420)
def test_everything_the_readme_shows_works(tmp_path: Path, servers: list[subprocess.Popen[bytes]]) -> None:
    # The one thing that is not as the page has it: other ports, because the defaults may be in use here.
    ports = reserve_ports(len(_PORT_FLAGS))
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path}
    said = []
    for block in blocks():
        if block.file:
            (tmp_path / block.file).write_text(block.text.replace(":8000", f":{ports[0]}"), encoding="utf-8")
        elif block.kind == "sh server":
            servers.append(_start(f"exec {block.text.strip()} {_flags(ports)}", tmp_path, environment))
            _wait_for_port(ports[0], servers[-1], tmp_path / "server.log")
        elif block.kind == "sh":
            done = subprocess.run(
                ["bash", "-euo", "pipefail", "-c", block.text.replace(":8000", f":{ports[0]}")],
                cwd=tmp_path,
                env=environment,
                capture_output=True,
                text=True,
                timeout=200,
            )
            assert done.returncode == 0, f"$ {block.text}\n{done.stdout}\n{done.stderr}"
            said.append(done.stdout)
    everything = "\n".join(said)
    assert "iris version 1: pass" in everything
    assert "from version 1" in everything
    assert "x-pg-model-version: 1" in everything
    assert "flowers version 1" in everything
    assert "iris version 2: pass" in everything
    assert "kind: VirtualService" in everything
    assert "kind: PyTorchJob" in everything
    assert "rank 1 of 2" in everything


def _start(command: str, folder: Path, environment: dict[str, str]) -> subprocess.Popen[bytes]:
    with (folder / "server.log").open("wb") as log:
        return subprocess.Popen(
            ["bash", "-c", command],
            cwd=folder,
            env=environment,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def _wait_for_port(port: int, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        if _listening(port):
            return
        assert process.poll() is None, log.read_text(encoding="utf-8", errors="replace")
        time.sleep(0.1)
    pytest.fail(f"nothing listens on {port}: {log.read_text(encoding='utf-8', errors='replace')}")


def test_every_relative_link_of_the_readme_leads_somewhere() -> None:
    targets = re.findall(r"\]\((?!https?:)([^)#]+)", README)
    assert targets
    missing = [target for target in targets if not (ROOT / target).exists()]
    assert not missing


def test_the_readme_names_the_two_commands_first() -> None:
    head = README[: README.index("## Install")]
    assert "make quickstart" in head
    assert "make test" in head
