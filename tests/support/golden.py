"""Whole artefacts under tests/golden, read as a diff; UPDATE_GOLDEN=1 writes what is there now."""

from __future__ import annotations

import difflib
import os
from pathlib import Path

GOLDEN = Path(__file__).resolve().parents[1] / "golden"


def check_golden(name: str, text: str) -> None:
    """Compare a text with the file of this name below tests/golden.

    Raises:
        AssertionError: With the difference, unless UPDATE_GOLDEN=1 is set: then the file becomes the text.
    """
    path = GOLDEN / name
    if os.environ.get("UPDATE_GOLDEN") == "1":
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    expected = path.read_text(encoding="utf-8") if path.exists() else ""
    if text != expected:
        lines = difflib.unified_diff(expected.splitlines(), text.splitlines(), str(path), "now", lineterm="")
        raise AssertionError("\n".join(["UPDATE_GOLDEN=1 accepts this:", *lines]))
