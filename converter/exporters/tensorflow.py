"""TensorFlow models become ONNX through tf2onnx: SavedModels, frozen graphs, checkpoints, modules and functions.

A TensorFlow graph is a program: operators read and write files, call back into Python, load tables. A file's graph
is therefore read as data first, and one that uses an operator outside a list of harmless ones is refused unless it
is trusted (`_tensorflow/scan.py`).
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from paritygate.converter.checkpoints.factories import build, is_factory
from paritygate.converter.checkpoints.sniffing import Form, is_first_for, look_at, refuse_foreign
from paritygate.converter.config import ExportConfig
from paritygate.converter.errors import ExportError, SourceError, SourceNotFound
from paritygate.converter.exporters._keras.model import is_keras_model, open_model
from paritygate.converter.exporters._tensorflow.checkpoints import restore_from
from paritygate.converter.exporters._tensorflow.frozen import open_frozen
from paritygate.converter.exporters._tensorflow.imports import import_module, import_tensorflow
from paritygate.converter.exporters._tensorflow.inputs import variables_kept
from paritygate.converter.exporters._tensorflow.keeping import files_to_keep
from paritygate.converter.exporters._tensorflow.modules import (
    is_concrete,
    is_function,
    is_module,
    open_function,
    open_module,
)
from paritygate.converter.exporters._tensorflow.saved_model import (
    is_loaded,
    open_concrete,
    open_loaded,
    open_saved_model,
)
from paritygate.converter.exporters.base import Exporter, SourceModel, Versions, Weights


class TensorFlowExporter(Exporter):
    """Exports what TensorFlow itself saves, and modules and functions of it."""

    name = "tensorflow"
    keeps_saved_models = True

    def recognises(self, source: Any) -> bool:
        """A SavedModel, frozen graph or checkpoint, by its content; a `tf.Module` or `tf.function`."""
        if isinstance(source, str | Path):
            return is_first_for(source, self.name)
        if is_keras_model(source):
            return False
        return is_module(source) or is_function(source) or is_concrete(source) or is_loaded(source)

    def versions(self) -> Versions:
        """TensorFlow and tf2onnx."""
        tensorflow = import_tensorflow()
        return Versions("tensorflow", tensorflow.__version__, "tf2onnx", import_module("tf2onnx").__version__)

    @contextmanager
    def open_source(self, source: Any, config: ExportConfig) -> Iterator[SourceModel]:
        """Load a file, call a factory, or take what is in memory; every variable of it is given back as it was."""
        import_tensorflow()
        weights = Weights()
        if isinstance(source, str | Path):
            if not is_factory(source) or Path(source).exists():
                with _opened(Path(source), config) as model:
                    yield model
                return
            _refuse_to_keep(str(source), config)
            built = build(str(source))
            source, weights = built.model, Weights(f"as built by {source}")
            config = _with_example(config, built.example)
        else:
            _refuse_to_keep("a model in memory", config)
        with variables_kept(source):
            yield open_in_memory(source, config, weights)


def open_in_memory(source: Any, config: ExportConfig, weights: Weights) -> SourceModel:
    """A model that stands in memory, whatever of TensorFlow's kinds it is.

    Raises:
        SourceError: If it is none of them.
    """
    if is_keras_model(source):
        return open_model(source, config, weights)
    if is_loaded(source):
        return open_loaded(source, config, weights)
    if is_module(source):
        return open_module(source, config, weights)
    if is_function(source):
        return open_function(source, config, weights)
    if is_concrete(source):
        return open_concrete(source, config, weights)
    raise SourceError(
        f"a {type(source).__module__}.{type(source).__qualname__} is no TensorFlow model; expected a tf.Module "
        "that can be called, a tf.function, a SavedModel, a frozen graph, or module:factory."
    )


@contextmanager
def _opened(path: Path, config: ExportConfig) -> Iterator[SourceModel]:
    """What lies at a path."""
    form = look_at(path)
    if form is None and not path.exists():
        raise SourceNotFound(f"there is no file or directory {path}.")
    refuse_foreign(path, TensorFlowExporter.name)
    if form is Form.SAVED_MODEL:
        model = open_saved_model(path, config)
        if config.keep_saved_model:
            with tempfile.TemporaryDirectory(prefix="paritygate-kept-") as folder:
                model.assets = files_to_keep(path, model, config, Path(folder))
                yield model
        else:
            yield model
        return
    _refuse_to_keep(str(path), config)
    if form is Form.FROZEN_GRAPH:
        yield open_frozen(path, config)
    elif form is Form.TF_CHECKPOINT:
        built, weights = restore_from(path, config)
        yield open_in_memory(built.model, _with_example(config, built.example), weights)
    else:
        raise SourceError(
            f"{path} is none of the forms that TensorFlow saves; expected a SavedModel directory, a frozen graph "
            "(.pb), or a checkpoint (its prefix, or the directory that holds it)."
        )


def _refuse_to_keep(what: str, config: ExportConfig) -> None:
    if config.keep_saved_model:
        raise ExportError(
            f"{what} is no SavedModel, so there is none to keep. Save one (tf.saved_model.save, model.export) and "
            "export that, or leave keep_saved_model out."
        )


def _with_example(config: ExportConfig, example: Any) -> ExportConfig:
    return replace(config, inputs=example) if config.inputs is None else config
