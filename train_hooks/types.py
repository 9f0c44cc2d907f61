"""The words of a training job: what is to run (JobSpec), how it is run (Plan), how it ended (JobResult)."""

from __future__ import annotations

import enum
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from paritygate.train_hooks.errors import JobFailed

MARKER = "PARITYGATE_JOB_ID"
"""Environment variable that every process of one local run carries; its value is unique to the run."""

OWN_VARIABLES = frozenset({MARKER, "PARITYGATE_RANK", "PARITYGATE_CHANNELS", "PARITYGATE_RESULT_FILE"})
"""What a local run gives its processes; a job may not set it, and none comes in from a run around this one."""


@dataclass(frozen=True)
class Resources:
    """What one node of a job may use.

    Attributes:
        cpus: Whole CPU cores; None asks for nothing.
        memory_mib: Memory in MiB; None asks for nothing.
        gpus: Whole accelerators.
    """

    cpus: int | None = None
    memory_mib: int | None = None
    gpus: int = 0


@dataclass(frozen=True)
class ExportSpec:
    """Where the hook in the script sends the trained model, unless its call says otherwise.

    Attributes:
        name: Model name.
        repository: Model repository to publish into; None ends at the bundle.
        bundle_dir: Where the bundle is written; None chooses a place below the working directory.
    """

    name: str
    repository: str | None = None
    bundle_dir: str | None = None


@dataclass(frozen=True)
class JobSpec:
    """One training job, as `job.yaml` describes it, with no word of where it will run.

    Attributes:
        name: Name of the job; a DNS label, since clusters name pods after it.
        framework: Which launch contract holds: a name of `launch.contracts.CONTRACTS`.
        script: Python file to run in every rank, relative to `workdir`.
        module: Python module to run instead, as `python -m` does.
        command: Program and arguments instead of either; empty where one of them is given.
        args: Arguments after the script, module or command.
        python: Interpreter that runs the script; None takes the one that runs the launcher.
        environment: Framework environment whose interpreter runs the script, instead of `python`.
        nodes: Machines, or pods; on one machine without `hosts` they are played by groups of processes.
        processes_per_node: Ranks on each node.
        hosts: Addresses of the nodes; empty leaves that to the scheduler.
        master_address: The host of rank 0; None is the first host.
        master_port: Port where the ranks meet; None takes the contract's default, or a free one on this machine.
        env: Variables for every rank, besides those that the contract sets.
        workdir: Working directory of every rank; a relative one starts at `directory`.
        resources: What one node may use.
        image: Container image; needed by clusters only.
        timeout_s: Seconds after which the job is stopped; None waits for ever.
        stop_grace_s: Seconds between the polite stop of a rank and its kill.
        max_restarts: How often all ranks are started again after a failure; PyTorch only.
        queue: Queue of the cluster (Kueue).
        priority: Priority class of the cluster.
        namespace: Namespace of the cluster.
        export: Defaults for the hook in the script.
        directory: Where the job file lies; relative paths in it start there.
    """

    name: str
    framework: str
    script: str | None = None
    module: str | None = None
    command: tuple[str, ...] = ()
    args: tuple[str, ...] = ()
    python: str | None = None
    environment: str | None = None
    nodes: int = 1
    processes_per_node: int = 1
    hosts: tuple[str, ...] = ()
    master_address: str | None = None
    master_port: int | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    workdir: str = "."
    resources: Resources = Resources()
    image: str | None = None
    timeout_s: float | None = None
    stop_grace_s: float = 10.0
    max_restarts: int = 0
    queue: str | None = None
    priority: str | None = None
    namespace: str | None = None
    export: ExportSpec | None = None
    directory: str = "."

    @property
    def world_size(self) -> int:
        """Ranks in the whole job."""
        return self.nodes * self.processes_per_node

    def local_path(self, path: str) -> str:
        """A path of the job file as this machine knows it; what has a scheme is left as it is."""
        if "://" in path:
            return path
        return os.path.abspath(os.path.join(self.directory, os.path.expanduser(path)))


@dataclass(frozen=True)
class RankPlan:
    """One rank and the variables by which its framework finds the others."""

    rank: int
    local_rank: int
    env: Mapping[str, str]


@dataclass(frozen=True)
class NodePlan:
    """What is started on one node.

    Attributes:
        index: Node rank.
        host: Address of the node.
        command: Program and arguments, started once on this node.
        env: Variables added to the environment of that program.
        ranks: The ranks that come of it; empty where the framework numbers them only at run time.
    """

    index: int
    host: str
    command: tuple[str, ...]
    env: Mapping[str, str]
    ranks: tuple[RankPlan, ...]


@dataclass(frozen=True)
class Lossy:
    """A field of the job file that the chosen scheduler cannot express.

    Attributes:
        path: The field, as a JSONPath.
        reason: Why, and where the wish can be said instead.
    """

    path: str
    reason: str

    def __str__(self) -> str:
        return f"{self.path}: {self.reason}"


@dataclass(frozen=True)
class Plan:
    """All that a scheduler would do for a job; made without doing any of it.

    Attributes:
        job: The job.
        scheduler: Name of the scheduler that made the plan.
        nodes: Commands and environments, where the scheduler starts processes itself.
        documents: Manifests, where a cluster starts them.
        lossy: Every field of the job that is not expressed in the above.
        notes: What a reader of the plan should know, a sentence each.
        runnable: Whether `launcher.run` can do it from here; else its text is what the user takes away.
        text: The plan as a person reads it: shell lines, or YAML.
    """

    job: JobSpec
    scheduler: str
    nodes: tuple[NodePlan, ...] = ()
    documents: tuple[Mapping[str, Any], ...] = ()
    lossy: tuple[Lossy, ...] = ()
    notes: tuple[str, ...] = ()
    runnable: bool = True
    text: str = ""

    def render(self) -> str:
        """The plan as a person, a shell or kubectl reads it."""
        return self.text

    def to_json(self) -> dict[str, Any]:
        """This plan as plain JSON values."""
        return {
            "job": self.job.name,
            "scheduler": self.scheduler,
            "nodes": [asdict(node) for node in self.nodes],
            "documents": [dict(document) for document in self.documents],
            "lossy": [asdict(entry) for entry in self.lossy],
            "notes": list(self.notes),
            "runnable": self.runnable,
        }


class JobState(enum.Enum):
    """How a job stands."""

    RUNNING = "running"
    """Its processes are being started, or run."""
    SUCCEEDED = "succeeded"
    """Every rank ended with code 0."""
    FAILED = "failed"
    """A rank ended otherwise, or could not be started."""
    TIMED_OUT = "timed_out"
    """It was stopped because `timeout_s` had passed."""
    CANCELLED = "cancelled"
    """It was stopped because its caller asked for it."""


EXIT_CODES = {
    JobState.SUCCEEDED: 0,
    JobState.FAILED: 1,
    JobState.TIMED_OUT: 124,
    JobState.CANCELLED: 130,
}
"""Exit code of the launcher for each final state; 124 is that of timeout(1), 130 that of a shell after Ctrl-C."""


@dataclass(frozen=True)
class JobEvent:
    """Something that happened in a running job.

    Attributes:
        kind: `started`, `line`, `exited` (well), `failed`, `stopping` or `published`.
        source: Who it is about: `rank 0`, `node 0`, or `job`.
        text: The line, or one sentence.
        rank: The rank, where there is one.
    """

    kind: str
    source: str
    text: str
    rank: int | None = None

    def __str__(self) -> str:
        return f"[{self.source}] {self.text}"


@dataclass(frozen=True)
class RankEnd:
    """How one process of a job ended.

    Attributes:
        source: `rank 1`, or `node 0` for the agent that starts ranks.
        rank: The rank; None for an agent.
        exit_code: Exit code; None where a signal ended it.
        signal: Name of that signal, or None.
        last_lines: The last lines that it wrote.
    """

    source: str
    rank: int | None
    exit_code: int | None
    signal: str | None
    last_lines: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether it ended by itself with code 0."""
        return self.exit_code == 0

    def __str__(self) -> str:
        how = f"was killed by {self.signal}" if self.signal else f"exited with code {self.exit_code}"
        return f"{self.source} {how}"


@dataclass(frozen=True)
class HookResult:
    """What the hook made of a trained model.

    Attributes:
        name: Model name.
        framework: Framework of the model, as the bundle's manifest has it.
        bundle: Where the bundle lies; None if it was removed because the repository holds the same bytes.
        bundle_digest: Digest of the bundle.
        repository: The model repository, or None where nothing was to be published.
        version: Published version, or None.
        created: False where the repository had these bytes already.
        verdict: Verdict of the certificate, or None where nothing was validated.
        max_abs_diff: Largest absolute difference of any output in any case, or None.
        share_of_allowed: The most of what is allowed that any output in any case has used, 1 being all; or None.
        path: Directory of the published version, or None.
        seconds: Time that the hook took.
    """

    name: str
    framework: str
    bundle: str | None
    bundle_digest: str
    repository: str | None = None
    version: int | None = None
    created: bool | None = None
    verdict: str | None = None
    max_abs_diff: float | None = None
    share_of_allowed: float | None = None
    path: str | None = None
    seconds: float = 0.0

    def to_json(self) -> dict[str, Any]:
        """This result as plain JSON values."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> HookResult:
        """Build a result from what `to_json` gave; what a later version has added is left out."""
        known = {field.name for field in fields(cls)}
        return cls(**{name: item for name, item in value.items() if name in known})

    def __str__(self) -> str:
        if self.version is None:
            return f"{self.name}: bundle {self.bundle} ({self.bundle_digest})"
        how = "published" if self.created else "was already published"
        figure = "" if self.max_abs_diff is None else f", max abs diff {self.max_abs_diff:.3g}"
        if self.share_of_allowed is not None:
            figure += f", {100 * self.share_of_allowed:.2g} % of what is allowed"
        where = f"as version {self.version} in {self.repository}"
        return f"{self.name} {how} {where} (parity {self.verdict}{figure})"


@dataclass(frozen=True)
class JobResult:
    """How a job ended.

    Attributes:
        job: Name of the job.
        state: Final state.
        message: One line, fit for a person.
        ends: How each process ended, in the order in which they did.
        failure: The first process that failed, or None.
        hooks: What hooks in the script reported.
        seconds: From start to end.
    """

    job: str
    state: JobState
    message: str
    ends: tuple[RankEnd, ...] = ()
    failure: RankEnd | None = None
    hooks: tuple[HookResult, ...] = ()
    seconds: float = 0.0

    @property
    def exit_code(self) -> int:
        """Exit code for a command that stands for this job."""
        return EXIT_CODES[self.state]

    @property
    def reason(self) -> str | None:
        """Why the job did not succeed, in one line; None if it did."""
        return None if self.state is JobState.SUCCEEDED else self.message

    @property
    def result(self) -> dict[str, Any] | None:
        """What the last call of the hook made, as plain JSON values; None if the script called none."""
        return self.hooks[-1].to_json() if self.hooks else None

    def check(self) -> JobResult:
        """This result, if the job succeeded.

        Raises:
            JobFailed: In every other case.
        """
        if self.state is not JobState.SUCCEEDED:
            raise JobFailed(self)
        return self

    def to_json(self) -> dict[str, Any]:
        """This result as plain JSON values."""
        return {
            "job": self.job,
            "state": self.state.value,
            "exit_code": self.exit_code,
            "message": self.message,
            "ends": [asdict(end) for end in self.ends],
            "failure": asdict(self.failure) if self.failure else None,
            "hooks": [hook.to_json() for hook in self.hooks],
            "seconds": self.seconds,
        }


@dataclass(frozen=True)
class Rank:
    """Which of how many processes this is."""

    index: int
    world_size: int

    @property
    def is_first(self) -> bool:
        """Whether this is the process that exports."""
        return self.index == 0


@dataclass(frozen=True)
class CoreEnvironment:
    """The interpreter in which bundles are validated and published.

    Attributes:
        python: Path of the interpreter.
        version: Version of paritygate found there.
    """

    python: Path
    version: str
