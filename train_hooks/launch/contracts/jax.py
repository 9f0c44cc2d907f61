"""JAX: every process is told the coordinator, how many there are, and which one it is."""

from __future__ import annotations

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


class JaxContract(Contract):
    """The variables that Kubeflow sets; the script passes them to `jax.distributed.initialize`.

    Source: kubeflow/trainer, branch release-1.9, pkg/controller.v1/jax/envvar.go.
    """

    default_port: ClassVar[int] = 29500
    reserved: ClassVar[frozenset[str]] = frozenset(
        {"JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID"}
    )

    def faults(self, job: JobSpec) -> Iterator[Fault]:
        """A JAX process drives all devices of its node."""
        yield from one_process_a_node(job, "jax")
        yield from no_restarts(job, "jax")

    def command(self, job: JobSpec, place: Place) -> tuple[str, ...]:
        """The script itself; JAX has no agent of its own."""
        return rank_command(job, place)

    def environment(self, job: JobSpec, place: Place) -> dict[str, str]:
        """Coordinator, count and own number."""
        return {
            "JAX_COORDINATOR_ADDRESS": place.endpoint(0),
            "JAX_NUM_PROCESSES": str(job.nodes),
            "JAX_PROCESS_ID": place.index,
        }
