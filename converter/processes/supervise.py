"""A small process between us and a command: nothing it starts outlives us.

Run as a script by `starting.py`, with the standard library only. It starts the command in a process group
of its own and waits for one of two things. If the command ends, the rest of its group is killed and this
process ends the same way (same exit code, or the same signal). If we end, or close the lifeline (a pipe whose
other end we hold) because we gave up, the whole group is killed. Both are watched: a process forked from us
may hold a copy of the pipe's end after our death. What left the group for a session of its own becomes a child
of this process when its parent dies, and is killed too.

A thread in the command itself could not do this: native code that hangs may hold the interpreter lock.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import select
import signal
import subprocess
import sys

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


def main() -> int:
    """Supervise the command that the JSON in the first argument describes (see `starting.py`)."""
    plan = json.loads(sys.argv[1])
    channel = tuple(plan["channel_fds"])
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)
    command = _start(plan["command"], channel, plan["memory_bytes"])
    for fd in channel:
        os.close(fd)
    waiting = select.poll()
    waiting.register(plan["lifeline_fd"], select.POLLIN | select.POLLHUP)
    waiting.register(os.pidfd_open(command.pid), select.POLLIN)
    waiting.register(os.pidfd_open(os.getppid()), select.POLLIN)
    waiting.poll()
    _kill_group(command.pid)
    returncode = command.wait()
    _kill_strays()
    return _end_alike(returncode)


def _start(command: list[str], channel: tuple[int, ...], memory_bytes: int | None) -> subprocess.Popen[bytes]:
    def limit() -> None:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        if memory_bytes is not None:
            _lower(resource.RLIMIT_DATA, memory_bytes)

    # preexec_fn is safe here: this process has one thread.
    return subprocess.Popen(command, pass_fds=channel, process_group=0, preexec_fn=limit)


def _lower(kind: int, value: int) -> None:
    _, hard = resource.getrlimit(kind)
    value = value if hard == resource.RLIM_INFINITY else min(value, hard)
    resource.setrlimit(kind, (value, value))


def _kill_group(group: int) -> None:
    # The command has not been reaped yet, so the number still means its group and no other.
    try:
        os.killpg(group, signal.SIGKILL)
    except ProcessLookupError:
        return


def _kill_strays() -> None:
    """Kill what was handed to us, and what its death hands to us in turn, until nothing is left."""
    while True:
        for child in _children():
            os.kill(child, signal.SIGKILL)  # not reaped yet, so the number still means it
        try:
            os.wait()
        except ChildProcessError:
            return


def _children() -> list[int]:
    """Our children, from the second field after the name in each process's `stat`."""
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdecimal():
            try:
                with open(f"/proc/{entry}/stat", encoding="utf-8", errors="replace") as stat:
                    parent = stat.read().rpartition(")")[2].split()[1]
            except OSError:  # it ended while we looked
                continue
            if int(parent) == os.getpid():
                found.append(int(entry))
    return found


def _end_alike(returncode: int) -> int:
    if returncode >= 0:
        return returncode
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if -returncode != signal.SIGKILL:
        signal.signal(-returncode, signal.SIG_DFL)
    os.kill(os.getpid(), -returncode)
    return 128 - returncode


if __name__ == "__main__":
    sys.exit(main())
