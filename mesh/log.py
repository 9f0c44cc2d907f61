"""An append-only log of transitions that survives dying writers.

A line is `{"checksum": ..., "record": ...}`; a record holds the whole state of its model after the transition, and
its number is the line's. A writer that dies leaves at most an unfinished last line: readers pass over it, and the
next writer cuts it off. Any other damage is an error that names the line, never a guess.
"""

from __future__ import annotations

import hashlib
import json
import os
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

from paritygate.mesh.config import rollout_from_value, rollout_to_value
from paritygate.mesh.errors import RolloutInvalid, StateCorrupt, StateError, StateUnwritable
from paritygate.mesh.files import sync_directory, translated
from paritygate.mesh.transitions import Phase, RolloutState


@dataclass(frozen=True, slots=True)
class Entry:
    """One line of the log, as `Transition` but without the state before."""

    action: str
    actor: str
    at: float
    after: RolloutState


class TransitionLog:
    """The log file: read when it changed, appended to and repaired by whoever holds the lock."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._seen: tuple[int, int, int] | None = None
        self._raw = b""  # the whole lines that were decoded, so that a longer log costs only its new lines
        self._entries: tuple[Entry, ...] = ()
        self._guard = threading.Lock()

    def entries(self) -> tuple[Entry, ...]:
        """All transitions, read again only when the file changed.

        Raises:
            StateCorrupt: If the log is damaged.
        """
        with self._guard:
            stamp = self._stamp()
            if stamp != self._seen:
                self._take_in(self._read())
                self._seen = stamp
            return self._entries

    def repair(self) -> tuple[Entry, ...]:
        """All transitions, after an unfinished last line was cut off. Needs the lock of the store.

        Raises:
            StateCorrupt: If the log is damaged otherwise.
            StateUnwritable: If the file system refuses.
        """
        with self._guard:
            data = self._read()
            self._take_in(data)
            if len(self._raw) < len(data):
                with translated(self.path), open(self.path, "r+b") as file:
                    file.truncate(len(self._raw))
                    os.fsync(file.fileno())
            return self._entries

    def append(self, line: bytes) -> None:
        """Add one line and put it on the disk. Needs the lock, and a log without an unfinished line.

        Raises:
            StateUnwritable: If the file system refuses; says whether the change is in force.
        """
        is_new = self._stamp() is None
        with translated(self.path), open(self.path, "ab", buffering=0) as file:
            self._write_whole(file.fileno(), line, file.tell())
            self._flush(file.fileno(), is_new)

    def _flush(self, descriptor: int, is_new: bool) -> None:
        try:
            os.fsync(descriptor)
            if is_new:
                sync_directory(self.path.parent)
        except OSError as error:
            message = f"the change is in force but may not survive a power loss ({error.strerror})"
            raise StateUnwritable(f"{self.path}: {message}") from error

    def _take_in(self, data: bytes) -> None:
        try:
            self._decode(data)
        except StateCorrupt:
            # A reader without the lock can meet a repair half-way: the end of a cut line and the start of its
            # successor. Damage is still there at the second look, from the first line on.
            self._raw, self._entries = b"", ()
            self._decode(self._read())

    def _decode(self, data: bytes) -> None:
        if not data.startswith(self._raw):
            self._raw, self._entries = b"", ()
        more, good_bytes = _decode_lines(data[len(self._raw) :], self.path, first=len(self._entries) + 1)
        self._raw, self._entries = data[: len(self._raw) + good_bytes], self._entries + more

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
        except FileNotFoundError:
            return b""
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


def _decode_lines(data: bytes, path: Path, first: int) -> tuple[tuple[Entry, ...], int]:
    """All whole entries and the number of bytes they take; an unfinished last line is left out."""
    entries: list[Entry] = []
    good_bytes = 0
    for number, line in enumerate(data.splitlines(keepends=True), start=first):
        if _is_torn(line) and good_bytes + len(line) == len(data):
            break
        entries.append(_decode(line, path, number))
        good_bytes += len(line)
    return tuple(entries), good_bytes


def _is_torn(line: bytes) -> bool:
    """Whether a dying writer can have left this: no line end, or blocks that never reached the disk."""
    return not line.endswith(b"\n") or b"\0" in line


def _decode(line: bytes, path: Path, number: int) -> Entry:
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


def _entry_from(record: Mapping[str, Any]) -> Entry:
    rollout = rollout_from_value(record["rollout"])
    previous = record["previous"]
    state = RolloutState(
        rollout,
        int(record["generation"]),
        Phase(record["phase"]),
        None if previous is None else int(previous),
    )
    return Entry(str(record["action"]), str(record["actor"]), float(record["at"]), state)


def encode(action: str, actor: str, at: float, state: RolloutState) -> bytes:
    """The line of a transition, with its line end."""
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
