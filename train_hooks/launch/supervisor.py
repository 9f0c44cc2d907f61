"""The process that owns every process of a local job, so that none outlives it.

Needs the standard library alone; `schedulers/local.py` starts it as `python -I -S supervisor.py`:

- stdin: one line of JSON, the order (below), then a lifeline. `stop` asks for a polite end, `kill` for a quick
  one; its end means that the launcher has died, however it died.
- stdout: one JSON object a line, the events.

It is a *subreaper*: a process whose parent dies is handed to it and not to init, so that everything a rank
ever started, through however many forks and sessions, is found below it and killed at the end. Should the
supervisor itself be killed, the kernel kills its children (PR_SET_PDEATHSIG) and theirs, and the launcher looks
for the rest by the job's marker.

Order: {"roots": [{"source", "rank", "command", "env", "cwd", "stops_itself"}], "world_size", "timeout_s",
"stop_grace_s", "restarts", "launcher_pid"}; `roots` are the commands to start, `rank` is null for an agent
that starts the ranks itself, `stops_itself` says that it ends its other ranks when one fails.
"""

from __future__ import annotations

import array
import collections
import ctypes
import fcntl
import json
import os
import select
import selectors
import signal
import subprocess
import sys
import termios
import time
from typing import Any

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
LAST_LINES = 20
LONGEST_LINE_BYTES = 64 * 1024
"""A longer line is cut into several: memory stays bounded whatever a rank writes."""
MOST_PENDING_BYTES = 4 * 1024 * 1024
"""Events that the launcher has not read yet; beyond this, ranks wait in their own writes."""
TICK_S = 0.1
_LIBC = ctypes.CDLL(None, use_errno=True)


def die_with_parent() -> None:
    """Have the kernel kill the calling process when its parent ends."""
    _LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def adopt_orphans() -> None:
    """Become the parent of every descendant whose own parent ends.

    Raises:
        OSError: If the kernel refuses; without this, processes could be left behind.
    """
    if _LIBC.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "the kernel does not let this process adopt orphans")


def descendants(root: int) -> list[int]:
    """Every process below `root`, nearest first, as /proc shows them now."""
    children: dict[int, list[int]] = collections.defaultdict(list)
    for name in os.listdir("/proc"):
        if name.isdigit():
            parent = parent_of(int(name))
            if parent is not None:
                children[parent].append(int(name))
    found: list[int] = []
    queue = collections.deque(children[root])
    while queue:
        pid = queue.popleft()
        found.append(pid)
        queue.extend(children[pid])
    return found


def parent_of(pid: int) -> int | None:
    """Parent of a process, or None if it has ended meanwhile.

    Source: proc(5), /proc/pid/stat; the name in brackets may hold brackets and blanks.
    """
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return int(file.read().rpartition(b")")[2].split()[1])
    except (OSError, IndexError, ValueError):
        return None


def signal_name(number: int) -> str:
    """`SIGKILL` for 9; real-time signals have no names of their own."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _states(line: bytes) -> list[bytes]:
    """The line, or each state of a line that a progress bar has rewritten with carriage returns."""
    return [state for state in line.split(b"\r") if state] or [b""]


class LineSource:
    """A pipe that ranks write to, and the whole lines that came out of it."""

    def __init__(self, source: str, rank: int | None) -> None:
        self.source = source
        self.rank = rank
        self.reader, self.writer = os.pipe()
        os.set_blocking(self.reader, False)
        self.last: collections.deque[str] = collections.deque(maxlen=LAST_LINES)
        self._partial = b""

    def read(self) -> list[str]:
        """The lines that have become whole since; at most one read's worth."""
        try:
            data = os.read(self.reader, LONGEST_LINE_BYTES)
        except BlockingIOError:
            return []
        return self._split(data)

    def drain(self) -> list[str]:
        """All lines that are in the pipe now, the last one whole or not.

        No more than that: a process that the rank has left may go on writing, as fast as it is read.
        """
        lines: list[str] = []
        left = self._readable_bytes()
        while left > 0:
            data = os.read(self.reader, min(left, LONGEST_LINE_BYTES))
            left -= len(data)
            lines += self._split(data)
        return lines + self._flush()

    def _readable_bytes(self) -> int:
        count = array.array("i", [0])
        fcntl.ioctl(self.reader, termios.FIONREAD, count)
        return count[0]

    def _split(self, data: bytes) -> list[str]:
        *whole, rest = (self._partial + data).split(b"\n")
        states = [state for line in whole for state in _states(line)]
        if b"\r" in rest[:-1]:
            done, _, rest = rest.rpartition(b"\r")
            states += _states(done)
        self._partial = rest
        lines = [self._keep(state) for state in states]
        if len(rest) >= LONGEST_LINE_BYTES:
            lines += self._flush()
        return lines

    def _flush(self) -> list[str]:
        partial, self._partial = self._partial, b""
        return [self._keep(partial)] if partial else []

    def _keep(self, line: bytes) -> str:
        text = line.decode("utf-8", "replace")
        self.last.append(text)
        return text


class Launcher:
    """The other end of stdin and stdout: orders come in, events go out, and it may die at any moment."""

    def __init__(self, pid: int) -> None:
        self.gone = False
        self.orders: list[str] = []
        self._pending = bytearray()
        self._input = b""
        os.set_blocking(0, False)
        os.set_blocking(1, False)
        self.pidfd = self._watch(pid)

    def _watch(self, pid: int) -> int | None:
        """A descriptor that becomes readable when the launcher ends.

        The end of stdin says so too, unless another child of the launcher has inherited its pipe.
        """
        if os.getppid() != pid:
            self.gone = True
            return None
        try:
            return os.pidfd_open(pid)
        except OSError:
            return None

    @property
    def is_slow(self) -> bool:
        """Whether it reads more slowly than the ranks write."""
        return len(self._pending) > MOST_PENDING_BYTES

    @property
    def has_pending(self) -> bool:
        """Whether events wait to be written."""
        return bool(self._pending)

    def tell(self, event: str, **facts: Any) -> None:
        """Queue one event."""
        self._pending += json.dumps({"event": event, **facts}).encode() + b"\n"

    def flush(self) -> None:
        """Write what can be written without waiting."""
        try:
            while self._pending and not self.gone:
                del self._pending[: os.write(1, self._pending[:65536])]
        except BlockingIOError:
            return
        except OSError:
            self.gone = True

    def look(self) -> None:
        """Find out whether it lives."""
        if self.pidfd is not None and select.select([self.pidfd], [], [], 0)[0]:
            self.gone = True

    def listen(self) -> None:
        """Read what it says; the end of the pipe means that it is gone."""
        try:
            data = os.read(0, 65536)
        except BlockingIOError:
            return
        if not data:
            self.gone = True
        *lines, self._input = (self._input + data).split(b"\n")
        self.orders += [line.decode("utf-8", "replace") for line in lines]


class Root:
    """One command of the order, running."""

    def __init__(self, spec: dict[str, Any], lines: LineSource, env: dict[str, str]) -> None:
        self.source: str = spec["source"]
        self.rank: int | None = spec["rank"]
        self.stops_itself: bool = spec["stops_itself"]
        self.code: int | None = None
        self.process = subprocess.Popen(
            spec["command"],
            env={**os.environ, **env, **spec["env"]},
            cwd=spec["cwd"],
            stdin=subprocess.DEVNULL,
            stdout=lines.writer,
            stderr=lines.writer,
            start_new_session=True,
            preexec_fn=die_with_parent,  # this process has one thread
        )

    @property
    def pid(self) -> int:
        """Its process id, which is also that of its session."""
        return self.process.pid

    def stop(self) -> None:
        """Ask it to end."""
        if self.code is None:
            os.kill(self.pid, signal.SIGTERM)


class Supervisor:
    """Starts the roots, passes on what they write, and leaves nothing behind."""

    def __init__(self, order: dict[str, Any], launcher: Launcher) -> None:
        self.order = order
        self.launcher = launcher
        self.deadline = time.monotonic() + order["timeout_s"] if order["timeout_s"] else None
        self.kill_at: float | None = None
        self.reason: str | None = None
        self.roots: list[Root] = []
        self.selector = selectors.DefaultSelector()
        self.ranks = [LineSource(f"rank {rank}", rank) for rank in range(order["world_size"])]
        self.agents = [self._lines_of(spec) for spec in order["roots"]]
        self.started: set[int] = set()
        self.ended: set[int] = set()
        self.control = LineSource("control", None)
        self.results = LineSource("results", None)

    def _lines_of(self, spec: dict[str, Any]) -> LineSource:
        """Where a root writes: the pipe of its rank if it is one, else one of its own."""
        return LineSource(spec["source"], None) if spec["rank"] is None else self.ranks[spec["rank"]]

    def run(self) -> None:
        """From the first start to the last kill."""
        try:
            self._start()
            while self._is_running():
                self._turn()
        finally:
            self._kill_all()
        self._read_all()
        self.launcher.tell("finished", reason=self.reason, codes=[root.code for root in self.roots])
        self._deliver()

    def _start(self) -> None:
        """Start every root, or none: a root that cannot be started ends the job."""
        for lines in {*self.ranks, *self.agents, self.control, self.results}:
            self.selector.register(lines.reader, selectors.EVENT_READ, lines)
        self.selector.register(0, selectors.EVENT_READ, None)
        if self.launcher.pidfd is not None:
            self.selector.register(self.launcher.pidfd, selectors.EVENT_READ, self.launcher)
        logs = ",".join(str(lines.writer) for lines in self.ranks)
        env = {
            "PARITYGATE_CHANNELS": f"{os.getpid()}:{self.control.writer}:{logs}",
            "PARITYGATE_RESULT_FILE": f"/proc/{os.getpid()}/fd/{self.results.writer}",
        }
        for spec, lines in zip(self.order["roots"], self.agents, strict=True):
            try:
                self.roots.append(Root(spec, lines, env))
            except OSError as error:
                what = error.filename or spec["command"][0]
                text = f"{what}: {error.strerror}"
                self.launcher.tell("not_started", source=spec["source"], rank=spec["rank"], error=text)
                self.reason = "failed"
                return

    def _is_running(self) -> bool:
        if self.launcher.gone or (self.kill_at is not None and time.monotonic() >= self.kill_at):
            return False
        if self.reason == "failed" and len(self.roots) < len(self.order["roots"]):
            return False
        return any(root.code is None for root in self.roots)

    def _turn(self) -> None:
        """Wait for something, at most a tick, and deal with it."""
        for key, _ in self.selector.select(TICK_S):
            self._deal_with(key)
        if self.launcher.is_slow:
            time.sleep(TICK_S / 10)  # the pipes of the ranks stay ready to be read
        self._take_orders()
        self._reap()
        if self.deadline is not None and time.monotonic() >= self.deadline:
            self._stop("timed_out")
        self.launcher.flush()

    def _deal_with(self, key: selectors.SelectorKey) -> None:
        if key.fd == 0:
            self.launcher.listen()
        elif key.data is self.launcher:
            self.launcher.look()
        elif key.data is self.control:
            for line in self.control.read():
                self._hear(json.loads(line))
        elif key.data is self.results:
            self._pass_results(self.results.read())
        elif not self.launcher.is_slow:
            self._pass_lines(key.data, key.data.read())

    def _pass_lines(self, lines: LineSource, texts: list[str]) -> None:
        for text in texts:
            self.launcher.tell("line", source=lines.source, rank=lines.rank, text=text)

    def _pass_results(self, texts: list[str]) -> None:
        for text in texts:
            self.launcher.tell("result", text=text)

    def _hear(self, said: dict[str, Any]) -> None:
        """What a rank's own starter reports about it."""
        rank = said["rank"]
        source = f"rank {rank}"
        if said["event"] == "started":
            self.started.add(rank)
            self.ended.discard(rank)  # it may be started again
            self.launcher.tell("started", source=source, rank=rank, pid=said["pid"])
        elif said["event"] == "not_started":
            self.ended.add(rank)
            self.launcher.tell("not_started", source=source, rank=rank, error=said["error"])
            self._stop("failed")
        else:
            self._end(self.ranks[rank], said.get("code"), said.get("signal"))

    def _end(self, lines: LineSource, code: int | None, number: int | None) -> None:
        """Pass on how a rank or agent ended, once, after everything that it wrote."""
        self._pass_lines(lines, lines.drain())
        if lines.rank in self.ended:
            return
        if lines.rank is not None:
            self.ended.add(lines.rank)
        name = signal_name(number) if number else None
        self.launcher.tell(
            "exited", source=lines.source, rank=lines.rank, code=code, signal=name, last=list(lines.last)
        )
        if (code != 0) and not self.order["restarts"]:
            self._stop("failed")

    def _take_orders(self) -> None:
        for order in self.launcher.orders:
            if order == "stop":
                self._stop("cancelled")
            elif order == "kill":
                self._stop("cancelled")
                self.kill_at = time.monotonic()
        self.launcher.orders.clear()

    def _stop(self, reason: str) -> None:
        """Ask all roots to end, and set the time at which they are killed; the first reason stays."""
        if self.reason is not None:
            return
        self.reason = reason
        self.kill_at = time.monotonic() + self.order["stop_grace_s"]
        self.launcher.tell("stopping", reason=reason)
        for root in self.roots:
            if reason != "failed" or not root.stops_itself or len(self.roots) > 1:
                root.stop()

    def _reap(self) -> None:
        """Take the ends of roots, and of orphans that were handed to this process."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            for index, root in enumerate(self.roots):
                if root.pid == pid:
                    root.code = os.waitstatus_to_exitcode(status)
                    root.process.returncode = root.code
                    self._root_ended(root, self.agents[index])

    def _root_ended(self, root: Root, lines: LineSource) -> None:
        for line in self.control.drain():  # what its ranks reported comes before its own end
            self._hear(json.loads(line))
        code = root.code if root.code is not None and root.code >= 0 else None
        number = -root.code if root.code is not None and root.code < 0 else None
        self._end(lines, code, number)
        if root.code != 0:
            self._stop("failed")

    def _kill_all(self) -> None:
        """Kill every process below this one until there is none; new ones may appear while it looks."""
        until = time.monotonic() + 30.0
        while time.monotonic() < until:
            for pid in descendants(os.getpid()):
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    continue
            self._reap()
            try:
                if os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
                    time.sleep(0.01)
            except ChildProcessError:
                return
        self.launcher.tell("left_behind", pids=descendants(os.getpid()))

    def _read_all(self) -> None:
        """What is still in the pipes, now that nobody writes to them."""
        for line in self.control.drain():
            self._hear(json.loads(line))
        for lines in (*self.ranks, *self.agents):
            self._pass_lines(lines, lines.drain())
        for rank in sorted(self.started - self.ended):  # killed together with what would have reported it
            self._end(self.ranks[rank], None, signal.SIGKILL)
        self._pass_results(self.results.drain())

    def _deliver(self) -> None:
        """Give the launcher all events, as long as it is there to take them."""
        while self.launcher.has_pending and not self.launcher.gone:
            self.launcher.flush()
            time.sleep(TICK_S / 20)
            self.launcher.listen()
            self.launcher.look()


def read_order() -> dict[str, Any] | None:
    """The first line of stdin; None if the launcher died before it was whole."""
    data = b""
    while not data.endswith(b"\n"):
        byte = os.read(0, 1)
        if not byte:
            return None
        data += byte
    order: dict[str, Any] = json.loads(data)
    return order


def main() -> int:
    """Read the order, carry it out."""
    order = read_order()
    if order is None:
        return 1
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the launcher, which asks for a polite end
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    adopt_orphans()
    launcher = Launcher(order["launcher_pid"])
    Supervisor(order, launcher).run()
    return 0


if __name__ == "__main__":
    sys.exit(main())
