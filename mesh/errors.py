"""Errors of the mesh package.

MeshError
├── RolloutInvalid     a rollout file has faults; holds all of them, each with its path
├── ActionRefused      a rollout change that must not happen; says why and what to do
│   └── VersionsDiffer the versions of a rollout do not share one signature, or one is not there
├── StateError         the rollout state cannot be read or written
│   ├── StateCorrupt   the log holds bytes that no crash explains; names the line
│   ├── StateBusy      another process holds the store's lock for too long
│   └── StateUnwritable  the file system refused; says whether the change may have happened
└── DialectError       a rollout and a mesh's own form cannot say the same
    ├── CannotExpress  the target form cannot say a field of the rollout; names its path
    ├── CannotRead     documents hold a field that is not understood; names its path
    └── UnknownDialect no dialect has this name; lists the known ones
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that is wrong, and where.

    Attributes:
        message: What was given and what is expected.
        path: Where, as a JSONPath that starts with `$`.
    """

    message: str
    path: str

    def __str__(self) -> str:
        return f"{self.message} @ {self.path}"


class MeshError(Exception):
    """Base of all errors of this package: one sentence with what was given, expected, and what to do."""


class _Faulty(MeshError):
    """An error that carries a list of faults and reads as one line.

    Attributes:
        source: What was read or written: a file's name, or a document's kind and name.
        faults: Everything that is wrong, in the order of the document.
    """

    def __init__(self, source: str, faults: Sequence[Fault]) -> None:
        self.source = source
        self.faults = tuple(faults)
        super().__init__(f"{source}: " + "; ".join(map(str, self.faults)))


class RolloutInvalid(_Faulty):
    """A rollout file has faults."""


class ActionRefused(MeshError):
    """A rollout change that must not happen."""


class VersionsDiffer(ActionRefused):
    """The versions of a rollout do not share one signature, or one of them is not there.

    Attributes:
        versions: The version numbers that stand in the way.
    """

    def __init__(self, message: str, *, versions: Sequence[int]) -> None:
        super().__init__(message)
        self.versions = tuple(versions)


class StateError(MeshError):
    """The rollout state cannot be read or written."""


class StateCorrupt(StateError):
    """The log holds bytes that no crash of a writer explains.

    Attributes:
        line: Number of the first bad line, counted from 1.
    """

    def __init__(self, message: str, *, line: int) -> None:
        super().__init__(message)
        self.line = line


class StateBusy(StateError):
    """Another process holds the store's lock for longer than we wait."""


class StateUnwritable(StateError):
    """The file system refused a write."""


class DialectError(MeshError):
    """A rollout and a mesh's own form cannot say the same."""


class CannotExpress(_Faulty, DialectError):
    """The target form cannot say a field of the rollout."""


class CannotRead(_Faulty, DialectError):
    """Documents hold something that is not understood, or that Istio itself would refuse."""


class UnknownDialect(DialectError):
    """No dialect has this name."""
