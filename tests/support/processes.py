"""Waiting for what other processes do."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path


def wait_for(condition: Callable[[], bool], timeout_s: float = 60.0) -> None:
    """Wait until something holds; fail if it does not in time."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "it did not come about in time"
        time.sleep(0.02)


def assert_gone(pid: int) -> None:
    """Fail unless a process is gone, or dead and not yet waited for."""

    def gone() -> bool:
        try:
            return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
        except (FileNotFoundError, ProcessLookupError):  # the latter: it ended between open and read
            return True

    wait_for(gone, 10.0)
