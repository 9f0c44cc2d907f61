"""Stands before every rank: ties its life to its parent's, sends its lines and its end to the supervisor.

Runs under the interpreter of the training environment, as a file, with the standard library alone:

    python -I -S rank.py PROGRAM ARGUMENT...

Why a process of its own: whoever starts the ranks (torchrun, for one) reports neither which rank died first nor
how, and would mix their half lines. PARITYGATE_CHANNELS is `pid:control:log,log,...`: file descriptors of pipes in
the supervisor, reached through /proc so that they pass through any starter that closes descriptors.
"""

import contextlib
import ctypes
import json
import os
import resource
import signal
import sys

PR_SET_PDEATHSIG = 1
FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
EXIT_NOT_STARTED = 127


def die_with(parent: int) -> None:
    """Have the kernel kill this process when its parent ends; the parent may be gone already."""
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(EXIT_NOT_STARTED)


def own_rank() -> int:
    """The rank of the whole job: from the launcher where it starts each rank itself, else from torchrun."""
    return int(os.environ.get("PARITYGATE_RANK") or os.environ["RANK"])


def report(control: int, **facts: object) -> None:
    """One line to the supervisor; shorter than PIPE_BUF, so that lines of several ranks never mix."""
    os.write(control, json.dumps(facts).encode() + b"\n")


def run_program(log: int, control: int, rank: int, parent: int) -> None:
    """Become the rank's program; returns never."""
    os.setpgid(0, 0)  # so that a starter that signals its whole group does not signal twice
    die_with(parent)
    os.dup2(log, 1)
    os.dup2(log, 2)
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    try:
        os.execvp(sys.argv[1], sys.argv[1:])  # noqa: S606 - the command is the job's own
    except OSError as error:
        report(control, event="not_started", rank=rank, error=f"{sys.argv[1][:1000]}: {error.strerror}")
        os._exit(EXIT_NOT_STARTED)


def end_like(status: int) -> None:
    """End as the program ended: with its code, or by its signal."""
    if os.WIFEXITED(status):
        os._exit(os.WEXITSTATUS(status))
    number = os.WTERMSIG(status)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if number not in (signal.SIGKILL, signal.SIGSTOP):
        signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)


def lead_group(child: int) -> None:
    """Make the program the leader of its group here too: which of the two processes runs first is open."""
    with contextlib.suppress(OSError):  # it has done so itself and is past its exec, or has ended
        os.setpgid(child, child)


def forward(child: int) -> None:
    """Pass every signal on to the program and what it started."""

    def pass_on(number: int, frame: object) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child, number)

    for number in FORWARDED:
        signal.signal(number, pass_on)


def main() -> None:
    """Start the program, wait for it, report."""
    die_with(os.getppid())
    supervisor, control_fd, log_fds = os.environ["PARITYGATE_CHANNELS"].split(":")
    rank = own_rank()
    control = os.open(f"/proc/{supervisor}/fd/{control_fd}", os.O_WRONLY | os.O_CLOEXEC)
    log = os.open(f"/proc/{supervisor}/fd/{log_fds.split(',')[rank]}", os.O_WRONLY | os.O_CLOEXEC)
    own_pid = os.getpid()
    # Signals wait until they can be passed on: none may end this process between fork and handler.
    signal.pthread_sigmask(signal.SIG_BLOCK, FORWARDED)
    child = os.fork()
    if child == 0:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, FORWARDED)
        run_program(log, control, rank, own_pid)
    lead_group(child)
    forward(child)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, FORWARDED)
    report(control, event="started", rank=rank, pid=child)
    _, status = os.waitpid(child, 0)
    if os.WIFEXITED(status):
        report(control, event="exited", rank=rank, code=os.WEXITSTATUS(status))
    else:
        report(control, event="exited", rank=rank, signal=os.WTERMSIG(status))
    end_like(status)


if __name__ == "__main__":
    main()
