"""Where the material handed to the project lies; a clone passes without it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def shared_dir(*parts: str) -> Path:
    """The folder `shared/<parts>` beside the checkout, or a visible skip where it is not there."""
    base = Path(os.environ.get("PARITYGATE_SHARED", ROOT.parent / "shared"))
    folder = base.joinpath(*parts)
    if not folder.exists():
        pytest.skip(f"shared/{'/'.join(parts)} is not beside this checkout (set PARITYGATE_SHARED)")
    return folder
