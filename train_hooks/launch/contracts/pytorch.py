"""PyTorch: torchrun starts the ranks of a node and tells them where rank 0 is."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from paritygate.train_hooks.errors import Fault
from paritygate.train_hooks.launch.contracts.base import Contract, Place, rank_command, script_words
from paritygate.train_hooks.types import JobSpec, RankPlan


class TorchrunContract(Contract):
    """`torchrun`, with a fixed node rank where there are several nodes, so that rank 0 is on the first.

    Source: torch/distributed/run.py (flags, and every flag as PET_<FLAG>).
    """

    default_port: ClassVar[int] = 29500
    stops_itself: ClassVar[bool] = True
    reserved: ClassVar[frozenset[str]] = frozenset(
        {
            "RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE",
            "ROLE_RANK", "ROLE_WORLD_SIZE", "ROLE_NAME", "MASTER_ADDR", "MASTER_PORT",
            "TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_MAX_RESTARTS", "TORCHELASTIC_RUN_ID",
            "TORCHELASTIC_USE_AGENT_STORE", "TORCHELASTIC_ERROR_FILE", "PET_NNODES", "PET_NODE_RANK",
            "PET_NPROC_PER_NODE", "PET_MASTER_ADDR", "PET_MASTER_PORT", "PET_RDZV_BACKEND", "PET_RDZV_ENDPOINT",
            "PET_RDZV_ID", "PET_RDZV_CONF", "PET_STANDALONE", "PET_MAX_RESTARTS", "PET_NO_PYTHON", "PET_MODULE",
            "PET_RUN_PATH", "PET_START_METHOD", "PET_LOCAL_ADDR", "PET_LOG_DIR", "PET_REDIRECTS", "PET_TEE",
        }
    )  # fmt: skip

    def faults(self, job: JobSpec) -> Iterator[Fault]:
        """Restarts over several nodes would need ranks that move."""
        if job.max_restarts and job.nodes > 1:
            yield Fault(
                "$.max_restarts",
                f"restarts over {job.nodes} nodes move rank 0 to another node, got {job.max_restarts}; "
                "expected 0 where nodes is more than 1",
            )

    def command(self, job: JobSpec, place: Place) -> tuple[str, ...]:
        """The interpreter's own torchrun, so that no other one on PATH is taken."""
        return (*self.agent(place), *self.flags(job, place), *self.program(job, place))

    def flags(self, job: JobSpec, place: Place) -> tuple[str, ...]:
        """How many processes there are and where they meet."""
        counts = (f"--nnodes={job.nodes}", f"--nproc-per-node={job.processes_per_node}")
        restarts = (f"--max-restarts={job.max_restarts}",)
        if job.nodes == 1:
            return ("--standalone", *counts, *restarts)
        meet = ("--rdzv-backend=static", f"--rdzv-endpoint={place.endpoint(0)}")
        return (*counts, f"--node-rank={place.index}", *meet, f"--rdzv-id={job.name}", *restarts)

    def agent(self, place: Place) -> tuple[str, ...]:
        """How torchrun is called: by name where the interpreter is, in a container."""
        return ("torchrun",) if place.python == "python" else (place.python, "-m", "torch.distributed.run")

    def program(self, job: JobSpec, place: Place) -> tuple[str, ...]:
        """What torchrun starts as each rank."""
        if job.command or place.wrap:
            return ("--no-python", *rank_command(job, place))
        return (*script_words(job), *job.args)

    def environment(self, job: JobSpec, place: Place) -> dict[str, str]:
        """Threads a rank: torchrun's own choice of 1 is said aloud, or the node's CPUs are shared out."""
        if job.processes_per_node == 1 and job.resources.cpus is None:
            return {}
        return {"OMP_NUM_THREADS": str(max(1, (job.resources.cpus or 1) // job.processes_per_node))}

    def ranks(self, job: JobSpec, place: Place) -> tuple[RankPlan, ...]:
        """The variables that torchrun gives each rank of the node."""
        node = int(place.index)
        return tuple(self._rank(job, place, node, local) for local in range(job.processes_per_node))

    def _rank(self, job: JobSpec, place: Place, node: int, local: int) -> RankPlan:
        rank = node * job.processes_per_node + local
        env = {
            "RANK": str(rank),
            "LOCAL_RANK": str(local),
            "WORLD_SIZE": str(job.world_size),
            "LOCAL_WORLD_SIZE": str(job.processes_per_node),
            "GROUP_RANK": str(node),
            "MASTER_ADDR": place.hosts[0],
            "MASTER_PORT": place.ports[0],
        }
        return RankPlan(rank, local, env)
