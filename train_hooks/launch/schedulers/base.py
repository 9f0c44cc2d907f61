"""The interface of a scheduler: plan first, act second."""

from __future__ import annotations

import abc
from collections.abc import Callable
from typing import TypeAlias

from paritygate.train_hooks.types import JobEvent, JobResult, JobSpec, Plan

OnEvent: TypeAlias = Callable[[JobEvent], None]
"""Called for every line and every change of a running job, in order, from the thread that runs it."""


class Scheduler(abc.ABC):
    """One place where jobs run."""

    @abc.abstractmethod
    def plan(self, job: JobSpec, kind: str | None = None) -> Plan:
        """All that would be done for a job; pure, no process and no file is touched.

        Args:
            job: The job.
            kind: Which of several forms is wanted; None is the scheduler's own choice.

        Raises:
            PlanError: If the job cannot run here at all, or there is no such form.
        """

    @abc.abstractmethod
    def run(self, plan: Plan, on_event: OnEvent) -> JobResult:
        """Do what a plan of this scheduler says, and wait for the end.

        Raises:
            NotRunnable: If the plan cannot be run from this machine.
        """
