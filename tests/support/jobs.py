"""Small jobs whose ranks are plain Python, and a look at which of their processes are alive."""

from __future__ import annotations

import os
import textwrap
import time
from pathlib import Path
from typing import Any

from paritygate.train_hooks.config import build_job
from paritygate.train_hooks.types import MARKER, JobSpec


def job_of(folder: Path, text: str, /, **fields: Any) -> JobSpec:
    """A job that runs a script in every rank.

    By default of the tensorflow contract, which starts each rank's interpreter itself: no framework is needed.
    """
    (folder / "train.py").write_text(textwrap.dedent(text))
    value = {
        "schema": "paritygate.job/v1",
        "name": "small",
        "framework": "tensorflow",
        "script": "train.py",
        "nodes": 2,
        "workdir": str(folder),
        "timeout_s": 60,
        "stop_grace_s": 1,
        **fields,
    }
    return build_job({name: field for name, field in value.items() if field is not None})


def processes_of(name: str, value: str) -> dict[int, str]:
    """Living processes whose environment holds this variable, with their command lines."""
    needle = f"{name}={value}".encode()
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                if needle in (entry / "environ").read_bytes().split(b"\0"):
                    found[int(entry.name)] = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            except OSError:
                continue  # it has ended, or is a zombie without an environment
    return found


def wait_until_gone(name: str, value: str, *, timeout_s: float = 10.0) -> dict[int, str]:
    """The processes that are still there when the time is over; empty as soon as none is."""
    until = time.monotonic() + timeout_s
    while time.monotonic() < until:
        left = processes_of(name, value)
        if not left:
            return {}
        time.sleep(0.02)
    return processes_of(name, value)


def wait_for_file(path: Path, *, lines: int = 1, timeout_s: float = 30.0) -> list[str]:
    """The lines of a file, once it has so many.

    Raises:
        AssertionError: If it does not get them in time.
    """
    until = time.monotonic() + timeout_s
    while time.monotonic() < until:
        if path.exists() and len(path.read_text().splitlines()) >= lines:
            return path.read_text().splitlines()
        time.sleep(0.02)
    raise AssertionError(f"{path} has not got {lines} lines within {timeout_s} s")


__all__ = ["MARKER", "job_of", "processes_of", "wait_for_file", "wait_until_gone"]
