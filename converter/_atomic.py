"""Directories that appear whole or not at all, also when the process is killed or the power fails.

A directory is filled under a hidden sibling name, every file and then every directory is flushed, and one rename
gives it its name; last the parent is flushed, so that the rename itself is on disk. A kill before the rename
leaves a hidden `.<name>.partial-*` folder that nobody reads.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from paritygate.converter._stages import stage

CHUNK_BYTES = 4 * 1024 * 1024
"""How much of a large file is in memory at once."""


@dataclass(frozen=True)
class Written:
    """What a file holds, known from the bytes that went into it and not from reading it back."""

    sha256: str
    size_bytes: int


@contextmanager
def atomic_directory(target: Path) -> Iterator[Path]:
    """Give a hidden sibling of `target` to fill; it becomes `target` when the block ends without an error.

    Raises:
        FileExistsError: If `target` is there already; nothing is ever overwritten.
        OSError: If the file system refuses; the hidden sibling is then removed.
    """
    _refuse_existing(target)
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.parent / f".{target.name}.partial-{secrets.token_hex(4)}"
    partial.mkdir()  # mkdir and not mkdtemp: the umask decides who may read what is published
    try:
        yield partial
        flush_directories(partial)
        _refuse_existing(target)
        partial.rename(target)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    flush_directory(target.parent)


class DigestedFile:
    """A file that knows the digest of what was written to it."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._digest = hashlib.sha256()
        self._size = 0

    def write(self, data: bytes | memoryview, /) -> None:
        """Write the next bytes."""
        self._file.write(data)
        with stage("digests"):
            self._digest.update(data)
        self._size += len(data)

    @property
    def written(self) -> Written:
        """Digest and size of all that was written so far."""
        return Written(self._digest.hexdigest(), self._size)


@contextmanager
def new_file(path: Path) -> Iterator[DigestedFile]:
    """A new file to write to; it is flushed to disk when the block ends.

    Raises:
        FileExistsError: If it is there already.
    """
    with path.open("xb") as file:
        yield DigestedFile(file)
        flush_file(file)


def write_file(path: Path, data: bytes) -> Written:
    """Write a new file and flush it to disk."""
    with new_file(path) as file:
        file.write(data)
    return file.written


def replace_file(path: Path, data: bytes) -> None:
    """Give `path` new bytes in one step: readers see the old file or the new one, never a part."""
    partial = path.parent / f".{path.name}.partial-{secrets.token_hex(4)}"
    try:
        write_file(partial, data)
        partial.replace(path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
    flush_directory(path.parent)


def flush_file(file: BinaryIO) -> None:
    """Push a file's bytes through all caches to the disk."""
    file.flush()
    os.fsync(file.fileno())


def flush_directory(path: Path) -> None:
    """Push the names in one directory to the disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _refuse_existing(target: Path) -> None:
    if os.path.lexists(target):
        raise FileExistsError(f"{target} exists already")


def flush_directories(root: Path) -> None:
    """Flush every directory under `root` and `root` itself, the deepest first."""
    for folder, _, _ in os.walk(root, topdown=False):
        flush_directory(Path(folder))
