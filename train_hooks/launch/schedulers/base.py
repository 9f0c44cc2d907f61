"""The interface of a scheduler: plan first, act second."""

from __future__ import annotations

import abc
from collections.abc import Callable, Mapping
from typing import TypeAlias

from paritygate.train_hooks.types import JobEvent, JobResult, JobSpec, Plan

OnEvent: TypeAlias = Callable[[JobEvent], None]
"""Called for every line and every change of a running job, in order, from the thread that runs it."""


class Scheduler(abc.ABC):
    """One place where jobs run."""

    @abc.abstractmethod
    def plan(self, job: JobSpec, options: Mapping[str, str]) -> Plan:
        """All that would be done for a job; pure, no process and no file is touched.

        Args:
            job: The job.
            options: What this scheduler's command line takes besides the job; unknown ones are refused.

        Raises:
            PlanError: If the job cannot run here at all, or an option is unknown.
        """

    @abc.abstractmethod
    def run(self, plan: Plan, on_event: OnEvent) -> JobResult:
        """Do what a plan of this scheduler says, and wait for the end.

        Raises:
            NotRunnable: If the plan cannot be run from this machine.
        """
