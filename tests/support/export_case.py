"""Export one conformance case; as a program: `python -m support.export_case FRAMEWORK CASE BUNDLE [--change]`.

A framework that is not here runs this in its own environment, where the exporter meets the framework itself.
"""

from __future__ import annotations

import sys
from pathlib import Path

from paritygate.converter.bundle import Bundle
from paritygate.converter.exporters import export_model
from support.exporter_cases import CASES, Build
from support.weight_changes import change_weights


def build_of(framework: str, case: str) -> Build:
    """The builder of a case: a rank, `demoted` or `guarded`."""
    cases = CASES[framework]
    return cases.ranks[case] if case in cases.ranks else getattr(cases, case)


def export_case(framework: str, case: str, directory: Path, *, change: bool = False) -> Bundle:
    """Export a case in this process, its weights changed after conversion where asked."""
    model, options = build_of(framework, case)()
    hook = change_weights if change else None
    return export_model(model, directory, name=case, framework=framework, after_conversion=hook, **options)


if __name__ == "__main__":
    export_case(sys.argv[1], sys.argv[2], Path(sys.argv[3]), change="--change" in sys.argv[4:])
