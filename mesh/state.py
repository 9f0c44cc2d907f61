"""Which rollout is in force, and which workers follow it.

    <directory>/log.jsonl            one transition a line, never changed once written (log.py)
    <directory>/lock                 held by the one process that appends
    <directory>/workers/<name>.json  what each gateway worker has acknowledged, and until when it counts as alive

Every transition has a generation, counted over all models of a store. Readers need no lock. `apply` gives a
generation; `wait_acknowledged` tells which live workers route by it.
"""

from __future__ import annotations

import abc
import json
import os
import re
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from paritygate.mesh.errors import StateError
from paritygate.mesh.files import locked, translated
from paritygate.mesh.log import Entry, TransitionLog, encode
from paritygate.mesh.transitions import (
    Acknowledgement,
    Change,
    Decide,
    Phase,
    RolloutState,
    Transition,
    change_to,
)
from paritygate.mesh.types import Rollout

LOG_FILE = "log.jsonl"
WORKERS_DIR = "workers"

POLL_S = 0.02
"""How often a waiting call looks again."""

_FORGET_AFTER_S = 86_400.0
_WORKER_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


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
        self._log = TransitionLog(self.directory / LOG_FILE)

    def update(self, model: str, decide: Decide, *, actor: str) -> RolloutState | None:
        """Change one model's state under the store's lock.

        Raises:
            StateBusy: If another process keeps the lock.
            StateUnwritable: If the file system refuses; says whether the change may have happened.
            StateCorrupt: If the log is damaged.
            MeshError: Whatever `decide` raises; nothing is written then.
        """
        with locked(self.directory):
            entries = self._log.repair()
            before = _last_state(entries, model)
            change = decide(before)
            if change is None:
                return before
            if change.rollout.model != model:
                raise ValueError(f"the change is for model '{change.rollout.model}', not '{model}'")
            generation = len(entries) + 1
            after = RolloutState(change.rollout, generation, change.phase, change.previous)
            self._log.append(encode(change.action, actor, self._clock(), after))
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
        with translated(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            partial.write_text(text, encoding="utf-8")
            os.replace(partial, path)

    def withdraw(self, worker: str) -> None:
        """Remove the worker's file; one that is not there is fine."""
        with translated(self._worker_path(worker)):
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


def _last_state(entries: Sequence[Entry], model: str) -> RolloutState | None:
    found = (entry.after for entry in reversed(entries) if entry.after.rollout.model == model)
    return next(found, None)


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
