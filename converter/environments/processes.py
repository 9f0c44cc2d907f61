"""Run a command so that it cannot outlive us, hang past its time, or fill our memory with its output."""

from __future__ import annotations

import io
import json
import os
import select
import selectors
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

CHANNEL_VARIABLE = "PARITYGATE_CHANNEL_FD"
"""Tells a command which of its file descriptors is its channel to us."""

_SUPERVISOR = Path(__file__).with_name("supervise.py")
_TAIL_LINES = 40
_CHUNK_BYTES = 1 << 16
_LONGEST_LINE_BYTES = 1 << 20
_TICK_S = 0.5

OnLine = Callable[[bytes], None]


@dataclass(frozen=True)
class Ended:
    """How a command ended.

    Attributes:
        returncode: Its exit code; a negative number is the signal that killed it.
        timed_out: Whether we killed it because its time was up.
        tail: The last lines of what it wrote to stdout and stderr.
        seconds: How long it ran.
    """

    returncode: int
    timed_out: bool
    tail: str
    seconds: float

    @property
    def ok(self) -> bool:
        """Whether it ended by itself with exit code 0."""
        return self.returncode == 0 and not self.timed_out

    @property
    def last_line(self) -> str:
        """The last line that says something, or an empty string."""
        lines = [line.strip() for line in self.tail.splitlines() if line.strip()]
        return lines[-1] if lines else ""

    def describe(self) -> str:
        """How it ended, in words that follow the name of the command."""
        if self.timed_out:
            return f"was stopped because it took longer than {self.seconds:.0f} s"
        if self.returncode == -signal.SIGKILL:
            return "was killed by SIGKILL, as the system does when memory runs out"
        if self.returncode < 0:
            return f"was killed by {_signal_name(-self.returncode)}"
        return f"ended with exit code {self.returncode}"


def run_supervised(
    command: Sequence[str | Path],
    *,
    timeout_s: float,
    environment: Mapping[str, str] | None = None,
    directory: Path | None = None,
    memory_bytes: int | None = None,
    keep_open: Sequence[int] = (),
    stdin: int | None = None,
    on_output: OnLine | None = None,
    on_channel: OnLine | None = None,
    on_tick: Callable[[], None] | None = None,
) -> Ended:
    """Run a command to its end, in a process group that dies with us.

    Args:
        command: Program and arguments; no shell.
        timeout_s: After so many seconds the whole group is killed.
        environment: The environment variables; None hands on ours.
        directory: Working directory; None is ours.
        memory_bytes: Limit of the private memory of each process of the group; None is no limit.
        keep_open: File descriptors that the supervisor holds until the group is dead: a lock given here
            is not free before that, even if we are killed.
        stdin: A file descriptor that the command reads as its standard input; None gives it nothing to read.
        on_output: Called with each line of the command's stdout and stderr.
        on_channel: Called with each line that the command writes to the file descriptor that
            `CHANNEL_VARIABLE` names; without it there is no such channel. Nothing that libraries print
            can get in there.
        on_tick: Called about twice a second while the command runs.
    """
    variables = dict(os.environ if environment is None else environment)
    with ExitStack() as held:
        lifeline = _Pipe(held)
        channel = _Pipe(held) if on_channel is not None else None
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
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            pass_fds=(lifeline.read_end.fileno(), *handed, *keep_open),
            env=variables,
            cwd=directory,
            start_new_session=True,
        )
        assert process.stdout is not None
        held.callback(process.stdout.close)
        held.callback(process.wait)  # returns at once: closing the lifeline, below, killed what still ran
        held.callback(lifeline.write_end.close)
        lifeline.read_end.close()
        streams = [_Lines(process.stdout.fileno(), on_output, keep=_TAIL_LINES)]
        if channel is not None:
            channel.write_end.close()
            streams.append(_Lines(channel.read_end.fileno(), on_channel, keep=0))
        return _watch(process, streams, timeout_s, lifeline.write_end.close, on_tick)


class _Pipe:
    """Both ends of a pipe as files, closed at the latest with the stack that holds them."""

    def __init__(self, held: ExitStack) -> None:
        read_fd, write_fd = os.pipe()
        self.read_end = held.enter_context(io.FileIO(read_fd, "rb"))
        self.write_end = held.enter_context(io.FileIO(write_fd, "wb"))


class _Lines:
    """Cuts what comes out of a file descriptor into lines, hands them on, and keeps the last ones."""

    def __init__(self, fd: int, on_line: OnLine | None, *, keep: int) -> None:
        self.fd = fd
        self.kept: deque[bytes] = deque(maxlen=keep)
        self._on_line = on_line
        self._rest = b""
        os.set_blocking(fd, False)

    def read(self) -> bool:
        """Read what is there; False once nothing more can come."""
        try:
            chunk = os.read(self.fd, _CHUNK_BYTES)
        except BlockingIOError:
            return True
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        if not chunk or len(self._rest) > _LONGEST_LINE_BYTES:
            lines, self._rest = [*lines, *filter(None, [self._rest])], b""
        for line in lines:
            self.kept.append(line)
            if self._on_line is not None:
                self._on_line(line)
        return bool(chunk)

    def drain(self) -> None:
        """Read what is still in the pipe, without waiting for those who hold its other end."""
        poll = select.poll()
        poll.register(self.fd, select.POLLIN)
        while poll.poll(0) and self.read():
            continue

    @property
    def tail(self) -> str:
        return b"\n".join(self.kept).decode("utf-8", "replace").strip()


def _watch(
    process: subprocess.Popen[bytes],
    streams: Sequence[_Lines],
    timeout_s: float,
    give_up: Callable[[], None],
    on_tick: Callable[[], None] | None,
) -> Ended:
    started = time.monotonic()
    timed_out = False
    with (
        selectors.DefaultSelector() as selector,
        open(os.pidfd_open(process.pid), "rb", buffering=0) as ended,
    ):
        for stream in streams:
            selector.register(stream.fd, selectors.EVENT_READ, stream)
        selector.register(ended, selectors.EVENT_READ)
        while ended in selector.get_map() and not timed_out:
            left = max(0.0, started + timeout_s - time.monotonic())
            for key, _ in selector.select(left if on_tick is None else min(left, _TICK_S)):
                if key.data is None or not key.data.read():
                    selector.unregister(key.fileobj)
            if on_tick is not None:
                on_tick()
            timed_out = time.monotonic() - started >= timeout_s
    if timed_out:
        give_up()
    returncode = process.wait()
    for stream in streams:
        stream.drain()
    return Ended(returncode, timed_out, streams[0].tail, time.monotonic() - started)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
