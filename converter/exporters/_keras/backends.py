"""Keras models that run on JAX or PyTorch: they answer themselves, and a copy on TensorFlow is converted.

Keras's own ONNX export on the other backends is not used: on JAX it writes max pooling that no runtime takes, and
on PyTorch it goes through the tracer that PyTorch is about to drop. The copy is saved, and rebuilt in a child
process of the same environment, since a process has one Keras backend for good. What the copy computes is held to
what the model itself answered by parity, as for any conversion.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from paritygate.converter import errors
from paritygate.converter.config import ExportConfig
from paritygate.converter.errors import ExportError, UnsupportedOperator
from paritygate.converter.exporters._keras.calls import packed_call
from paritygate.converter.exporters._keras.model import Described, describe
from paritygate.converter.exporters._keras.twin import twin_builder
from paritygate.converter.exporters._tensorflow.calls import Call
from paritygate.converter.exporters._tensorflow.imports import is_there, telling_line
from paritygate.converter.exporters._tensorflow.structure import flatten, name_outputs
from paritygate.converter.exporters.base import (
    ConversionRequest,
    DimCannotVary,
    SourceInput,
    SourceModel,
    Weights,
)
from paritygate.converter.types import Array, DType, Feeds

REQUEST_FILE, MODEL_FILE, ANSWER_FILE = "request.json", "model.keras", "answer.json"

_PATIENCE_S = 1800.0


@dataclass
class ForeignModel(SourceModel):
    """A Keras model on another backend.

    Attributes:
        model: The user's own model.
        backend: The backend that it runs on.
        described: What it takes and gives.
        inputs: The same as the base asks for.
        trust: Whether code that its configuration carries may be run.
    """

    model: Any
    backend: str
    described: Described
    inputs: tuple[SourceInput, ...]
    example: Feeds | None = None
    dims_are_declared: bool = True
    weights: Weights = field(default_factory=Weights)
    notes: list[str] = field(default_factory=list)
    trust: bool = False
    _twin: Call | None = None
    _outputs: list[str] = field(default_factory=list)

    def run(self, feeds: Feeds) -> dict[str, Array]:
        """Call the model on its own backend."""
        try:
            answer = self._call(packed_call(self.model), feeds)
        except Exception as error:
            raise ValueError(telling_line(error)) from error
        named = self._named(answer)
        self._outputs = list(named)
        return named

    def run_float64(self, feeds: Feeds) -> dict[str, Array] | None:
        """Call a twin of double precision; JAX computes none unless the whole process is switched to it."""
        build = twin_builder(self.model, trust=self.trust)
        if self.backend == "jax" or build is None:
            return None
        self._twin = self._twin or build()
        wide = {
            n: a.astype(np.float64) if DType.from_numpy(a.dtype).is_floating else a for n, a in feeds.items()
        }
        return self._named(self._call(self._twin, wide))

    def own_code(self) -> Sequence[Any]:
        """The user's model."""
        return (self.model,)

    def integer_ranges(self) -> Mapping[str, tuple[int, int]]:
        """The rows of embeddings that inputs index."""
        return self.described.ranges

    def convert(self, request: ConversionRequest) -> None:
        """Save the model, and convert the copy that a child rebuilds on TensorFlow."""
        with tempfile.TemporaryDirectory(prefix="paritygate-keras-") as folder:
            workspace = Path(folder)
            self._save(workspace / MODEL_FILE)
            document = {
                "path": str(request.path.absolute()),
                "inputs": [spec.to_json() for spec in request.inputs],
                "shapes": {name: array.shape for name, array in request.example.items()},
                "outputs": self._outputs,
                "modules": _modules_of_classes(),
                "opset": request.opset,
                "external_data_threshold_bytes": request.external_data_threshold_bytes,
            }
            (workspace / REQUEST_FILE).write_text(json.dumps(document), "utf-8")
            _convert_in_child(workspace)

    def _save(self, path: Path) -> None:
        try:
            self.model.save(path)
        except Exception as error:
            raise ExportError(
                f"the model cannot be saved, so no copy of it can be made on TensorFlow: {telling_line(error)}"
            ) from error

    def _call(self, call: Call, feeds: Feeds) -> Any:
        import keras

        with _no_gradients(self.backend):
            tensors = [
                keras.ops.convert_to_tensor(feeds[spec.name], dtype=str(feeds[spec.name].dtype))
                for spec in self.inputs
            ]
            return call(tensors)

    def _named(self, answer: Any) -> dict[str, Array]:
        import keras

        def as_array(leaf: Any, _path: Any) -> Array:
            return np.asarray(keras.ops.convert_to_numpy(leaf))

        taken = [spec.name for spec in self.inputs]
        named = name_outputs(flatten(answer, (), as_array), self.described.outputs, taken)
        return dict(named)


def open_foreign(model: Any, backend: str, config: ExportConfig, weights: Weights) -> SourceModel:
    """A Keras model that runs on JAX or PyTorch.

    Raises:
        ExportError: If TensorFlow is not there to convert a copy with, or the model does not say what it takes.
    """
    missing = [module for module in ("tensorflow", "tf2onnx") if not is_there(module)]
    if missing:
        raise ExportError(
            f"Keras runs on {backend} here, and its way to ONNX is a copy on TensorFlow, which needs "
            f"{' and '.join(missing)}. Install paritygate[tensorflow] beside it, or save the model as a .keras "
            "file and export that with `paritygate export`, which uses an environment of its own."
        )
    described = describe(model, config)
    if described is None:
        raise ExportError(
            f"{type(model).__name__} does not say what it takes, so no copy of it can be made on TensorFlow. Make "
            "it a functional or Sequential model, or run it under KERAS_BACKEND=tensorflow."
        )
    note = (
        f"The sealed answers are those of Keras on {backend}; the graph was converted from a copy of the model on "
        "TensorFlow."
    )
    return ForeignModel(
        model,
        backend,
        described,
        described.inputs,
        described.example,
        weights=weights,
        notes=[note],
        trust=config.trust,
    )


def _modules_of_classes() -> list[str]:
    """Modules that registered classes with Keras, so that a saved model may name them."""
    import keras

    kinds = keras.saving.get_custom_objects().values()
    modules = {str(getattr(kind, "__module__", "__main__")) for kind in kinds}
    return sorted(m for m in modules if m != "__main__" and m.split(".")[0] not in ("keras", "builtins"))


def _no_gradients(backend: str) -> AbstractContextManager[Any]:
    if backend != "torch":
        return nullcontext()
    import torch

    context: AbstractContextManager[Any] = torch.no_grad()
    return context


def _convert_in_child(workspace: Path) -> None:
    """Run `rebuild.py` on a workspace, with the packages of this process and another backend."""
    environment = {
        **os.environ,
        "KERAS_BACKEND": "tensorflow",
        "PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry),
        "TF_CPP_MIN_LOG_LEVEL": "2",
    }
    command = [sys.executable, "-m", "paritygate.converter.exporters._keras.rebuild", str(workspace)]
    try:
        done = subprocess.run(
            command,
            env=environment,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_PATIENCE_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise ExportError(f"converting a copy on TensorFlow took more than {_PATIENCE_S:.0f} s.") from error
    answer = workspace / ANSWER_FILE
    if not answer.exists():
        said = ([line.strip() for line in done.stderr.splitlines() if line.strip()] or ["it said nothing"])[
            -1
        ]
        raise ExportError(
            f"the process that converts a copy on TensorFlow ended with {done.returncode}: {said[:300]}"
        )
    _raise_what_it_says(json.loads(answer.read_text("utf-8")))


def _raise_what_it_says(answer: Mapping[str, Any]) -> None:
    if answer["error"] is None:
        return
    if answer["error"] == DimCannotVary.__name__:
        raise DimCannotVary(answer["dim"], answer["said"])
    if answer["error"] == UnsupportedOperator.__name__:
        raise UnsupportedOperator(answer["said"], operator=answer["operator"], module=answer["module"])
    kind = getattr(errors, answer["error"], ExportError)
    raise kind(answer["said"])
