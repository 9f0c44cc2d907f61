"""Framework environments: pinned virtual environments in which exports run when a framework is not installed here.

list_environments() / sync(framework) / remove(framework)     what is on disk
export_isolated(framework, request, directory)                one export in a child process there
export_source(source, directory, config)                      here if the framework is installed, else there
"""

from __future__ import annotations

from paritygate.converter.environments.isolated import export_isolated
from paritygate.converter.environments.manager import (
    Environment,
    EnvironmentStatus,
    list_environments,
    remove,
    sync,
)
from paritygate.converter.environments.protocol import Event, OnEvent
from paritygate.converter.environments.request import ExportRequest
from paritygate.converter.environments.source import export_source
from paritygate.converter.environments.specs import SPECS, EnvironmentSpec, environments_dir

__all__ = [
    "SPECS",
    "Environment",
    "EnvironmentSpec",
    "EnvironmentStatus",
    "Event",
    "ExportRequest",
    "OnEvent",
    "environments_dir",
    "export_isolated",
    "export_source",
    "list_environments",
    "remove",
    "sync",
]
