"""A small process between us and a command: nothing it starts outlives us.

Run as a script by `processes.py`, with the standard library only. It starts the command in a process group
of its own and waits for one of two things. If the command ends, the rest of its group is killed and this
process ends the same way (same exit code, or the same signal). If we end, or close the lifeline (a pipe whose
other end we hold) because we gave up, the whole group is killed. Both are watched: a process forked from us
may hold a copy of the pipe's end after our death.

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


def main() -> int:
    """Supervise the command that the JSON in the first argument describes (see `processes.py`)."""
    plan = json.loads(sys.argv[1])
    channel = tuple(plan["channel_fds"])
    command = _start(plan["command"], channel, plan["memory_bytes"])
    for fd in channel:
        os.close(fd)
    waiting = select.poll()
    waiting.register(plan["lifeline_fd"], select.POLLIN | select.POLLHUP)
    waiting.register(os.pidfd_open(command.pid), select.POLLIN)
    waiting.register(os.pidfd_open(os.getppid()), select.POLLIN)
    waiting.poll()
    _kill_group(command.pid)
    return _end_alike(command.wait())


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
