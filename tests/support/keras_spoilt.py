"""Two copies of a `.keras` file whose weights ask for a terabyte, and for a file elsewhere."""

from __future__ import annotations

import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py

WEIGHTS = "model.weights.h5"


def spoil(source: Path, target: Path, change: Callable[[Any], None]) -> None:
    """Copy a file with its weights changed."""
    aside = target.with_suffix(".h5")
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(target, "w") as new:
        for member in old.namelist():
            if member != WEIGHTS:
                new.writestr(member, old.read(member))
        aside.write_bytes(old.read(WEIGHTS))
        with h5py.File(aside, "a") as file:
            change(file)
        new.write(aside, WEIGHTS)


if __name__ == "__main__":
    source, folder = Path(sys.argv[1]), Path(sys.argv[2])
    spoil(
        source,
        folder / "huge.keras",
        lambda file: file.create_dataset("more", (2**38,), "f4", chunks=(2**20,)),
    )
    link = h5py.ExternalLink("elsewhere.h5", "/x")
    spoil(source, folder / "linked.keras", lambda file: file.__setitem__("more", link))
