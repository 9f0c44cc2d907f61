"""A process that applies one rollout after another to a store and tells of each that is in force; for crash tests.

    python state_writer.py DIRECTORY MODEL COUNT [CUT]

With CUT it writes its next line only up to that many bytes and dies as `kill -9` would kill it.
"""

from __future__ import annotations

import os
import signal
import sys

from paritygate.mesh.config import parse_rollout
from paritygate.mesh.state import FileStateStore


def main(directory: str, model: str, count: int, cut: int | None) -> None:
    store = FileStateStore(directory)
    if cut is not None:
        _die_after(cut)
    for step in range(1, count + 1):
        text = (
            f"{{schema: paritygate.rollout/v1, model: {model}, stable: 1, "
            f"routes: [{{weights: {{1: {100 - step % 100}, 2: {step % 100}}}}}]}}"
        )
        generation = store.apply(parse_rollout(text), actor=f"writer {os.getpid()}")
        print(generation, step % 100, flush=True)


def _die_after(cut: int) -> None:
    """Make the next write to a file stop after `cut` bytes and kill the process."""
    whole = os.write

    def write(descriptor: int, data: bytes) -> int:
        whole(descriptor, data[:cut])
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError("still alive")

    os.write = write


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]) if len(sys.argv) > 4 else None)
