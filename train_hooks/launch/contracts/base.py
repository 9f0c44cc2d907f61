"""The interface of a launch contract: from a job and a place to a command and an environment."""

from __future__ import annotations

import abc
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from paritygate.train_hooks.errors import Fault
from paritygate.train_hooks.types import JobSpec, NodePlan, RankPlan


@dataclass(frozen=True)
class Place:
    """One node among all nodes, as the scheduler knows them.

    Attributes:
        hosts: Address of every node; the first one holds rank 0.
        ports: Port of every node, as text: a number, or a macro that is filled in at the start.
        index: Which of the nodes this is, as text: a number, or a macro.
        python: The interpreter's command.
        wrap: Words put before each rank's own command; empty for none.
    """

    hosts: tuple[str, ...]
    ports: tuple[str, ...]
    index: str
    python: str
    wrap: tuple[str, ...] = ()

    def endpoint(self, node: int) -> str:
        """`host:port` of a node; an IPv6 address stands in brackets.

        Source: RFC 3986, 3.2.2.
        """
        host = self.hosts[node]
        return f"[{host}]:{self.ports[node]}" if ":" in host else f"{host}:{self.ports[node]}"


class Contract(abc.ABC):
    """What one framework needs so that its processes find one another."""

    default_port: ClassVar[int]
    """Port that the framework's own tools use."""
    reserved: ClassVar[frozenset[str]]
    """Variables that this contract sets; a job may not set them, and they are not inherited."""
    stops_itself: ClassVar[bool] = False
    """Whether the started command ends its other ranks itself when one fails."""

    @abc.abstractmethod
    def faults(self, job: JobSpec) -> Iterator[Fault]:
        """What this framework cannot do of what the job asks."""

    @abc.abstractmethod
    def command(self, job: JobSpec, place: Place) -> tuple[str, ...]:
        """What is started once on the node."""

    @abc.abstractmethod
    def environment(self, job: JobSpec, place: Place) -> dict[str, str]:
        """The variables that the started command needs."""

    def ranks(self, job: JobSpec, place: Place) -> tuple[RankPlan, ...]:
        """The ranks on the node and the variables that each will see.

        Here: one rank a node, with the variables of the node.
        """
        return (RankPlan(int(place.index), 0, self.environment(job, place)),)

    def plan_node(self, job: JobSpec, place: Place) -> NodePlan:
        """Everything about one node whose index is known."""
        index = int(place.index)
        return NodePlan(
            index,
            place.hosts[index],
            self.command(job, place),
            self.environment(job, place),
            self.ranks(job, place),
        )


def rank_command(job: JobSpec, place: Place) -> tuple[str, ...]:
    """What one rank runs: the script under the interpreter, or the job's own command.

    A word `{python}` in the command is the interpreter.
    """
    own = tuple(place.python if word == "{python}" else word for word in job.command)
    own = own or (place.python, "-u", *script_words(job))
    return (*place.wrap, *own, *job.args)


def script_words(job: JobSpec) -> tuple[str, ...]:
    """The script or module, as an interpreter (and torchrun) takes it."""
    return ("-m", job.module) if job.module else (str(job.script),)


def one_process_a_node(job: JobSpec, framework: str) -> Iterator[Fault]:
    """The fault of a job that asks for several processes a node where the framework runs one."""
    if job.processes_per_node != 1:
        yield Fault(
            "$.processes_per_node",
            f"{framework} runs one process a node, got {job.processes_per_node}; "
            f"write nodes: {job.world_size} and processes_per_node: 1",
        )


def no_restarts(job: JobSpec, framework: str) -> Iterator[Fault]:
    """The fault of a job that asks for restarts of a framework that has no agent to do them."""
    if job.max_restarts:
        yield Fault(
            "$.max_restarts",
            f"{framework} has no agent that restarts ranks, got {job.max_restarts}; leave it out, "
            "or let the cluster start the job again",
        )
