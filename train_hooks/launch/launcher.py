"""Plan a job and run it, on any scheduler: the two calls that the command line and the quickstart make."""

from __future__ import annotations

from collections.abc import Callable

from paritygate.train_hooks.launch.schedulers import get_scheduler
from paritygate.train_hooks.launch.schedulers.base import OnEvent
from paritygate.train_hooks.types import JobEvent, JobResult, JobSpec, Plan

SHOWN = ("line", "failed", "stopping")
"""Kinds of events that are lines of the job's log; the others are for programs."""


def plan(job: JobSpec, on: str = "local", *, kind: str | None = None) -> Plan:
    """All that a scheduler would do for a job; nothing is started and nothing is written.

    Args:
        job: The job.
        on: Name of a scheduler.
        kind: Which of its forms is wanted, such as `pytorchjob`; None is the scheduler's own choice.

    Raises:
        UnknownName: If there is no such scheduler.
        PlanError: If the job cannot run there.
    """
    return get_scheduler(on).plan(job, kind)


def run(
    job_plan: Plan, on_event: OnEvent | None = None, *, on_line: Callable[[str], None] | None = None
) -> JobResult:
    """Do what a plan says and wait for the end; how the job ended is in the result, not in an exception.

    Args:
        job_plan: What `plan` made.
        on_event: Called for every line and every change, in order, in this thread.
        on_line: The same as text, such as `[rank 0] epoch 1: loss 0.31`.

    Raises:
        NotRunnable: If the plan cannot be run from this machine.
        CoreUnavailable: If the job names an export and there is nothing here to validate and publish with.
    """
    if job_plan.job.export is not None and job_plan.job.export.repository is not None:
        from paritygate.train_hooks.pipeline import check_core_environment

        check_core_environment()

    def tell(event: JobEvent) -> None:
        if on_event is not None:
            on_event(event)
        if on_line is not None and event.kind in SHOWN:
            on_line(str(event))

    return get_scheduler(job_plan.scheduler).run(job_plan, tell)
