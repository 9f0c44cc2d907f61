"""A program: load a saved Keras model on TensorFlow and convert it; the other end of `backends.py`.

It runs in the environment of the process that saved the model, on a file that this process just wrote.
"""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

from paritygate.converter.config import ExportConfig
from paritygate.converter.errors import ConverterError, ExportError, SourceError
from paritygate.converter.exporters._keras.backends import ANSWER_FILE, MODEL_FILE, REQUEST_FILE
from paritygate.converter.exporters._keras.loading import load_model
from paritygate.converter.exporters._keras.model import open_model
from paritygate.converter.exporters._tensorflow.imports import import_tensorflow, telling_line
from paritygate.converter.exporters._tensorflow.model import TensorFlowModel
from paritygate.converter.exporters.base import ConversionRequest, DimCannotVary, Weights
from paritygate.converter.types import Array, TensorSpec


def main(workspace: Path) -> None:
    """Convert `model.keras` as `request.json` says, and leave the error, if any, in `answer.json`."""
    answer: dict[str, Any] = {"error": None}
    try:
        _convert(workspace)
    except ConverterError as error:
        answer = {
            "error": type(error).__name__, "said": str(error), "operator": getattr(error, "operator", ""),
            "module": getattr(error, "module", None),
        }  # fmt: skip
    except DimCannotVary as verdict:
        answer = {"error": type(verdict).__name__, "said": verdict.reason, "dim": verdict.dim}
    (workspace / ANSWER_FILE).write_text(json.dumps(answer), "utf-8")


def _convert(workspace: Path) -> None:
    document = json.loads((workspace / REQUEST_FILE).read_text("utf-8"))
    inputs = tuple(TensorSpec.from_json(entry) for entry in document["inputs"])
    import_tensorflow()
    opened = open_model(_load(workspace, document["modules"]), ExportConfig("copy", inputs=inputs), Weights())
    assert isinstance(opened, TensorFlowModel)
    opened.output_order, opened.output_shapes = document["outputs"], ()
    opened.convert(
        ConversionRequest(
            path=Path(document["path"]),
            inputs=inputs,
            example={spec.name: _of_shape(spec, document["shapes"][spec.name]) for spec in inputs},
            opset=document["opset"],
            external_data_threshold_bytes=document["external_data_threshold_bytes"],
        )
    )


def _of_shape(spec: TensorSpec, shape: list[int]) -> Array:
    """An array that takes no memory: only its sizes are asked."""
    return np.broadcast_to(np.zeros((), spec.dtype.numpy), shape)


def _load(workspace: Path, modules: list[str]) -> Any:
    """The saved model, trusted: it is the user's own, and this user's process has just written it."""
    try:
        for module in modules:
            importlib.import_module(module)
        return load_model(workspace / MODEL_FILE, trust=True)
    except (ImportError, SourceError) as error:
        cause = error.__cause__ or error
        raise ExportError(
            f"no copy of the model can be built on TensorFlow: {telling_line(cause)} Classes of its own have to "
            "stand in a module, not in the script itself. Or run the training with KERAS_BACKEND=tensorflow."
        ) from error


if __name__ == "__main__":
    main(Path(sys.argv[1]))
