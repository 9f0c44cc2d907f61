"""Whether the files of an installed environment are those that its wheels brought.

Every wheel leaves a RECORD with the digest and the size of each of its files. Reading gigabytes again to compare
digests takes minutes, so a file is read only if it may have changed: the disk stamps a file's ctime whenever its
bytes, its rights or its place change, and no program can set that stamp. What has its size and a stamp from before
the end of the build is as it was installed. An environment that was copied or restored has newer stamps
throughout, and is read as a whole.
"""

from __future__ import annotations

import base64
import hashlib
import importlib.metadata
import os
import stat
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

_READERS = 4


@dataclass(frozen=True)
class InstalledFile:
    """One file that a wheel brought.

    Attributes:
        name: As the wheel's RECORD names it.
        path: Where it lies.
        algorithm: Of its digest, as hashlib names it.
        digest: In the form of a RECORD: base64 for URLs, without padding.
        size_bytes: Its size; None where the RECORD does not say.
    """

    name: str
    path: str
    algorithm: str
    digest: str
    size_bytes: int | None

    def is_untouched_since(self, built_at_ns: int) -> bool:
        """Whether the disk tells that it was not changed after an environment was built; it is not read."""
        try:
            seen = os.lstat(self.path)
        except OSError:
            return False
        whole = stat.S_ISREG(seen.st_mode) and seen.st_size == self.size_bytes
        return whole and seen.st_ctime_ns < built_at_ns

    def has_its_bytes(self) -> bool:
        """Whether its content has the digest of the RECORD."""
        try:
            with open(self.path, "rb") as stream:
                digest = hashlib.file_digest(stream, self.algorithm).digest()
        except OSError:
            return False
        return base64.urlsafe_b64encode(digest).rstrip(b"=").decode() == self.digest


def files_of(distribution: importlib.metadata.Distribution) -> list[InstalledFile]:
    """The files of a distribution that have a digest.

    Bytecode is left out: pip compiles anew what a wheel brings of it, and Python does whenever a source is newer.
    """
    return [
        InstalledFile(str(file), str(file.locate()), file.hash.mode, file.hash.value, file.size)
        for file in distribution.files or ()
        if file.hash is not None and file.suffix != ".pyc"  # None: the record itself
    ]


def doubtful(files: Iterable[InstalledFile], built_at_ns: int) -> list[InstalledFile]:
    """Those that have to be read to know.

    Args:
        files: What was installed.
        built_at_ns: When the build ended, by the clock of the disk; 0 doubts all.
    """
    return [file for file in files if not file.is_untouched_since(built_at_ns)]


def changed(files: Sequence[InstalledFile]) -> list[str]:
    """Names of the files that are gone or hold other bytes; all of them are read."""
    with ThreadPoolExecutor(_READERS) as readers:
        as_installed = readers.map(InstalledFile.has_its_bytes, files)
        return [file.name for file, whole in zip(files, as_installed, strict=True) if not whole]
