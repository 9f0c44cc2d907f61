"""Which rollout is in force: an append-only log with generations, and the workers that follow it.

    <directory>/log.jsonl            one transition a line, never changed once written
    <directory>/lock                 held by the one process that appends
    <directory>/workers/<name>.json  what each gateway worker has acknowledged, and until when it counts as alive

A line is `{"checksum": ..., "record": ...}`; a record holds the whole state of its model after the transition, so
the state of a model is its last record. A writer that dies leaves at most an unfinished last line: readers pass
over it, and the next writer cuts it off. Any other damage is an error that names the line, never a guess.

Readers need no lock. `apply` gives a generation; `wait_acknowledged` tells which live workers route by it.
"""

from __future__ import annotations

import abc
import enum
import fcntl
import hashlib
import json
import os
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any, TypeAlias

from paritygate.mesh.config import rollout_from_value, rollout_to_value
from paritygate.mesh.errors import (
    RolloutInvalid,
    StateBusy,
    StateCorrupt,
    StateError,
    StateUnwritable,
)
from paritygate.mesh.types import Rollout

LOG_FILE = "log.jsonl"
LOCK_FILE = "lock"
WORKERS_DIR = "workers"

LOCK_TIMEOUT_S = 10.0
"""How long a writer waits for another one; an append takes milliseconds."""

POLL_S = 0.02
"""How often a waiting call looks again."""

_FORGET_AFTER_S = 86_400.0
_WORKER_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


class Phase(enum.Enum):
    """Where the rollout of a model stands."""

    STEADY = "steady"
    """Every request goes to the stable version."""

    RAMPING = "ramping"
    """Some requests go to a candidate."""

    PROMOTED = "promoted"
    """The candidate became the stable version and answers every request; a roll-back returns to the one before."""

    ROLLED_BACK = "rolled_back"
    """Every request was taken back to the stable version, or to the one before it."""


@dataclass(frozen=True, slots=True)
class RolloutState:
    """What is in force for one model.

    Attributes:
        rollout: The rollout that gateways follow.
        generation: The number of the transition that made it so; grows over all models of a store.
        phase: Where it stands.
        previous: The stable version before the present one, or None where there was none or it was returned to.
    """

    rollout: Rollout
    generation: int
    phase: Phase
    previous: int | None


@dataclass(frozen=True, slots=True)
class Transition:
    """One line of the history.

    Attributes:
        action: "apply", "promote" or "rollback".
        actor: Who asked for it.
        at: When, in seconds since 1970.
        before: The state before, or None for a model's first rollout.
        after: The state after.
    """

    action: str
    actor: str
    at: float
    before: RolloutState | None
    after: RolloutState


@dataclass(frozen=True, slots=True)
class Change:
    """What a transition makes of a model's state; the store adds generation and time."""

    action: str
    rollout: Rollout
    phase: Phase
    previous: int | None


Decide: TypeAlias = "Callable[[RolloutState | None], Change | None]"
"""Looks at a model's state, under the lock, and says what it becomes; None leaves it as it is."""


@dataclass(frozen=True, slots=True)
class Acknowledgement:
    """Which workers follow a generation.

    Attributes:
        ok: Whether all live workers do; true when there are none.
        live: Workers whose lease has not run out, by name.
        missing: Those of them that have not acknowledged the generation.
    """

    ok: bool
    live: tuple[str, ...]
    missing: tuple[str, ...]


class StateStore(abc.ABC):
    """Where rollouts are kept: a directory here, the Kubernetes API elsewhere."""

    @abc.abstractmethod
    def update(self, model: str, decide: Decide, *, actor: str) -> RolloutState | None:
        """Change one model's state; no other writer comes between reading and writing."""

    @abc.abstractmethod
    def read(self, model: str) -> RolloutState | None:
        """What is in force for a model, or None where it has no rollout."""

    @abc.abstractmethod
    def models(self) -> tuple[str, ...]:
        """The models that have a rollout, in alphabetical order."""

    @abc.abstractmethod
    def generation(self) -> int:
        """The number of the last transition of any model; 0 for an empty store."""

    @abc.abstractmethod
    def history(self, model: str) -> tuple[Transition, ...]:
        """Every transition of a model, oldest first."""

    @abc.abstractmethod
    def acknowledge(self, worker: str, generation: int, lease_s: float) -> None:
        """Say that a worker routes by `generation`, and that it counts as alive for `lease_s` seconds more."""

    @abc.abstractmethod
    def withdraw(self, worker: str) -> None:
        """Take a worker off the list, at its orderly end."""

    @abc.abstractmethod
    def acknowledgement(self, generation: int) -> Acknowledgement:
        """Which live workers follow `generation`, at this moment."""

    def wait_acknowledged(self, generation: int, timeout_s: float) -> Acknowledgement:
        """Wait until all live workers follow `generation`, at most `timeout_s` seconds; says who does not."""
        deadline = time.monotonic() + timeout_s
        while True:
            answer = self.acknowledgement(generation)
            if answer.ok or time.monotonic() >= deadline:
                return answer
            time.sleep(POLL_S)

    def apply(self, rollout: Rollout, *, actor: str) -> int:
        """Put a rollout in force; the one that is in force already changes nothing.

        Returns:
            The generation under which it is in force.
        """
        state = self.update(rollout.model, lambda before: change_to(rollout, before), actor=actor)
        assert state is not None  # apply always leaves a state
        return state.generation


def change_to(rollout: Rollout, before: RolloutState | None) -> Change | None:
    """What applying a rollout makes of a state; None when it is in force already.

    The previous stable version is remembered when the stable one changes, so that a roll-back knows where to go.
    """
    if before is not None and before.rollout == rollout:
        return None
    phase = Phase.STEADY if rollout.all_on_stable else Phase.RAMPING
    previous = before.previous if before else None
    if before and before.rollout.stable != rollout.stable:
        previous = before.rollout.stable
    return Change("apply", rollout, phase, previous)


class FileStateStore(StateStore):
    """A state store in a directory on a local disk, shared by the processes of one machine."""

    def __init__(self, directory: Path | str, *, clock: Callable[[], float] = time.time) -> None:
        """Open a store; nothing is created before the first write.

        Args:
            directory: Where the files lie.
            clock: Seconds since 1970; leases and records use it, so all processes must share one.
        """
        self.directory = Path(directory)
        self._clock = clock
        self._log = _Log(self.directory / LOG_FILE)

    def update(self, model: str, decide: Decide, *, actor: str) -> RolloutState | None:
        """Change one model's state under the store's lock.

        Raises:
            StateBusy: If another process keeps the lock.
            StateUnwritable: If the file system refuses; says whether the change may have happened.
            StateCorrupt: If the log is damaged.
            MeshError: Whatever `decide` raises; nothing is written then.
        """
        with _locked(self.directory):
            entries = self._log.repair()
            before = _last_state(entries, model)
            change = decide(before)
            if change is None:
                return before
            if change.rollout.model != model:
                raise ValueError(f"the change is for model '{change.rollout.model}', not '{model}'")
            generation = len(entries) + 1
            after = RolloutState(change.rollout, generation, change.phase, change.previous)
            self._log.append(_encode(change.action, actor, self._clock(), after))
            return after

    def read(self, model: str) -> RolloutState | None:
        """What is in force for a model.

        Raises:
            StateCorrupt: If the log is damaged.
        """
        return _last_state(self._log.entries(), model)

    def models(self) -> tuple[str, ...]:
        """The models that have a rollout."""
        return tuple(sorted({entry.after.rollout.model for entry in self._log.entries()}))

    def generation(self) -> int:
        """The number of the last transition; cheap while nothing changes, so it may be polled."""
        return len(self._log.entries())

    def history(self, model: str) -> tuple[Transition, ...]:
        """Every transition of a model."""
        found: list[Transition] = []
        for entry in self._log.entries():
            if entry.after.rollout.model == model:
                before = found[-1].after if found else None
                found.append(Transition(entry.action, entry.actor, entry.at, before, entry.after))
        return tuple(found)

    def acknowledge(self, worker: str, generation: int, lease_s: float) -> None:
        """Write the worker's file; a reader sees the old one or the new one, never a part.

        Raises:
            ValueError: If the name cannot be a file's name.
            StateUnwritable: If the file system refuses.
        """
        path = self._worker_path(worker)
        text = json.dumps({"generation": generation, "expires_at": self._clock() + lease_s})
        partial = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}")
        with _translated(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            partial.write_text(text, encoding="utf-8")
            os.replace(partial, path)

    def withdraw(self, worker: str) -> None:
        """Remove the worker's file; one that is not there is fine."""
        with _translated(self._worker_path(worker)):
            self._worker_path(worker).unlink(missing_ok=True)

    def acknowledgement(self, generation: int) -> Acknowledgement:
        """Which live workers follow `generation`, at this moment."""
        workers = self._live_workers()
        missing = tuple(name for name, followed in workers.items() if followed < generation)
        return Acknowledgement(not missing, tuple(workers), missing)

    def _worker_path(self, worker: str) -> Path:
        if not _WORKER_NAME.fullmatch(worker):
            raise ValueError(f"worker must be 1 to 128 letters, digits, '.', '_' or '-', got {worker!r}")
        return self.directory / WORKERS_DIR / f"{worker}.json"

    def _live_workers(self) -> dict[str, int]:
        now = self._clock()
        found: dict[str, int] = {}
        for path in sorted((self.directory / WORKERS_DIR).glob("[!.]*.json")):
            worker = _read_worker(path)
            if worker is None:
                continue
            generation, expires_at = worker
            if expires_at > now:
                found[path.stem] = generation
            elif expires_at < now - _FORGET_AFTER_S:
                path.unlink(missing_ok=True)
        return found


def _read_worker(path: Path) -> tuple[int, float] | None:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
        return int(value["generation"]), float(value["expires_at"])
    except FileNotFoundError:  # withdrawn since the directory was listed
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise StateError(f"{path} is not a worker's acknowledgement ({error}); remove it") from error


# --- the log ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Entry:
    action: str
    actor: str
    at: float
    after: RolloutState


class _Log:
    """The log file: read when it changed, appended to and repaired by whoever holds the lock."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._seen: tuple[int, int, int] | None = None
        self._entries: tuple[_Entry, ...] = ()
        self._guard = threading.Lock()

    def entries(self) -> tuple[_Entry, ...]:
        """All transitions, read again only when the file changed."""
        with self._guard:
            stamp = self._stamp()
            if stamp is None:
                self._seen, self._entries = None, ()
            elif stamp != self._seen:
                self._entries, _ = _decode_log(self._read(), self.path)
                self._seen = stamp
            return self._entries

    def repair(self) -> tuple[_Entry, ...]:
        """All transitions, after an unfinished last line was cut off. Needs the lock."""
        if self._stamp() is None:
            return ()
        data = self._read()
        entries, good_bytes = _decode_log(data, self.path)
        if good_bytes < len(data):
            with _translated(self.path), open(self.path, "r+b") as file:
                file.truncate(good_bytes)
                os.fsync(file.fileno())
        return entries

    def append(self, line: bytes) -> None:
        """Add one line and put it on the disk. Needs the lock, and a log without an unfinished line.

        Raises:
            StateUnwritable: If the file system refuses.
        """
        is_new = self._stamp() is None
        with _translated(self.path), open(self.path, "ab", buffering=0) as file:
            end = file.tell()
            self._write_whole(file.fileno(), line, end)
            try:
                os.fsync(file.fileno())
            except OSError as error:
                raise StateUnwritable(
                    f"{self.path}: the change is in force but may not survive a power loss ({error.strerror})"
                ) from error
        if is_new:
            _sync_directory(self.path.parent)

    @staticmethod
    def _write_whole(descriptor: int, line: bytes, end: int) -> None:
        try:
            written = os.write(descriptor, line)
            while written < len(line):  # a disk that is full takes a part first and refuses the rest
                written += os.write(descriptor, line[written:])
        except OSError:
            os.ftruncate(descriptor, end)  # without its line end nobody took it for a record
            raise

    def _read(self) -> bytes:
        try:
            return self.path.read_bytes()
        except OSError as error:
            raise StateError(f"{self.path} cannot be read: {error.strerror}") from error

    def _stamp(self) -> tuple[int, int, int] | None:
        try:
            stat = self.path.stat()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise StateError(f"{self.path} cannot be read: {error.strerror}") from error
        return stat.st_ino, stat.st_size, stat.st_mtime_ns


def _decode_log(data: bytes, path: Path) -> tuple[tuple[_Entry, ...], int]:
    """All whole entries and the number of bytes they take; an unfinished last line is left out."""
    entries: list[_Entry] = []
    good_bytes = 0
    for number, line in enumerate(data.splitlines(keepends=True), start=1):
        if _is_torn(line) and good_bytes + len(line) == len(data):
            break
        entries.append(_decode(line, path, number))
        good_bytes += len(line)
    return tuple(entries), good_bytes


def _is_torn(line: bytes) -> bool:
    """Whether a dying writer can have left this: no line end, or blocks that never reached the disk."""
    return not line.endswith(b"\n") or b"\0" in line


def _decode(line: bytes, path: Path, number: int) -> _Entry:
    try:
        outer = json.loads(line, parse_float=Decimal)
        record = outer["record"]
        intact = outer["checksum"] == _checksum(record) and record["generation"] == number
        entry = _entry_from(record) if intact else None
    except (ValueError, KeyError, TypeError, RolloutInvalid) as error:
        raise _corrupt(path, number, str(error)) from error
    if entry is None:
        raise _corrupt(path, number, "its checksum or its number is wrong")
    return entry


def _corrupt(path: Path, number: int, reason: str) -> StateCorrupt:
    advice = "restore the file from a copy, or remove it to start over without rollouts"
    return StateCorrupt(f"line {number} of {path} is damaged ({reason}); {advice}", line=number)


def _entry_from(record: Mapping[str, Any]) -> _Entry:
    rollout = rollout_from_value(record["rollout"])
    previous = record["previous"]
    state = RolloutState(
        rollout,
        int(record["generation"]),
        Phase(record["phase"]),
        None if previous is None else int(previous),
    )
    return _Entry(str(record["action"]), str(record["actor"]), float(record["at"]), state)


def _encode(action: str, actor: str, at: float, state: RolloutState) -> bytes:
    record = {
        "generation": state.generation,
        "action": action,
        "actor": actor,
        "at": round(at, 3),
        "phase": state.phase.value,
        "previous": state.previous,
        "rollout": rollout_to_value(state.rollout),
    }
    plain = json.loads(json.dumps(record), parse_float=Decimal)
    return f'{{"checksum": "{_checksum(plain)}", "record": {json.dumps(record)}}}\n'.encode("ascii")


def _checksum(record: Any) -> str:
    """Over the values, with numbers as they are written, in the order of the keys."""
    text = json.dumps(record, default=str, separators=(",", ":"))
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:32]


def _last_state(entries: Sequence[_Entry], model: str) -> RolloutState | None:
    found = (entry.after for entry in reversed(entries) if entry.after.rollout.model == model)
    return next(found, None)


# --- files --------------------------------------------------------------------------------------------


@contextmanager
def _locked(directory: Path) -> Iterator[None]:
    """Hold the store's lock; the kernel gives it back when a process dies."""
    path = directory / LOCK_FILE
    with _translated(path):
        directory.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        _take_lock(descriptor, path)
        yield
    finally:
        os.close(descriptor)


def _take_lock(descriptor: int, path: Path) -> None:
    deadline = time.monotonic() + LOCK_TIMEOUT_S
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= deadline:
                raise StateBusy(
                    f"{path} has been held by another process for {LOCK_TIMEOUT_S:g} s; try again when it is done"
                ) from None
            time.sleep(POLL_S / 4)
        else:
            return


@contextmanager
def _translated(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StateUnwritable(
            f"{path} cannot be written: {error.strerror}; nothing was changed. Give this user the right to write "
            "there and room on the disk"
        ) from error


def _sync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


__all__ = [
    "Acknowledgement",
    "Change",
    "FileStateStore",
    "Phase",
    "RolloutState",
    "StateStore",
    "Transition",
    "change_to",
]
