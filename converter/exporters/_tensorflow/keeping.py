"""The SavedModel itself as files of the bundle, for TensorFlow Serving, and which of its signatures it is."""

from __future__ import annotations

import json
import os
from pathlib import Path

from paritygate.converter.config import ExportConfig
from paritygate.converter.errors import SourceError
from paritygate.converter.exporters._tensorflow.model import TensorFlowModel

FOLDER = "saved_model"
"""Where its files stand below the bundle's `assets/`."""

NOTE_FILE = "saved_model.json"
"""Below `assets/`: the signature that was exported."""


def files_to_keep(path: Path, model: TensorFlowModel, config: ExportConfig, folder: Path) -> dict[str, Path]:
    """The files of a SavedModel by their names below `assets/`.

    Args:
        path: The SavedModel.
        model: One of its signatures, open for export.
        config: What was asked for.
        folder: Where to write the file that says which signature it is.

    Raises:
        SourceError: If something in it is no plain file.
    """
    kept = {}
    for place, _, names in os.walk(path):
        for name in names:
            file = Path(place) / name
            if not file.is_file():
                raise SourceError(f"{file} is no plain file, so {path} cannot be kept. Save the model anew.")
            kept[f"{FOLDER}/{file.relative_to(path).as_posix()}"] = file
    note = folder / NOTE_FILE
    note.write_text(
        json.dumps({"signature": model.signature, "trusted": config.trust}, sort_keys=True) + "\n", "utf-8"
    )
    return {**kept, NOTE_FILE: note}
