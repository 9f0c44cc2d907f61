"""Where in the model a node came from, as MindSpore writes it and as people read it."""

from __future__ import annotations

import re
from dataclasses import dataclass

WRAPPED = "source"
"""The name of the user's cell inside the one that makes its inputs and outputs flat."""

_PART = re.compile(r"(?P<name>.+)-(?P<kind>[A-Za-z_]\w*)")


@dataclass(frozen=True)
class Scope:
    """The cell that a node came from.

    Attributes:
        path: Names of cells from the user's model down, joined by dots; empty for the model itself.
        kind: The class of the innermost cell.
    """

    path: str
    kind: str

    @classmethod
    def parse(cls, text: str) -> Scope:
        """Read `Default/source-Net/conv-Conv2d/Conv2D-op0`."""
        found = [_PART.fullmatch(part) for part in text.split("/")[1:-1]]
        parts = [(match["name"], match["kind"]) for match in found if match is not None]
        names = [name for name, _ in parts]
        if names[:1] == [WRAPPED]:
            names = names[1:]
        return cls(".".join(names), parts[-1][1] if parts else "")

    def __str__(self) -> str:
        """`conv (Conv2d)`, or `construct of Net` for the model itself."""
        if self.path:
            return f"{self.path} ({self.kind})"
        return f"construct of {self.kind}" if self.kind else "the model"
