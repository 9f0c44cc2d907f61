"""Start a command in a process group that dies with us, with a channel of its own to us if it is to have one."""

from __future__ import annotations

import contextlib
import io
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import IO

CHANNEL_VARIABLE = "PARITYGATE_CHANNEL_FD"
"""Tells a command which of its file descriptors is its channel to us."""

_SUPERVISOR = Path(__file__).with_name("supervise.py")


class Started:
    """A command that was started.

    Attributes:
        process: The supervisor of the command, which ends as the command does.
        channel_fd: What the command writes to its channel is read here; None without a channel.
    """

    def __init__(
        self, process: subprocess.Popen[bytes], channel_fd: int | None, lifeline: io.FileIO, held: ExitStack
    ) -> None:
        self.process = process
        self.channel_fd = channel_fd
        self._lifeline = lifeline
        self._held = held

    def kill(self) -> None:
        """Kill the whole group; how the process ended can be asked afterwards."""
        self._lifeline.close()

    def close(self) -> None:
        """Kill what still runs, wait for its end, and close every file descriptor."""
        self._held.close()

    def __enter__(self) -> Started:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def start_supervised(
    command: Sequence[str | Path],
    *,
    environment: Mapping[str, str] | None = None,
    directory: Path | None = None,
    memory_bytes: int | None = None,
    keep_open: Sequence[int] = (),
    stdin: int | None = None,
    output: int | IO[bytes] = subprocess.PIPE,
    with_channel: bool = False,
) -> Started:
    """Start a command in a process group that dies with us, or when what is given back is closed.

    Args:
        command: Program and arguments; no shell.
        environment: The environment variables; None hands on ours.
        directory: Working directory; None is ours.
        memory_bytes: Limit of the private memory of each process of the group; None is no limit.
        keep_open: File descriptors that the supervisor holds until the group is dead.
        stdin: What the command reads as its standard input, as `Popen` takes it; None gives it nothing to read.
        output: Where its stdout and stderr go, as `Popen` takes it.
        with_channel: Whether `CHANNEL_VARIABLE` names a file descriptor that it can write to.

    Raises:
        OSError: If there are no processes or file descriptors left; nothing stays open.
    """
    variables = dict(os.environ if environment is None else environment)
    with ExitStack() as held:
        lifeline = _Pipe(held)
        channel = _Pipe(held) if with_channel else None
        handed = [] if channel is None else [channel.write_end.fileno()]
        variables[CHANNEL_VARIABLE] = str(handed[0]) if handed else ""
        plan = {
            "command": [str(part) for part in command],
            "lifeline_fd": lifeline.read_end.fileno(),
            "channel_fds": handed,
            "memory_bytes": memory_bytes,
        }
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", str(_SUPERVISOR), json.dumps(plan)],
            stdin=subprocess.DEVNULL if stdin is None else stdin,
            stdout=output,
            stderr=subprocess.STDOUT,
            pass_fds=(lifeline.read_end.fileno(), *handed, *keep_open),
            env=variables,
            cwd=directory,
            start_new_session=True,
        )
        held.callback(_close_streams, process)
        held.callback(process.wait)  # returns at once: closing the lifeline, below, killed what still ran
        held.callback(lifeline.write_end.close)
        lifeline.read_end.close()
        if channel is not None:
            channel.write_end.close()
        channel_fd = None if channel is None else channel.read_end.fileno()
        return Started(process, channel_fd, lifeline.write_end, held.pop_all())


class _Pipe:
    """Both ends of a pipe as files, closed at the latest with the stack that holds them."""

    def __init__(self, held: ExitStack) -> None:
        read_fd, write_fd = os.pipe()
        self.read_end = held.enter_context(io.FileIO(read_fd, "rb"))
        self.write_end = held.enter_context(io.FileIO(write_fd, "wb"))


def _close_streams(process: subprocess.Popen[bytes]) -> None:
    for stream in (process.stdin, process.stdout):
        if stream is not None:
            with contextlib.suppress(BrokenPipeError):  # closing flushes what the dead command did not read
                stream.close()
