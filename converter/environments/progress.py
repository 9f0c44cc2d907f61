"""How far the build of an environment is, as figures for a bar and as lines for everywhere else."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

FETCHING, INSTALLING = "fetching", "installing"


@dataclass(frozen=True)
class BuildStep:
    """How far a build is.

    Attributes:
        environment: The environment that is built.
        phase: `fetching` or `installing`.
        package: What is fetched now; empty while packages are installed.
        done: Packages that are through this phase.
        total: Packages of the environment.
        bytes_done: What has come of the file that is fetched now; 0 where pip does not tell.
        bytes_total: Size of that file; 0 where pip does not tell.
    """

    environment: str
    phase: str
    package: str
    done: int
    total: int
    bytes_done: int = 0
    bytes_total: int = 0

    def __str__(self) -> str:
        """One line for a log, worth showing when the phase or the package is another."""
        if self.phase == INSTALLING:
            return f"installing {self.total} packages"
        return f"fetching {self.done + 1} of {self.total}: {self.package}"


Say = Callable[[str], None]
OnStep = Callable[[BuildStep], None]


@dataclass(frozen=True)
class Progress:
    """Whom a build tells how it goes.

    Attributes:
        say: Given one short line at a time, few enough to keep in a log.
        step: Given figures as they change, often enough for a bar.
    """

    say: Say
    step: OnStep


def silent_line(_line: str) -> None:
    """Say nothing."""


def silent_step(_step: BuildStep) -> None:
    """Show nothing."""
