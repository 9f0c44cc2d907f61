"""Export a source that a person named: here where its framework is installed, else in a framework environment."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from paritygate.converter.bundle import Bundle
from paritygate.converter.checkpoints.factories import is_factory, refuse_file_name
from paritygate.converter.checkpoints.files import existing_file
from paritygate.converter.config import ExportConfig
from paritygate.converter.environments.isolated import export_isolated
from paritygate.converter.environments.progress import OnStep
from paritygate.converter.environments.protocol import Event, OnEvent
from paritygate.converter.environments.reach import refuse_unreachable
from paritygate.converter.environments.request import ExportRequest
from paritygate.converter.environments.specs import SPECS, EnvironmentSpec
from paritygate.converter.errors import FrameworkMissing, ModuleMissing
from paritygate.converter.exporters import exporter_for
from paritygate.converter.exporters.ages import too_old
from paritygate.converter.exporters.base import Exporter


def export_source(
    source: str,
    directory: str | Path,
    config: ExportConfig,
    *,
    framework: str | None = None,
    isolated: bool | None = None,
    on_event: OnEvent | None = None,
    on_step: OnStep | None = None,
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
        on_step: Shown how far its build is, if it has to be built first.

    Raises:
        ConverterError: Whatever hinders the export, as one line.
        ValueError: If an argument cannot be meant.
    """
    for text in (source, config.factory):
        if text is not None and not Path(text).exists():
            refuse_file_name(text)
    try:
        exporter = exporter_for(source, framework)
    except FrameworkMissing as missing:
        return _export_where_it_is(missing, source, directory, config, on_event, on_step)
    spec = _environment_of(exporter.name)
    apart = (
        isolated
        if isolated is not None
        else spec is not None and not _can_export_here(exporter, spec, source)
    )
    why = None if not apart or spec is None else _why_apart(exporter, spec, source)
    if not apart:
        try:
            return exporter.export(source, Path(directory), config)
        except ModuleMissing as missing:  # what a file holds may need more than its framework
            if isolated is False or spec is None or missing.module not in spec.modules:
                raise
            why = f"{missing.module} is not installed here"
    if (
        not is_factory(source) and not Path(f"{source}.index").exists()
    ):  # the prefix of a TensorFlow checkpoint
        _refuse_missing(Path(source))
    exporter.refuse_early(source, config)
    if spec is not None:
        _refuse_unreachable(source, config, spec)
    if on_event is not None and why is not None and isolated is None:
        on_event(Event("progress", f"{why}: exporting in its own environment"))
    request = ExportRequest(source, config, exporter.name)
    return export_isolated(exporter.name, request, Path(directory), on_event, on_step=on_step)


def _export_where_it_is(
    missing: FrameworkMissing,
    source: str,
    directory: str | Path,
    config: ExportConfig,
    on_event: OnEvent | None,
    on_step: OnStep | None,
) -> Bundle:
    """Export a factory whose framework is not here; what it gives is told where it can be built."""
    spec = _environment_of(missing.exporter)
    if spec is None:
        raise missing
    _refuse_unreachable(source, config, spec)
    request = ExportRequest(source, config, exporter=None)
    return export_isolated(missing.exporter, request, Path(directory), on_event, on_step=on_step)


def _refuse_unreachable(source: str, config: ExportConfig, spec: EnvironmentSpec) -> None:
    named = source if is_factory(source) and not Path(source).exists() else config.factory
    if named is not None:
        refuse_unreachable(named, spec)


def _refuse_missing(path: Path) -> None:
    if not path.is_dir():
        existing_file(path)


def _environment_of(exporter: str) -> EnvironmentSpec | None:
    return next((spec for spec in SPECS.values() if exporter in spec.exporters), None)


def _can_export_here(exporter: Exporter, spec: EnvironmentSpec, source: str) -> bool:
    apart = spec.always_isolated or bool(_missing(exporter, spec, source))
    return not apart and too_old(exporter.name) is None


def _why_apart(exporter: Exporter, spec: EnvironmentSpec, source: str) -> str:
    if spec.always_isolated:
        return f"{spec.name} never shares a process with paritygate's own packages"
    missing = _missing(exporter, spec, source)
    return f"{missing[0]} is not installed here" if missing else str(too_old(exporter.name)).partition(":")[0]


def _missing(exporter: Exporter, spec: EnvironmentSpec, source: str) -> list[str]:
    """What the exporter needs and cannot import here; the environment's own list may hold other frameworks."""
    return [
        name
        for name in exporter.modules_for(source) or spec.modules
        if importlib.util.find_spec(name) is None
    ]
