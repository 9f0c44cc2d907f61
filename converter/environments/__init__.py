"""Framework environments: pinned virtual environments in which exports run when a framework is not installed here.

list_environments() / sync(framework) / remove(framework)     what is on disk
examine(framework) / find_conflicts(spec, requirements)       what is wrong with it, and what cannot live beside it
export_isolated(framework, request, directory)                one export in a child process there
export_source(source, directory, config)                      here if the framework is installed, else there
"""

from __future__ import annotations

from paritygate.converter.environments.conflicts import Conflict, find_conflicts
from paritygate.converter.environments.doctor import Finding, examine
from paritygate.converter.environments.isolated import export_isolated
from paritygate.converter.environments.manager import (
    Environment,
    EnvironmentStatus,
    list_environments,
    remove,
    remove_forgotten,
    sync,
)
from paritygate.converter.environments.protocol import Event, OnEvent
from paritygate.converter.environments.request import ExportRequest
from paritygate.converter.environments.source import export_source
from paritygate.converter.environments.specs import SPECS, EnvironmentSpec, environments_dir

__all__ = [
    "SPECS",
    "Conflict",
    "Environment",
    "EnvironmentSpec",
    "EnvironmentStatus",
    "Event",
    "ExportRequest",
    "Finding",
    "OnEvent",
    "environments_dir",
    "examine",
    "export_isolated",
    "export_source",
    "find_conflicts",
    "list_environments",
    "remove",
    "remove_forgotten",
    "sync",
]
