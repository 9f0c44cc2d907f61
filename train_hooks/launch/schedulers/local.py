"""This machine: every rank is a process here, under a supervisor that leaves none behind."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import random
import re
import shlex
import signal
import socket
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any

from paritygate.train_hooks.errors import LaunchError, NotRunnable, PlanError
from paritygate.train_hooks.launch import rank as rank_module
from paritygate.train_hooks.launch import supervisor as supervisor_module
from paritygate.train_hooks.launch.contracts import CONTRACTS, get_contract
from paritygate.train_hooks.launch.contracts.base import Place
from paritygate.train_hooks.launch.schedulers.base import OnEvent, Scheduler
from paritygate.train_hooks.types import (
    MARKER,
    OWN_VARIABLES,
    HookResult,
    JobEvent,
    JobResult,
    JobSpec,
    JobState,
    Lossy,
    NodePlan,
    Plan,
    RankEnd,
)

PYTHON_MACRO = "${ENVIRONMENT_PYTHON}"
MOST_RANKS = 256
"""The supervisor holds two descriptors for each rank, and may usually have 1024."""
_PORT_MACRO = re.compile(r"\$\{PORT_(\d+)\}")


class LocalScheduler(Scheduler):
    """Processes on this machine.

    Nodes of a job without `hosts` are played here by one group of processes each. With `hosts` the plan says
    what to start on each machine; nothing here can start it there.
    """

    def plan(self, job: JobSpec, kind: str | None = None) -> Plan:
        """Commands and environments; ports and the environment's interpreter stay macros until the start."""
        if kind is not None:
            raise PlanError(f"--on local starts processes and has no kinds, got {kind!r}; leave it out.")
        contract = get_contract(job.framework)
        hosts = _hosts(job)
        ports = _ports(job, contract.default_port)
        shim = () if job.hosts else _shim(_python(job))
        places = [Place(hosts, ports, str(node), _python(job), shim) for node in range(job.nodes)]
        nodes = tuple(_with_job_env(job, contract.plan_node(job, place)) for place in places)
        plan = Plan(
            job,
            "local",
            nodes=nodes,
            lossy=tuple(_lossy(job)),
            notes=tuple(_notes(job)),
            runnable=not job.hosts,
        )
        return replace(plan, text=_render(plan))

    def run(self, plan: Plan, on_event: OnEvent) -> JobResult:
        """Start the processes, pass on their lines, wait; Ctrl-C stops them politely, twice at once."""
        _check_runnable(plan.job)
        with _interpreter(plan.job, on_event) as python:
            return _Run(_fill_macros(plan, python), on_event).wait()


def _python(job: JobSpec) -> str:
    return PYTHON_MACRO if job.environment else (job.python or sys.executable)


def _shim(python: str) -> tuple[str, ...]:
    return (python, "-I", "-S", str(Path(rank_module.__file__).resolve()))


def _hosts(job: JobSpec) -> tuple[str, ...]:
    """Addresses of the nodes, that of rank 0 first."""
    master = job.master_address
    if not job.hosts:
        return (master or "localhost",) * job.nodes
    if master is None or master not in job.hosts:
        return (master or job.hosts[0], *job.hosts[1:])
    return (master, *(host for host in job.hosts if host != master))


def _ports(job: JobSpec, default: int) -> tuple[str, ...]:
    if job.hosts:
        return (str(job.master_port or default),) * job.nodes
    first = str(job.master_port) if job.master_port else "${PORT_0}"
    return (first, *(f"${{PORT_{node}}}" for node in range(1, job.nodes)))


def _with_job_env(job: JobSpec, node: NodePlan) -> NodePlan:
    """The node with the variables of the job and those by which the hook finds its defaults."""
    env = {**node.env, **job_environment(_with_local_paths(job))}
    if not node.ranks or len(node.ranks) == 1:
        env["PARITYGATE_RANK"] = str(node.index)
    return replace(node, env=env)


def _with_local_paths(job: JobSpec) -> JobSpec:
    """The job with the hook's paths as its ranks can use them, wherever they stand."""
    if job.export is None:
        return job
    repository, bundle_dir = job.export.repository, job.export.bundle_dir
    export = replace(
        job.export,
        repository=job.local_path(repository) if repository else None,
        bundle_dir=job.local_path(bundle_dir) if bundle_dir else None,
    )
    return replace(job, export=export)


def job_environment(job: JobSpec) -> dict[str, str]:
    """What every rank of a job sees besides its framework's contract, wherever it runs."""
    env = {"PYTHONUNBUFFERED": "1"}
    if job.export is not None:
        env["PARITYGATE_EXPORT_NAME"] = job.export.name
        if job.export.repository:
            env["PARITYGATE_REPOSITORY"] = job.export.repository
        if job.export.bundle_dir:
            env["PARITYGATE_BUNDLE_DIR"] = job.export.bundle_dir
    return {**env, **job.env}


def _lossy(job: JobSpec) -> Iterator[Lossy]:
    """What one machine without containers and queues does not do."""
    for name in ("timeout_s", "stop_grace_s") if job.hosts else ():
        if getattr(job, name) != JobSpec.__dataclass_fields__[name].default:
            yield Lossy(f"$.{name}", "nobody here watches processes on other hosts; use timeout(1) there")
    threads = "; OMP_NUM_THREADS is set from it" if job.framework == "pytorch" else ""
    if job.resources.cpus is not None:
        yield Lossy("$.resources.cpus", f"processes of this machine are not limited{threads}")
    if job.resources.memory_mib is not None:
        yield Lossy("$.resources.memory_mib", "processes of this machine are not limited")
    if job.resources.gpus:
        yield Lossy(
            "$.resources.gpus", "all accelerators of this machine are visible; set CUDA_VISIBLE_DEVICES"
        )
    if job.image is not None:
        yield Lossy("$.image", "processes of this machine use the installed interpreter, no container")
    for name in ("queue", "priority", "namespace"):
        if getattr(job, name) is not None:
            yield Lossy(f"$.{name}", "this machine has no cluster queue; the job starts at once")


def _notes(job: JobSpec) -> Iterator[str]:
    if job.hosts:
        yield ("start each node's command on its host; nothing is started from here")
    elif job.nodes > 1 or job.framework == "pytorch":
        yield "${PORT_n} is a free port of this machine, chosen when the job starts"
    if not job.hosts and job.framework == "pytorch" and job.nodes == 1:
        yield "torchrun --standalone chooses the address and port of rank 0 itself"
    if job.environment:
        yield (
            f"{PYTHON_MACRO} is the interpreter of the framework environment {job.environment!r}, "
            "built when the job starts unless it is there"
        )


def _limits(job: JobSpec) -> Iterator[str]:
    """What the supervisor watches."""
    if not job.hosts:
        if job.timeout_s is not None:
            yield f"stopped after {job.timeout_s:g} s (timeout_s)"
        yield f"ranks that are asked to end are killed after {job.stop_grace_s:g} s (stop_grace_s)"


def _render(plan: Plan) -> str:
    """Shell lines that say what is started where, with the variables of every rank."""
    blocks = [f"# job {plan.job.name}: {plan.job.world_size} ranks of {plan.job.framework}"]
    blocks += [f"# {note}" for note in (*_limits(plan.job), *plan.notes)]
    for node in plan.nodes:
        blocks.append(f"\n# node {node.index} on {node.host}")
        blocks.append(f"cd {shlex.quote(plan.job.local_path(plan.job.workdir))}")
        blocks += [f"export {name}={_quoted(value)}" for name, value in sorted(node.env.items())]
        blocks.append(" ".join(map(_quoted, node.command)))
        for rank in node.ranks:
            shown = " ".join(f"{name}={_quoted(value)}" for name, value in rank.env.items())
            blocks.append(f"#   rank {rank.rank} sees {shown}".rstrip())
    blocks += [f"# not expressed here: {entry}" for entry in plan.lossy]
    return "\n".join(blocks) + "\n"


def _quoted(word: str) -> str:
    """A word for the shell; our own macros stay readable."""
    return word if _PORT_MACRO.fullmatch(word) or word == PYTHON_MACRO else shlex.quote(word)


# From a plan to processes.


def _check_runnable(job: JobSpec) -> None:
    if job.hosts:
        raise NotRunnable(
            f"job {job.name} names hosts {', '.join(job.hosts)}, and --on local starts processes on this machine "
            "only; take hosts out, or print each host's command with --dry-run."
        )
    if sys.platform != "linux":
        raise NotRunnable(
            f"--on local needs Linux (it leaves no process behind by prctl), got {sys.platform}."
        )
    if job.world_size > MOST_RANKS:
        raise NotRunnable(
            f"job {job.name} has {job.world_size} ranks; expected at most {MOST_RANKS} on one machine. "
            "Lower nodes or processes_per_node, or name hosts."
        )
    workdir = Path(job.local_path(job.workdir))
    if not workdir.is_dir():
        raise NotRunnable(
            f"workdir {workdir} is not a directory; create it, or name another in the job file."
        )
    if job.script is not None and not (workdir / job.script).is_file():
        raise NotRunnable(f"script {job.script} is not in {workdir}; give its path relative to workdir.")


@contextlib.contextmanager
def _interpreter(job: JobSpec, on_event: OnEvent) -> Iterator[str]:
    """The interpreter of the job's framework environment, which is built if need be and kept while it is used."""
    if not job.environment:
        yield _python(job)
        return
    from paritygate.converter.environments import sync
    from paritygate.converter.environments.manager import in_use

    environment = sync(job.environment, lambda text: on_event(JobEvent("line", "job", text)))
    with in_use(environment):
        yield str(environment.python)


def _fill_macros(plan: Plan, python: str) -> Plan:
    """The plan with real ports and the real interpreter of the environment."""
    values = {f"${{PORT_{node}}}": str(port) for node, port in enumerate(_free_ports(plan.job.nodes))}
    values[PYTHON_MACRO] = python

    def fill(text: str) -> str:
        for macro, value in values.items():
            text = text.replace(macro, value)
        return text

    def fill_node(node: NodePlan) -> NodePlan:
        env = {name: fill(value) for name, value in node.env.items()}
        return replace(node, command=tuple(map(fill, node.command)), env=env)

    return replace(plan, nodes=tuple(map(fill_node, plan.nodes)))


def _free_ports(count: int) -> list[int]:
    """Different ports that nothing listens on.

    They lie below 32768, where the kernel takes no ports for outgoing connections, so that none is lost between
    this look and the framework's own bind.

    Raises:
        LaunchError: If this machine has none.
    """
    ports: list[int] = []
    for port in random.sample(range(20000, 32768), 2000):
        with socket.socket() as probe:
            try:
                probe.bind(("", port))
            except OSError:
                continue
        ports.append(port)
        if len(ports) == count:
            return ports
    raise LaunchError(f"no {count} free ports between 20000 and 32767 on this machine.")


def _base_environment(marker: str) -> dict[str, str]:
    """The launcher's environment without what an outer job may have left in it."""
    foreign = frozenset().union(*(get_contract(name).reserved for name in CONTRACTS))
    env = {name: value for name, value in os.environ.items() if name not in foreign | OWN_VARIABLES}
    env[MARKER] = marker
    env.setdefault("PARITYGATE_CORE_PYTHON", sys.executable)
    if "PYTHONPATH" in env:
        env.setdefault("PARITYGATE_CORE_PYTHONPATH", env["PYTHONPATH"])
    return env


def _interpreter_variables(job: JobSpec) -> dict[str, str]:
    """What another interpreter needs: the way to this package, and what its environment always has set."""
    if not job.environment and not job.python:
        return {}
    found: dict[str, str] = {}
    if job.environment:
        from paritygate.converter.environments import SPECS

        found.update(SPECS[job.environment].variables)
    path = [str(_link_to_package()), job.env.get("PYTHONPATH", "")]
    return {**found, **job.env, "PYTHONPATH": os.pathsep.join(filter(None, path))}


def _link_to_package() -> Path:
    """A directory that holds nothing but a link to this package; made once, the same for every job.

    The directory where the package itself lies may hold all of this environment.
    """
    import paritygate
    from paritygate.converter.environments import environments_dir

    package = Path(paritygate.__file__).absolute().parent
    folder = environments_dir() / f"code-{hashlib.sha256(str(package).encode()).hexdigest()[:12]}"
    folder.mkdir(parents=True, exist_ok=True)
    try:
        (folder / "paritygate").symlink_to(package)
    except FileExistsError:
        return folder  # the name of the folder says where the link goes
    return folder


class _Run:
    """One local run, from its start to its end."""

    def __init__(self, plan: Plan, on_event: OnEvent) -> None:
        self.plan = plan
        self.on_event = on_event
        self.marker = uuid.uuid4().hex
        self.started_at = time.monotonic()
        self.ends: list[RankEnd] = []
        self.hooks: list[HookResult] = []
        self.reason: str | None = None
        self.finished = False

    def wait(self) -> JobResult:
        """Start the supervisor, follow it, say how it ended."""
        supervisor = self._start_supervisor()
        try:
            self._follow(supervisor)
        finally:
            self._close(supervisor)
        return self._result()

    def _start_supervisor(self) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", str(Path(supervisor_module.__file__).resolve())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=_base_environment(self.marker),
            start_new_session=True,  # Ctrl-C of the terminal comes to the launcher alone
        )
        _say(process, json.dumps(self._order()))
        return process

    def _order(self) -> dict[str, Any]:
        job = self.plan.job
        contract = get_contract(job.framework)
        extra = _interpreter_variables(job)
        return {
            "roots": [self._root(node, extra, contract.stops_itself) for node in self.plan.nodes],
            "world_size": job.world_size,
            "timeout_s": job.timeout_s,
            "stop_grace_s": job.stop_grace_s,
            "restarts": job.max_restarts,
            "launcher_pid": os.getpid(),
        }

    def _root(self, node: NodePlan, extra: Mapping[str, str], stops_itself: bool) -> dict[str, Any]:
        return {
            "source": f"node {node.index}" if stops_itself else f"rank {node.index}",
            "rank": None if stops_itself else node.index,
            "command": list(node.command),
            "env": {**node.env, **extra},
            "cwd": self.plan.job.local_path(self.plan.job.workdir),
            "stops_itself": stops_itself,
        }

    def _follow(self, supervisor: subprocess.Popen[bytes]) -> None:
        """Read events until the end; Ctrl-C or SIGTERM asks for a polite stop, the next one for a kill."""
        assert supervisor.stdout is not None
        with self._polite_signals(supervisor):
            for line in supervisor.stdout:
                self._take(json.loads(line))

    @contextlib.contextmanager
    def _polite_signals(self, supervisor: subprocess.Popen[bytes]) -> Iterator[None]:
        """Turn the signals that would end this process into orders, where the caller has not taken them itself."""
        orders = iter(["stop", "kill"])

        def ask(number: int, frame: FrameType | None) -> None:
            _say(supervisor, next(orders, "kill"))

        replaced: dict[int, Any] = {}
        if threading.current_thread() is threading.main_thread():
            usual = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}
            taken = [number for number, handler in usual.items() if signal.getsignal(number) == handler]
            replaced = {number: signal.signal(number, ask) for number in taken}
        try:
            yield
        finally:
            for number, handler in replaced.items():
                signal.signal(number, handler)

    def _take(self, said: dict[str, Any]) -> None:
        getattr(self, f"_on_{said.pop('event')}")(**said)

    def _on_line(self, source: str, rank: int | None, text: str) -> None:
        self.on_event(JobEvent("line", source, text, rank))

    def _on_started(self, source: str, rank: int, pid: int) -> None:
        self.on_event(JobEvent("started", source, f"started as process {pid}", rank))

    def _on_not_started(self, source: str, rank: int | None, error: str) -> None:
        self.ends.append(RankEnd(source, rank, 127, None, (f"cannot be started: {error}",)))
        self.on_event(JobEvent("failed", source, f"cannot be started: {error}", rank))

    def _on_exited(
        self, source: str, rank: int | None, code: int | None, signal: str | None, last: list[str]
    ) -> None:
        end = RankEnd(source, rank, code, signal, tuple(last))
        self.ends.append(end)
        kind = "exited" if end.ok else "failed"
        self.on_event(JobEvent(kind, source, str(end).removeprefix(f"{source} "), rank))

    def _on_stopping(self, reason: str) -> None:
        job = self.plan.job
        why = {
            "failed": "a rank failed",
            "timed_out": f"timeout_s of {job.timeout_s:g} s has passed" if job.timeout_s else "time is over",
            "cancelled": "it was asked to stop",
        }[reason]
        text = f"{why}; the others are asked to end and killed after {job.stop_grace_s:g} s"
        self.on_event(JobEvent("stopping", "job", text))

    def _on_result(self, text: str) -> None:
        try:
            result = HookResult.from_json(json.loads(text))
        except (ValueError, TypeError, AttributeError):
            self.on_event(JobEvent("line", "job", f"a hook reported what is no result: {text[:200]}"))
            return
        self.hooks.append(result)
        self.on_event(JobEvent("published", "job", str(result)))

    def _on_left_behind(self, pids: list[int]) -> None:
        text = f"processes {', '.join(map(str, pids))} cannot be killed"
        self.ends.append(RankEnd("job", None, 1, None, (text,)))

    def _on_finished(self, reason: str | None, codes: list[int]) -> None:
        self.finished = True
        self.reason = reason

    def _close(self, supervisor: subprocess.Popen[bytes]) -> None:
        """Let go of the lifeline, wait for the supervisor, look for processes if it could not do its work."""
        assert supervisor.stdin is not None
        assert supervisor.stdout is not None
        supervisor.stdin.close()
        supervisor.stdout.close()
        try:
            supervisor.wait(timeout=40)
        except subprocess.TimeoutExpired:
            supervisor.kill()
            supervisor.wait()
        if not self.finished:
            sweep(self.marker)

    def _result(self) -> JobResult:
        state = self._state()
        failure = self._failure() if state is JobState.FAILED else None
        return JobResult(
            job=self.plan.job.name,
            state=state,
            message=self._message(state, failure),
            ends=tuple(self.ends),
            failure=failure,
            hooks=tuple(self.hooks),
            seconds=time.monotonic() - self.started_at,
        )

    def _state(self) -> JobState:
        if not self.finished or self.reason == "failed":
            return JobState.FAILED
        return JobState(self.reason) if self.reason else JobState.SUCCEEDED

    def _failure(self) -> RankEnd | None:
        """The first rank that failed; the last one where ranks were restarted; else the agent."""
        failed = [end for end in self.ends if not end.ok]
        ranks = [end for end in failed if end.rank is not None]
        if self.plan.job.max_restarts and ranks:
            return ranks[-1]
        return next(iter(ranks or failed), None)

    def _message(self, state: JobState, failure: RankEnd | None) -> str:
        job = self.plan.job
        seconds = time.monotonic() - self.started_at
        if state is JobState.SUCCEEDED:
            return f"job {job.name} succeeded: {job.world_size} ranks in {seconds:.1f} s"
        if state is JobState.TIMED_OUT:
            return f"job {job.name} was stopped: timeout_s of {job.timeout_s:g} s passed; raise it in the job file"
        if state is JobState.CANCELLED:
            return f"job {job.name} was stopped on request after {seconds:.1f} s"
        if failure is None:
            return f"job {job.name} failed: its supervisor was killed; all its processes were ended"
        last = next((line for line in reversed(failure.last_lines) if line.strip()), None)
        said = f"; its last line: {last.strip()}" if last else "; it wrote nothing"
        return f"job {job.name} failed: {failure}{said}"


def _say(supervisor: subprocess.Popen[bytes], text: str) -> None:
    """One line to a supervisor; one that has ended hears nothing, and what it said before is still to be read."""
    assert supervisor.stdin is not None
    data = text.encode() + b"\n"
    with contextlib.suppress(BrokenPipeError):
        while data:
            data = data[os.write(supervisor.stdin.fileno(), data) :]


def sweep(marker: str) -> list[int]:
    """Kill every process whose environment carries this run's marker; the way out when the supervisor is gone.

    Returns:
        The processes that were killed.
    """
    killed: list[int] = []
    needle = f"{MARKER}={marker}".encode()
    for _ in range(20):
        found = [pid for pid in _processes_with(needle) if pid != os.getpid()]
        for pid in found:
            try:
                os.kill(pid, signal.SIGKILL)
                killed.append(pid)
            except ProcessLookupError:
                continue
        if not found:
            break
        time.sleep(0.05)
    return killed


def _processes_with(needle: bytes) -> Iterator[int]:
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            try:
                words = Path(entry.path, "environ").read_bytes().split(b"\0")
            except OSError:
                continue
            if needle in words:
                yield int(entry.name)
