"""Ports for servers that must be told theirs before they start.

A port that the kernel hands out is taken again by the next outgoing connection of any other test. So these
lie below the range that the kernel chooses from, and each is held by a lock file until this process ends.
"""

from __future__ import annotations

import fcntl
import random
import socket
import tempfile
from pathlib import Path
from typing import IO

_FIRST, _LAST = 10_000, 20_000  # launched jobs choose from 20,000 up, Linux from 32,768
_TRIES = 1_000
_held: list[IO[str]] = []


def reserve_ports(count: int) -> list[int]:
    """Ports of 127.0.0.1 that nothing listens on and that no other test is given.

    Raises:
        RuntimeError: If too few are found in 1,000 tries.
    """
    ports: list[int] = []
    for _ in range(_TRIES):
        if len(ports) == count:
            return ports
        port = random.randrange(_FIRST, _LAST)
        if _hold(port):
            ports.append(port)
    raise RuntimeError(f"{len(ports)} of {count} free ports were found between {_FIRST} and {_LAST}")


def _hold(port: int) -> bool:
    folder = Path(tempfile.gettempdir()) / "paritygate-test-ports"
    folder.mkdir(exist_ok=True)
    lock = (folder / str(port)).open("w", encoding="ascii")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        socket.create_server(("127.0.0.1", port)).close()
    except OSError:
        lock.close()
        return False
    _held.append(lock)
    return True
