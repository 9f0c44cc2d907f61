"""The PMML documents of the exporter conformance suite."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from support.exporter_cases import ExporterCases, Refusal
from support.pmml import FOLDER
from support.pmml.hostile import HOSTILE
from support.pmml.written import document, regression


def _shipped(name: str) -> Any:
    """A document that lies in tests/support/pmml (see its README for where each comes from)."""
    return lambda: (FOLDER / name, {})


def _guarded() -> tuple[Any, dict[str, Any]]:
    # Changed leaf numbers would end outside their tables, an error before there is a number to judge.
    return FOLDER / "iris_network.pmml", {}


def _in_utf_16(folder: Path) -> tuple[Any, dict[str, Any]]:
    path = document(folder, regression())
    path.write_text(path.read_text("utf-8"), "utf-16")
    return path, {}


CASES = ExporterCases(
    module="paritygate.converter.exporters.pmml",
    ranks={"rank2": _guarded},
    guarded=_guarded,
    trained={path.stem: _shipped(path.name) for path in sorted(FOLDER.glob("*.pmml"))},
    files={"document": lambda folder: (document(folder, regression()), {}), "utf-16": _in_utf_16},
    refused={name: Refusal(case.build, case.error, case.match) for name, case in HOSTILE.items()},
)
