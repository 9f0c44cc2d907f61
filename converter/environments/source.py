"""Export a source that a person named: here where its framework is installed, else in a framework environment."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from paritygate.converter.bundle import Bundle
from paritygate.converter.config import ExportConfig
from paritygate.converter.environments.isolated import export_isolated
from paritygate.converter.environments.protocol import Event, OnEvent
from paritygate.converter.environments.request import ExportRequest
from paritygate.converter.environments.specs import SPECS, EnvironmentSpec
from paritygate.converter.exporters import detect, get_exporter


def export_source(
    source: str,
    directory: str | Path,
    config: ExportConfig,
    *,
    framework: str | None = None,
    isolated: bool | None = None,
    on_event: OnEvent | None = None,
) -> Bundle:
    """Export a checkpoint, saved model or factory to a new bundle.

    Args:
        source: The path of a file or folder, or `module:factory`.
        directory: The bundle to write; it must not exist.
        config: How to export it.
        framework: A name of `EXPORTERS`; None tells it from the source.
        isolated: True exports in a framework environment, False in this process; None takes this process where
            the framework is installed and may share a process with us.
        on_event: Told what goes on in a framework environment.

    Raises:
        ConverterError: Whatever hinders the export, as one line.
        ValueError: If an argument cannot be meant.
    """
    exporter = get_exporter(framework if framework is not None else detect(source))
    spec = _environment_of(exporter.name)
    apart = isolated if isolated is not None else spec is not None and not _can_export_here(spec)
    if not apart:
        return exporter.export(source, Path(directory), config)
    exporter.refuse_early(source, config)
    if on_event is not None and spec is not None and isolated is None:
        on_event(Event("progress", f"{_why_apart(spec)}: exporting in its own environment"))
    return export_isolated(
        exporter.name, ExportRequest(source, config, exporter.name), Path(directory), on_event
    )


def _environment_of(exporter: str) -> EnvironmentSpec | None:
    return next((spec for spec in SPECS.values() if exporter in spec.exporters), None)


def _can_export_here(spec: EnvironmentSpec) -> bool:
    return not spec.always_isolated and _is_installed(spec)


def _why_apart(spec: EnvironmentSpec) -> str:
    if spec.always_isolated:
        return f"{spec.name} never shares a process with paritygate's own packages"
    return f"{spec.name} is not installed here"


def _is_installed(spec: EnvironmentSpec) -> bool:
    return all(importlib.util.find_spec(module) is not None for module in spec.modules)
