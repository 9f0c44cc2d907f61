"""Durable file-system steps: each is one thought, and everything is flushed before the next may rely on it.

Only `os` and `fcntl` calls are used here and in `transaction.py`, one system call a line, so that a test can end
the process before each of them.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import stat
import time
from collections.abc import Iterator
from pathlib import Path

from paritygate.serving.publish.errors import RepositoryBusy, RepositoryUnavailable

_CHUNK_BYTES = 1 << 20
_LOCK_POLL_S = 0.02


def write_file(path: Path, data: bytes) -> None:
    """Write a new file and flush it to the disk.

    Raises:
        FileExistsError: If the file is already there; nothing is ever overwritten.
    """
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
    try:
        _write_all(descriptor, data)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def copy_file(source: Path, target: Path) -> tuple[str, int]:
    """Copy a regular file to a new one and flush it.

    Returns:
        The sha256 (hex) and the size in bytes of what was written, so that the copy itself is what gets checked.

    Raises:
        OSError: If the source is a link or no regular file, or the target exists or cannot be written.
    """
    reader = os.open(source, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        if not stat.S_ISREG(os.fstat(reader).st_mode):
            raise OSError(errno.EINVAL, "not a regular file", str(source))
        writer = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        try:
            return _copy_open_file(reader, writer)
        finally:
            os.close(writer)
    finally:
        os.close(reader)


def _copy_open_file(reader: int, writer: int) -> tuple[str, int]:
    digest = hashlib.sha256()
    size_bytes = 0
    while chunk := os.read(reader, _CHUNK_BYTES):
        _write_all(writer, chunk)
        digest.update(chunk)
        size_bytes += len(chunk)
    os.fsync(writer)
    return digest.hexdigest(), size_bytes


def _write_all(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def sync_file(path: Path) -> None:
    """Flush an existing file, its times and permissions included."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_directory(path: Path) -> None:
    """Flush a directory's entries, so that the names in it survive a power cut."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_tree(root: Path) -> None:
    """Flush every directory at and below `root`, deepest first."""
    for folder, _, _ in os.walk(root, topdown=False):
        sync_directory(Path(folder))


def newest_mtime_ns(root: Path) -> int:
    """The latest modification time at and below `root`, in ns since 1970."""
    newest = os.stat(root).st_mtime_ns
    for folder, names, files in os.walk(root):
        for name in (*names, *files):
            newest = max(newest, os.lstat(os.path.join(folder, name)).st_mtime_ns)
    return newest


def remove_tree(root: Path) -> None:
    """Remove a folder and all in it, following no link."""
    for folder, names, files in os.walk(root, topdown=False):
        for name in files:
            os.unlink(os.path.join(folder, name))
        for name in names:
            child = os.path.join(folder, name)
            if os.path.islink(child):
                os.unlink(child)
            else:
                os.rmdir(child)
    os.rmdir(root)


@contextlib.contextmanager
def locked_directory(path: Path, *, timeout_s: float) -> Iterator[None]:
    """Hold the exclusive lock of a directory for the length of a `with` block.

    The lock lies on the directory itself (flock of its descriptor): it leaves no file behind that a server which
    watches the folder could take for a change, it goes with the directory when that is renamed, and the kernel
    gives it back when the holder dies.

    Raises:
        RepositoryBusy: If another process still holds it after `timeout_s`.
        RepositoryUnavailable: If the file system knows no such locks.
        FileNotFoundError: If the directory is gone.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        _wait_for_lock(descriptor, path, timeout_s)
        if not same_directory(descriptor, path):
            raise FileNotFoundError(
                errno.ENOENT, "directory was replaced while waiting for its lock", str(path)
            )
        yield
    finally:
        os.close(descriptor)


def _wait_for_lock(descriptor: int, path: Path, timeout_s: float) -> None:
    deadline = time.monotonic() + timeout_s
    while not try_lock(descriptor, path):
        if time.monotonic() >= deadline:
            raise RepositoryBusy(
                f"another publisher has held {path} for more than {timeout_s:g} s. "
                "Wait for it to end, or end it, and publish again."
            )
        time.sleep(_LOCK_POLL_S)


def try_lock(descriptor: int, path: Path) -> bool:
    """Take the exclusive lock of an open directory if it is free.

    Raises:
        RepositoryUnavailable: If the file system knows no such locks.
    """
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        raise RepositoryUnavailable(
            f"cannot lock {path}: {error.strerror}. The repository must lie on a local file system with flock."
        ) from error
    return True


def same_directory(descriptor: int, path: Path) -> bool:
    """Whether `path` still names the directory that was opened as `descriptor`."""
    try:
        now = os.stat(path)
    except FileNotFoundError:
        return False
    opened = os.fstat(descriptor)
    return (now.st_dev, now.st_ino) == (opened.st_dev, opened.st_ino)
