"""Code that a pickle carries, for the tests that plant it."""

from __future__ import annotations

from pathlib import Path
from typing import Any


class Payload:
    """A pickle of it makes a folder when it is opened."""

    def __init__(self, canary: Path) -> None:
        self._canary = canary

    def __reduce__(self) -> Any:
        return Path.mkdir, (self._canary,)
