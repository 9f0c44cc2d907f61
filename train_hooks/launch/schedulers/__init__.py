"""Where a job runs; a new scheduler is one file and one line here."""

from __future__ import annotations

from pkgutil import resolve_name

from paritygate.train_hooks.errors import UnknownName
from paritygate.train_hooks.launch.schedulers.base import Scheduler

SCHEDULERS = {
    "kubernetes": "paritygate.train_hooks.launch.schedulers.kubernetes:KubernetesScheduler",
    "local": "paritygate.train_hooks.launch.schedulers.local:LocalScheduler",
}


def get_scheduler(name: str) -> Scheduler:
    """The scheduler of this name.

    Raises:
        UnknownName: If there is none.
    """
    if name not in SCHEDULERS:
        raise UnknownName("scheduler", name, SCHEDULERS)
    scheduler: Scheduler = resolve_name(SCHEDULERS[name])()
    return scheduler
