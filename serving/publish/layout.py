"""Names in a model repository: which are models, which are versions, which are ours in passing."""

from __future__ import annotations

import os
import re
from pathlib import Path

from paritygate.serving.publish.errors import ModelNameInvalid

UNFINISHED_MARKER = ".publishing"
"""An empty file in a version's folder for as long as it is being written; a listed version never holds it."""

MAX_VERSION = 2**63 - 1
"""Triton keeps versions as int64."""

_MODEL_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.\-]{0,199}")
_VERSION = re.compile(r"0|[1-9][0-9]{0,18}")


def check_model_name(name: str) -> str:
    """The name itself, if it can be both a folder and a part of a URL.

    Raises:
        ModelNameInvalid: If it is empty, too long, hidden, or has a character with a meaning in a path or URL.
    """
    if not _MODEL_NAME.fullmatch(name):
        raise ModelNameInvalid(
            f"model name {name!r} is not valid: expected 1 to 200 of A-Z a-z 0-9 _ - . that do not begin with - "
            "or a dot. Pass another name."
        )
    return name


def parse_version(folder: str) -> int | None:
    """The version that a folder's name stands for, or None where it is no version.

    Stricter than Triton, which reads `2-old` as 2: only plain whole numbers without leading zeros count.
    """
    if not _VERSION.fullmatch(folder):
        return None
    number = int(folder)
    return number if number <= MAX_VERSION else None


def version_folders(model_dir: Path) -> dict[int, Path]:
    """The version folders in a model's folder, ascending."""
    found = {}
    with os.scandir(model_dir) as entries:
        for entry in entries:
            number = parse_version(entry.name)
            if number is not None and entry.is_dir():
                found[number] = Path(entry.path)
    return dict(sorted(found.items()))


def staging_prefix(root: Path) -> str:
    """How staging folders beside a repository begin: `.<repository>.publishing-`."""
    return f".{root.name}.publishing-"
