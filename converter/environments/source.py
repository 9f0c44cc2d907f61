"""Export a source that a person named: here where its framework is installed, else in a framework environment."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from paritygate.converter.bundle import Bundle
from paritygate.converter.config import ExportConfig
from paritygate.converter.environments.isolated import export_isolated
from paritygate.converter.environments.protocol import Event, OnEvent
from paritygate.converter.environments.request import ExportRequest
from paritygate.converter.environments.specs import SPECS, EnvironmentSpec
from paritygate.converter.exporters import detect, get_exporter
from paritygate.converter.types import Feeds


def export_source(
    source: str,
    directory: str | Path,
    *,
    name: str,
    framework: str | None = None,
    inputs: Any = None,
    dynamic: Mapping[str, Mapping[int, str]] | None = None,
    input_names: Sequence[str] | None = None,
    output_names: Sequence[str] | None = None,
    opset: int = 18,
    trust: bool = False,
    factory: str | None = None,
    weights: str | None = None,
    samples: Iterable[Feeds] | None = None,
    include_samples: bool = False,
    integer_ranges: Mapping[str, tuple[int, int]] | None = None,
    seed: int = 1,
    isolated: bool | None = None,
    on_event: OnEvent | None = None,
) -> Bundle:
    """Export a checkpoint, saved model or factory to a new bundle.

    Args:
        source: The path of a file or folder, or `module:factory`.
        directory: The bundle to write; it must not exist.
        name: The model's name.
        framework: A name of `EXPORTERS`; None tells it from the source.
        inputs: As in `ExportConfig`, and so are the arguments up to `seed`.
        dynamic: Open dimensions.
        input_names: Names of the inputs in their order.
        output_names: Names of the outputs in their order.
        opset: Version of the default operator set.
        trust: Whether files that can run code may be opened.
        factory: `module:function` that builds the network for a weights file.
        weights: Which weights of a training checkpoint.
        samples: The user's own inputs.
        include_samples: Whether the samples are sealed into the bundle.
        integer_ranges: Smallest and largest value of integer inputs.
        seed: Seed of the probes.
        isolated: True exports in a framework environment, False in this process; None takes this process where
            the framework is installed.
        on_event: Told what goes on in a framework environment.

    Raises:
        ConverterError: Whatever hinders the export, as one line.
        ValueError: If an argument cannot be meant.
    """
    config = ExportConfig(
        name=name,
        inputs=inputs,
        dynamic=dynamic,
        input_names=None if input_names is None else tuple(input_names),
        output_names=None if output_names is None else tuple(output_names),
        opset=opset,
        trust=trust,
        factory=factory,
        weights=weights,
        samples=tuple(samples or ()),
        include_samples=include_samples,
        integer_ranges=dict(integer_ranges or {}),
        seed=seed,
    )
    exporter = get_exporter(framework if framework is not None else detect(source))
    spec = _environment_of(exporter.name)
    apart = isolated if isolated is not None else spec is not None and not _is_installed(spec)
    if not apart:
        return exporter.export(source, Path(directory), config)
    exporter.refuse_early(source, config)
    if on_event is not None and spec is not None and isolated is None:
        on_event(Event("progress", f"{spec.name} is not installed here: exporting in its own environment"))
    return export_isolated(
        exporter.name, ExportRequest(source, config, exporter.name), Path(directory), on_event
    )


def _environment_of(exporter: str) -> EnvironmentSpec | None:
    return next((spec for spec in SPECS.values() if exporter in spec.exporters), None)


def _is_installed(spec: EnvironmentSpec) -> bool:
    return all(importlib.util.find_spec(module) is not None for module in spec.modules)
