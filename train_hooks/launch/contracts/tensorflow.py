"""TensorFlow: every worker is told the whole cluster in TF_CONFIG (MultiWorkerMirroredStrategy)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import ClassVar

from paritygate.train_hooks.errors import Fault
from paritygate.train_hooks.launch.contracts.base import (
    Contract,
    Place,
    no_restarts,
    one_process_a_node,
    rank_command,
)
from paritygate.train_hooks.types import JobSpec


class TensorFlowContract(Contract):
    """One worker a node and no chief, so that worker 0 is the chief.

    Source: tensorflow/python/distribute/multi_worker_util.py (the chief, TF_CONFIG).
    """

    default_port: ClassVar[int] = 2222
    reserved: ClassVar[frozenset[str]] = frozenset({"TF_CONFIG"})

    def faults(self, job: JobSpec) -> Iterator[Fault]:
        """MultiWorkerMirroredStrategy takes all devices of a node in one process."""
        yield from one_process_a_node(job, "tensorflow (MultiWorkerMirroredStrategy)")
        yield from no_restarts(job, "tensorflow")

    def command(self, job: JobSpec, place: Place) -> tuple[str, ...]:
        """The script itself; TensorFlow has no agent of its own."""
        return rank_command(job, place)

    def environment(self, job: JobSpec, place: Place) -> dict[str, str]:
        """TF_CONFIG; left out for a single process, which TensorFlow takes as "not distributed"."""
        if job.nodes == 1:
            return {}
        workers = [place.endpoint(node) for node in range(job.nodes)]
        cluster = json.dumps({"worker": workers}, separators=(",", ":"))
        # Written by hand around the index: it may be a macro, which JSON would put in quotes.
        return {
            "TF_CONFIG": f'{{"cluster":{cluster},"task":{{"type":"worker","index":{place.index}}}}}',
        }
