"""Reading a directory whose manifest lists the digest of every file: none missing, none extra, none outside."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from paritygate.converter._atomic import CHUNK_BYTES
from paritygate.converter.errors import BundleCorrupt
from paritygate.converter.graph.inspect import is_contained


@dataclass(frozen=True)
class SealedDirectory:
    """A directory and what its manifest says of each file.

    Attributes:
        path: The directory.
        files: Relative name -> {"sha256": hex, "size_bytes": n}.
    """

    path: Path
    files: Mapping[str, Any]

    def read(self, name: str) -> bytes:
        """The bytes of a sealed file, after they were found to be the sealed ones.

        Raises:
            BundleCorrupt: If the file is not listed, missing, no plain file, or has other bytes.
        """
        if name not in self.files:
            raise BundleCorrupt(
                f"{self.path}: the manifest lists no {name!r}; the bundle is not whole.", file=name
            )
        with self._open(name) as file:
            self._check_size(name, os.fstat(file.fileno()).st_size)
            data = file.read(self.files[name]["size_bytes"] + 1)
        self._check_size(name, len(data))
        self._check_digest(name, hashlib.sha256(data).hexdigest())
        return data

    def read_unsealed(self, name: str, *, max_bytes: int) -> bytes | None:
        """The bytes of a file that no digest covers, or None if there is none.

        Raises:
            BundleCorrupt: If it is no plain file or is larger than `max_bytes`.
        """
        try:
            with self._open(name) as file:
                data = file.read(max_bytes + 1)
        except BundleCorrupt as error:
            if isinstance(error.__cause__, FileNotFoundError):
                return None
            raise
        if len(data) > max_bytes:
            raise BundleCorrupt(
                f"{self.path / name} is larger than {max_bytes} bytes; it is not ours.", file=name
            )
        return data

    def verify(self, *, unsealed: Collection[str], unsealed_directory: str) -> None:
        """Compare the whole directory with the manifest.

        Args:
            unsealed: Files that the manifest does not list and that may be there.
            unsealed_directory: A folder whose files are not listed.

        Raises:
            BundleCorrupt: At the first file that is missing, extra, changed, a link, or outside the directory.
        """
        for name in self.files:
            if not is_contained(name) or name in unsealed or name.startswith(f"{unsealed_directory}/"):
                raise BundleCorrupt(
                    f"{self.path}: the manifest lists {name!r}, which names no sealed file inside it.",
                    file=name,
                )
        for name in sorted(set(self._present()) - set(unsealed)):
            if name not in self.files and not name.startswith(f"{unsealed_directory}/"):
                raise BundleCorrupt(
                    f"{self.path / name} is not listed in the manifest; a bundle holds nothing else. "
                    "Remove the file or export the model again.",
                    file=name,
                )
        for name in self.files:
            self._verify_file(name)

    def _present(self) -> Iterator[str]:
        """Relative names of all entries that are not folders; links are refused wherever they point."""
        for folder, folders, names in os.walk(self.path, onerror=_raise):
            for entry in (*folders, *names):
                full = Path(folder, entry)
                name = full.relative_to(self.path).as_posix()
                if full.is_symlink():
                    raise BundleCorrupt(f"{full} is a link; a bundle holds plain files only.", file=name)
                if entry in names:
                    yield name

    def _verify_file(self, name: str) -> None:
        digest = hashlib.sha256()
        with self._open(name) as file:
            self._check_size(name, os.fstat(file.fileno()).st_size)
            while chunk := file.read(CHUNK_BYTES):
                digest.update(chunk)
        self._check_digest(name, digest.hexdigest())

    def _open(self, name: str) -> BinaryIO:
        """Open a plain file below the directory; no link is followed and no pipe is waited for."""
        if not is_contained(name):
            raise BundleCorrupt(f"{self.path}: {name!r} leaves the bundle's directory.", file=name)
        for parent in Path(name).parents:
            if (self.path / parent).is_symlink() and parent != Path():
                raise BundleCorrupt(
                    f"{self.path / parent} is a link; a bundle holds plain folders only.", file=name
                )
        try:
            descriptor = os.open(self.path / name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        except OSError as error:
            why = (
                "is missing" if isinstance(error, FileNotFoundError) else f"cannot be read ({error.strerror})"
            )
            raise BundleCorrupt(f"{self.path / name} {why}; the bundle is not whole.", file=name) from error
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise BundleCorrupt(f"{self.path / name} is no plain file.", file=name)
        return os.fdopen(descriptor, "rb")

    def _check_size(self, name: str, size: int) -> None:
        expected = self.files[name]["size_bytes"]
        if size != expected:
            raise BundleCorrupt(
                f"{self.path / name} has {size} bytes, the manifest says {expected}: "
                "it was changed after sealing. Export the model again.",
                file=name,
            )

    def _check_digest(self, name: str, found: str) -> None:
        expected = self.files[name]["sha256"]
        if found != expected:
            raise BundleCorrupt(
                f"{self.path / name} has sha256 {found[:12]}..., the manifest says {expected[:12]}...: "
                "it was changed after sealing. Export the model again.",
                file=name,
            )


def _raise(error: OSError) -> None:
    raise BundleCorrupt(
        f"{error.filename} cannot be listed ({error.strerror}); the bundle is not whole.",
        file=str(error.filename),
    ) from error
