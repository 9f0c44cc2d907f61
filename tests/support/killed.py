"""Runs something in a child process that dies before its k-th file-system call, as `kill -9` might end it."""

from __future__ import annotations

import fcntl
import os
import warnings
from collections.abc import Callable, Iterator
from typing import Any

_CHANGING_CALLS: tuple[tuple[Any, str], ...] = (
    (os, "mkdir"),
    (os, "open"),
    (os, "write"),
    (os, "fsync"),
    (os, "rename"),
    (os, "replace"),
    (os, "unlink"),
    (os, "rmdir"),
    (os, "utime"),
    (os, "chmod"),
    (os, "chown"),
    (fcntl, "flock"),
)
_KILLED = 137


def run_in_child(action: Callable[[], object], *, kill_before: int | None = None) -> bool:
    """Run `action` in a fork and end it before its k-th changing call, counted from 1.

    Where that call is a write, half of the bytes are written first: the worst that a kill can leave.

    Returns:
        Whether the action ended by itself, which means that it makes fewer than `kill_before` calls.
    """
    return wait_for(start_in_child(action, kill_before=kill_before))


def start_in_child(action: Callable[[], object], *, kill_before: int | None = None) -> int:
    """The process id of a child that runs `action`, as in `run_in_child`."""
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore", DeprecationWarning
        )  # fork beside threads; the child only runs our code
        pid = os.fork()
    if pid == 0:
        _run_and_exit(action, kill_before)
    return pid


def wait_for(pid: int) -> bool:
    """Wait for a child; True if it ended by itself, False if it was killed where it should be.

    Raises:
        AssertionError: If it failed in another way.
    """
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    assert code in (0, _KILLED), f"the child ended with {code}"
    return code == 0


def _run_and_exit(action: Callable[[], object], kill_before: int | None) -> None:
    code = 1
    try:
        if kill_before is not None:
            _arm(kill_before)
        action()
        code = 0
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        os._exit(code)


def _arm(kill_before: int) -> None:
    countdown = iter(range(kill_before - 1, -1, -1))
    for module, name in _CHANGING_CALLS:
        setattr(module, name, _fatal(getattr(module, name), name, countdown))


def _fatal(call: Callable[..., Any], name: str, countdown: Iterator[int]) -> Callable[..., Any]:
    def counted(*args: Any, **kwargs: Any) -> Any:
        changes = name != "open" or args[1] & os.O_CREAT
        if changes and next(countdown) == 0:
            if name == "write":
                call(args[0], args[1][: len(args[1]) // 2])
            os._exit(_KILLED)
        return call(*args, **kwargs)

    return counted
