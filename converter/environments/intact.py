"""Whether the files of an installed environment are those that its wheels brought, and no others.

Every wheel leaves a RECORD with the digest and the size of each of its files. Reading gigabytes again to compare
digests takes minutes, so a file is read only if it may have changed: the disk stamps a file's ctime whenever its
bytes, its rights or its place change, and no program can set that stamp. What has its size and a stamp from before
the end of the build is as it was installed. An environment that was copied or restored has newer stamps
throughout, and is read as a whole.

What no RECORD names was put there by somebody else, and may run: a `.pth` file or `sitecustomize.py` whenever the
environment's Python starts, a module when something imports its name.
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
from pathlib import Path

_READERS = 4
_BYTECODE = "__pycache__"


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


def unrecorded(packages: Path, distributions: Iterable[importlib.metadata.Distribution]) -> list[str]:
    """Names of the files that no RECORD names, those that run whenever Python starts first.

    A folder in which no RECORD names anything is one entry, with a `/` at its end. Bytecode in a `__pycache__` is
    left out: Python writes it.

    Args:
        packages: The folder `site-packages` of an environment.
        distributions: What is installed there.
    """
    recorded = {
        os.path.normpath(file.locate()) for distribution in distributions for file in distribution.files or ()
    }
    named_folders = _with_their_parents({os.path.dirname(file) for file in recorded})
    home, found = os.path.normpath(packages), []
    for folder, inner, names in os.walk(home):
        found += [path for name in names if (path := os.path.join(folder, name)) not in recorded]
        inner[:] = [name for name in inner if name != _BYTECODE]
        foreign = [name for name in inner if os.path.join(folder, name) not in named_folders]
        found += [f"{path}/" for name in foreign if _holds_files(path := os.path.join(folder, name))]
        inner[:] = [name for name in inner if name not in foreign]
    return sorted((path.removeprefix(f"{home}/") for path in found), key=_starters_first)


def _with_their_parents(folders: set[str]) -> set[str]:
    found: set[str] = set()
    for folder in folders:
        while folder not in found:
            found.add(folder)
            folder = os.path.dirname(folder)
    return found


def _holds_files(folder: str) -> bool:
    return any(names for inner, _, names in os.walk(folder) if os.path.basename(inner) != _BYTECODE)


def _starters_first(name: str) -> tuple[bool, str]:
    starts = name in {"sitecustomize.py", "usercustomize.py"} or ("/" not in name and name.endswith(".pth"))
    return not starts, name
