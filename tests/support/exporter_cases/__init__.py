"""Models that every exporter must convert: one file for each entry of the registry, frameworks imported on use.

A new exporter is tested by `tests/conformance/test_exporters.py` once `support/exporter_cases/<its name>.py` holds
`CASES`, and fails it until then. The suite imports these files everywhere: no framework at their top.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

Build = Callable[[], tuple[Any, dict[str, Any]]]
"""Gives a model and the keyword arguments of `export_model` for it."""

BuildIn = Callable[[Path], tuple[Any, dict[str, Any]]]
"""Writes what it needs into an empty folder; gives a source and the keyword arguments of `export_model` for it."""

Plant = Callable[[Path, Path], tuple[Any, dict[str, Any]]]
"""Writes a file into a folder (first argument) that carries code or an operator which, once it runs, makes or
reads the canary (second argument: a path that does not exist yet); gives the source and the arguments for it."""


@dataclass(frozen=True)
class Refusal:
    """A source that must be refused with one line.

    Attributes:
        build: Makes the source in a folder.
        error: Name of the class of the error (`converter/errors.py`), or of one of its parents.
        match: What its text says, as a regular expression.
    """

    build: BuildIn
    error: str
    match: str


@dataclass(frozen=True)
class ExporterCases:
    """What one exporter is held to.

    Attributes:
        module: What must be importable to export in this process.
        environment: The framework environment in which it runs where that is missing; None for an exporter that
            needs nothing but the core.
        ranks: Models by the rank of their input, each with an open batch where there is an axis.
        demoted: A model with a dimension called `frozen` that cannot vary; None for a format that has only one
            kind of axis.
        guarded: A model with weights that the guard changes.
        files: Every form of checkpoint or saved model that it accepts; must pass parity.
        trained: Models that others trained and that ship in a package, and models trained on real data sets.
        packages: Packages whose files `trained` and `files` read (`support.model_packages`).
        planted: Every form that can carry code or touch files: refused without trust, and the code not run.
            With trust it runs, which shows that the payload was alive.
        inert: Those names of `planted` whose code does not run with trust either (the form is never executed).
        refused: Bad input.
    """

    module: str
    ranks: Mapping[str, Build]
    guarded: Build
    demoted: Build | None = None
    environment: str | None = None
    files: Mapping[str, BuildIn] = field(default_factory=dict)
    trained: Mapping[str, Build] = field(default_factory=dict)
    packages: tuple[str, ...] = ()
    planted: Mapping[str, Plant] = field(default_factory=dict)
    inert: frozenset[str] = frozenset()
    refused: Mapping[str, Refusal] = field(default_factory=dict)


def cases_of(exporter: str) -> ExporterCases:
    """The cases of one entry of the registry."""
    cases: ExporterCases = importlib.import_module(f"support.exporter_cases.{exporter}").CASES
    return cases


def sample(*shape: int) -> np.ndarray[Any, Any]:
    """float32[shape] from the standard normal distribution, the same on every call."""
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)
