"""Run a command so that it cannot outlive us, hang past its time, or fill our memory with its output."""

from __future__ import annotations

import os
import select
import selectors
import signal
import subprocess
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from paritygate.converter.processes.starting import start_supervised

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
    with start_supervised(
        command,
        environment=environment,
        directory=directory,
        memory_bytes=memory_bytes,
        keep_open=keep_open,
        stdin=stdin,
        with_channel=on_channel is not None,
    ) as started:
        assert started.process.stdout is not None
        streams = [_Lines(started.process.stdout.fileno(), on_output, keep=_TAIL_LINES)]
        if started.channel_fd is not None:
            streams.append(_Lines(started.channel_fd, on_channel, keep=0))
        return _watch(started.process, streams, timeout_s, started.kill, on_tick)


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
