"""What every file source needs: it is there, it has a digest, and the error names what lies beside it if not."""

from __future__ import annotations

import difflib
import hashlib
from pathlib import Path

from paritygate.converter._stages import stage
from paritygate.converter.errors import SourceError, SourceNotFound


def existing_file(source: str | Path) -> Path:
    """The path of a file that can be read.

    Raises:
        SourceNotFound: If there is none; the text names the nearest file beside it.
        SourceError: If it is a directory or may not be read.
    """
    path = Path(source)
    if path.is_dir():
        raise SourceError(f"{path} is a directory; expected a checkpoint file.")
    if not path.exists():
        raise SourceNotFound(f"there is no file {path}.{_near(path)}")
    try:
        with path.open("rb"):
            return path
    except OSError as error:
        raise SourceError(f"{path} cannot be read: {error.strerror}.") from error


def _near(path: Path) -> str:
    folder = path.parent
    if not folder.is_dir():
        return f" The directory {folder} does not exist either."
    near = difflib.get_close_matches(path.name, [entry.name for entry in folder.iterdir()], n=1)
    return f" Did you mean {folder / near[0]}?" if near else ""


def file_sha256(path: Path) -> str:
    """Hex digest of a file's bytes."""
    with stage("digests"), path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
