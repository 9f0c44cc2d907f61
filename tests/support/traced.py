"""Publishes in a child process under strace: to see its system calls, or to kill it at the k-th of them."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import pytest

from paritygate.serving.publish import publish_bundle, publisher
from support.killed import start_in_child

FILE_CALLS = (
    "mkdir,mkdirat,open,openat,write,pwrite64,copy_file_range,sendfile,fsync,fdatasync,rename,renameat,renameat2,link,"
    "linkat,unlink,unlinkat,rmdir,utimensat,chmod,fchmod,fchmodat,chown,fchown,fchownat,truncate,ftruncate,flock"
)
"""Every system call that changes a file system, and those that open and lock."""


@dataclass(frozen=True)
class KillPoint:
    """One system call of a publish, as strace finds it again: the n-th of its kind, from 1."""

    call: str
    occurrence: int


@dataclass(frozen=True)
class Traced:
    """What became of a traced publish.

    Attributes:
        killed: Whether it was killed at the call that was named.
        calls: Its system calls in order, as strace prints them, paths of descriptors included.
    """

    killed: bool
    calls: list[str]

    def kill_points(self) -> list[KillPoint]:
        """Every call that changes something or takes a lock: a kill at another leaves what the one before left."""
        counts: Counter[str] = Counter()
        points = []
        for call in self.calls:
            name = call.split("(", 1)[0]
            counts[name] += 1
            if name not in ("open", "openat") or "O_CREAT" in call:
                points.append(KillPoint(name, counts[name]))
        return points


def require_strace() -> None:
    """Skip, visibly, where strace is missing or may not trace."""
    if shutil.which("strace") is None:
        pytest.skip("strace is not installed (apt-get install strace)")
    probe = subprocess.run(
        ["strace", "-e", "trace=none", "true"], capture_output=True, text=True, check=False
    )
    if probe.returncode != 0:
        pytest.skip(f"strace may not trace here: {probe.stderr.strip()}")


def publish_traced(
    bundle: Path, repository: Path, log: Path, *, kill_at: KillPoint | None = None, **options: object
) -> Traced:
    """Publish in a child whose calls are traced once the bundle has passed the gate, and killed at one of them.

    A process that gets SIGKILL as it enters a system call does not execute it.
    """
    pid = start_in_child(lambda: _publish_after_stop(bundle, repository, options))
    _, status = os.waitpid(pid, os.WUNTRACED)
    assert os.WIFSTOPPED(status), f"the publisher ended before it touched the repository: {status}"
    strace = _attach(pid, log, kill_at)
    os.kill(pid, signal.SIGCONT)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    assert code in (0, -signal.SIGKILL), f"the publisher ended with {code}:\n{log.read_text()[-3000:]}"
    strace.wait(timeout=30)
    calls = [
        line.split(" ", 1)[1].strip() for line in log.read_text().splitlines() if re.match(r"\d+ ", line)
    ]
    return Traced(code != 0, [call for call in calls if not call.startswith(("---", "+++"))])


def _publish_after_stop(bundle: Path, repository: Path, options: dict[str, object]) -> None:
    open_root = publisher._open_root

    def stop_then_open(path: Path) -> Path:
        os.kill(os.getpid(), signal.SIGSTOP)
        return open_root(path)

    publisher._open_root = stop_then_open
    publish_bundle(bundle, repository, **options)  # type: ignore[arg-type]


def _attach(pid: int, log: Path, kill_at: KillPoint | None) -> subprocess.Popen[bytes]:
    inject = []
    if kill_at is not None:
        inject = ["-e", f"inject={kill_at.call}:signal=SIGKILL:when={kill_at.occurrence}"]
    command = [
        "strace",
        "-f",
        "-y",
        "-s",
        "0",
        "-o",
        str(log),
        "-e",
        f"trace={FILE_CALLS}",
        *inject,
        "-p",
        str(pid),
    ]
    strace = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 30
    while not _is_traced(pid):
        assert strace.poll() is None, "strace could not attach"
        assert time.monotonic() < deadline, "strace did not attach in time"
        time.sleep(0.005)
    return strace


def _is_traced(pid: int) -> bool:
    status = Path(f"/proc/{pid}/status").read_text()
    return "TracerPid:\t0\n" not in status


def rehearse(bundle: Path, repository: Path, workdir: Path, **options: object) -> list[KillPoint]:
    """The kill points of a publish, found by publishing to a copy of the repository."""
    with tempfile.TemporaryDirectory(dir=workdir) as folder:
        copy = Path(shutil.copytree(repository, Path(folder) / repository.name))
        return publish_traced(bundle, copy, Path(folder) / "log", **options).kill_points()
