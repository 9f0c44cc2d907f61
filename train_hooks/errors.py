"""Errors of the train_hooks package.

TrainHooksError
├── JobFileError           job.yaml is not a job; carries every fault with its path
├── LaunchError            a job cannot be planned or started
│   ├── UnknownName        no such scheduler, framework contract or hook; lists the known ones
│   ├── PlanError          the job asks for something this framework or scheduler cannot do
│   ├── NotRunnable        the plan can be shown, but not run from here
│   ├── ManifestError      a manifest is not one that its operator would run
│   └── JobFailed          the job ran and did not succeed; carries the JobResult
└── HookError              the call in the training script could not do its work
    ├── RankUnclear        the variables that say which rank this is contradict each other or are no numbers
    ├── ModelRefused       the model cannot be exported from one rank (sharded, or of an unknown framework)
    ├── CoreUnavailable    there is no core environment to validate and publish in
    ├── ExportFailed       the model did not become a bundle
    └── PublishFailed      the bundle is kept, the repository did not get it; carries how to publish it
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from paritygate.train_hooks.types import JobResult


@dataclass(frozen=True)
class Fault:
    """One thing that is wrong in a job file, and where.

    Attributes:
        path: Where it stands, as a JSONPath such as `$.resources.gpus`.
        problem: What was given, what was expected, and what to do.
    """

    path: str
    problem: str

    def __str__(self) -> str:
        return f"{self.problem} @ {self.path}"


class TrainHooksError(Exception):
    """Base of all errors of this package: one sentence with what was given, expected, and what to do."""


class JobFileError(TrainHooksError):
    """A job description is not a job.

    Attributes:
        faults: Every fault found, in the order of the file's fields.
    """

    def __init__(self, faults: Sequence[Fault], *, source: str = "job") -> None:
        super().__init__(f"{source}: " + "; ".join(map(str, faults)))
        self.faults = tuple(faults)


class LaunchError(TrainHooksError):
    """A job cannot be planned or started."""


class UnknownName(LaunchError):
    """A registry has no entry of this name."""

    def __init__(self, kind: str, name: str, known: Iterable[str]) -> None:
        super().__init__(f"unknown {kind} {name!r}; known: {', '.join(sorted(known))}.")
        self.name = name


class PlanError(LaunchError):
    """The job asks for something that this framework or scheduler cannot do."""


class NotRunnable(LaunchError):
    """The plan can be shown, but not run from this machine."""


class ManifestError(LaunchError):
    """A manifest is not one that its operator would run as a distributed job."""


class JobFailed(LaunchError):
    """The job ran and did not succeed.

    Attributes:
        result: How it ended: state, failed rank, last lines.
    """

    def __init__(self, result: JobResult) -> None:
        super().__init__(result.message)
        self.result = result


class HookError(TrainHooksError):
    """The call in the training script could not do its work."""


class RankUnclear(HookError):
    """The variables that say which rank this process is cannot be read."""


class ModelRefused(HookError):
    """The model cannot be exported from one rank of this job."""


class CoreUnavailable(HookError):
    """There is no environment in which a bundle could be validated and published."""


class ExportFailed(HookError):
    """The model did not become a bundle."""


class PublishFailed(HookError):
    """The bundle is there, the repository did not get it.

    Attributes:
        bundle: Where the bundle is kept.
        command: The command line that publishes it.
    """

    def __init__(self, message: str, *, bundle: Path, command: str) -> None:
        super().__init__(message)
        self.bundle = bundle
        self.command = command
