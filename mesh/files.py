"""Files that several processes share: a lock, refusals in one line, names that survive a power loss."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from paritygate.mesh.errors import StateBusy, StateUnwritable

LOCK_FILE = "lock"

LOCK_TIMEOUT_S = 10.0
"""How long a writer waits for another one; an append takes milliseconds."""

_LOOK_AGAIN_S = 0.005


@contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Hold the lock of a directory, making it first if need be; the kernel gives it back when a process dies."""
    path = directory / LOCK_FILE
    with translated(path):
        directory.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        _take_lock(descriptor, path)
        yield
    finally:
        os.close(descriptor)


def _take_lock(descriptor: int, path: Path) -> None:
    deadline = time.monotonic() + LOCK_TIMEOUT_S
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= deadline:
                raise StateBusy(
                    f"{path} has been held by another process for {LOCK_TIMEOUT_S:g} s; try again when it is done"
                ) from None
            time.sleep(_LOOK_AGAIN_S)
        else:
            return


@contextmanager
def translated(path: Path) -> Iterator[None]:
    """Turn a refusal of the file system into one line that says what to do."""
    try:
        yield
    except OSError as error:
        raise StateUnwritable(
            f"{path} cannot be written: {error.strerror}; nothing was changed. Give this user the right to write "
            "there and room on the disk"
        ) from error


def sync_directory(directory: Path) -> None:
    """Put a new name in a directory on the disk."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
