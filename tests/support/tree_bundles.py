"""Runs inside the environment of trees: exports a zoo of boosters, some with a fault, for the core's tests.

tree_bundles.py xgboost|lightgbm OUT      writes a bundle OUT/<name> for each model, OUT/<name>-<fault> for each
                                          fault, OUT/refused.json with the errors of those that have no form, and
                                          OUT/damaged.json with how the export of each damaged file ended
"""

from __future__ import annotations

import importlib
import json
import sys
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path

from paritygate.converter.errors import ConverterError, ExportError
from paritygate.converter.exporters import export_model
from support.tree_faults import missing_sent_the_other_way, threshold_one_step_up

FAULTS = {
    "first-threshold": threshold_one_step_up(0),
    "last-threshold": threshold_one_step_up(-1),
    "first-missing": missing_sent_the_other_way(0),
    "last-missing": missing_sent_the_other_way(-1),
}


def main(library: str, out: Path) -> None:
    warnings.simplefilter("ignore")
    zoo = importlib.import_module(f"support.{library}_zoo")
    refused: dict[str, list[str]] = {}
    for name, build in zoo.MODELS.items():
        model, options = build()
        try:
            export_model(model, out / name, name=name, **options)
        except ExportError as error:
            refused[name] = [type(error).__name__, str(error)]
    for fault, spoil in FAULTS.items():
        model, options = zoo.MODELS[zoo.SPOILT]()
        export_model(model, out / f"spoilt-{fault}", name=fault, after_conversion=spoil, **options)
    (out / "refused.json").write_text(json.dumps(refused))
    (out / "damaged.json").write_text(json.dumps({n: _ended(w, out) for n, w in zoo.DAMAGED.items()}))


def _ended(write: Callable[[Path], Path], out: Path) -> str:
    with tempfile.TemporaryDirectory(dir=out) as folder:
        try:
            export_model(write(Path(folder)), Path(folder) / "bundle", name="damaged")
        except ConverterError as error:
            return type(error).__name__
        return "exported"


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
