"""One rule for every zip archive: its records lie beside each other, and unpacked they stay within bounds.

A zip lists its records in a directory at its end, and nothing in the format keeps a hundred thousand entries of
that directory from naming the same bytes.
"""

from __future__ import annotations

import os
import struct
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import IO

MAX_UNPACKED_BYTES = 2**30
"""What the records of any archive may take unpacked, in sum; more only if the archive itself is large."""

MAX_EXPANSION = 10
"""How much larger than the archive its records may be beyond that; weights hardly shrink when they are packed."""

_HEADER_BYTES = 30


class BadZip(ValueError):
    """The archive is damaged, or its records take more than it has."""


def open_zip(source: Path | IO[bytes]) -> zipfile.ZipFile:
    """An archive whose directory was checked; nothing of it is unpacked yet.

    Raises:
        BadZip: With a few words: what is wrong with it.
        OSError: If the file cannot be read.
    """
    try:
        archive = zipfile.ZipFile(source)
    except (
        zipfile.BadZipFile,
        EOFError,
        NotImplementedError,
        ValueError,
        OverflowError,
        struct.error,
    ) as error:
        raise BadZip(f"{type(error).__name__}: {error}") from error
    try:
        _check(archive.infolist(), _size(archive))
    except BaseException:
        archive.close()
        raise
    return archive


def _size(archive: zipfile.ZipFile) -> int:
    assert archive.fp is not None
    return os.fstat(archive.fp.fileno()).st_size


def _check(entries: Sequence[zipfile.ZipInfo], size: int) -> None:
    end = 0
    for entry in sorted(entries, key=lambda entry: entry.header_offset):
        if entry.header_offset < end:
            raise BadZip(f"its record {entry.filename[:80]!r} lies over another one, which no writer does")
        end = entry.header_offset + _HEADER_BYTES + entry.compress_size
        if end > size:
            raise BadZip(f"its record {entry.filename[:80]!r} is cut off")
    unpacked = sum(entry.file_size for entry in entries)
    if unpacked > max(MAX_UNPACKED_BYTES, MAX_EXPANSION * size):
        raise BadZip(f"its records take {unpacked} bytes unpacked, and it has {size}; that fills any memory")
