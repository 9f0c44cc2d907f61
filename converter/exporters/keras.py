"""Keras models become ONNX through tf2onnx: `.keras`, `.h5` of Keras 2 and 3, weights with a factory, in memory.

A Keras file can carry Python code: a Lambda layer holds marshalled bytecode, which runs when the model is called.
Such a file is refused before Keras sees it, unless it is trusted. Files are first looked into as a zip or HDF5
with JSON inside, so a half-written or foreign one gets a plain word instead of a traceback.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from paritygate.converter.checkpoints.factories import build, is_factory
from paritygate.converter.checkpoints.files import existing_file, file_sha256
from paritygate.converter.checkpoints.sniffing import look_at
from paritygate.converter.config import ExportConfig
from paritygate.converter.errors import ExportError, SourceError
from paritygate.converter.exporters._keras.files import HDF5_SUFFIXES, KERAS_SUFFIX, refuse_unreadable
from paritygate.converter.exporters._keras.loading import load_model, load_weights
from paritygate.converter.exporters._keras.model import is_keras_model, open_model
from paritygate.converter.exporters._tensorflow.imports import import_module, import_tensorflow
from paritygate.converter.exporters._tensorflow.inputs import variables_kept
from paritygate.converter.exporters.base import Exporter, SourceModel, Versions, Weights


class KerasExporter(Exporter):
    """Exports Keras models whose call takes and gives tensors."""

    name = "keras"

    def recognises(self, source: Any) -> bool:
        """A Keras archive or HDF5 file, by its content, or a Keras model."""
        if isinstance(source, str | Path):
            form = look_at(Path(source))
            # A file that is absent, empty or foreign is ours to explain where its name says that it is ours.
            named = Path(source).suffix.lower() in (KERAS_SUFFIX, *HDF5_SUFFIXES)
            return named if form is None else form.exporters[:1] == (self.name,)
        return is_keras_model(source)

    def refuse_early(self, source: Any, config: ExportConfig) -> None:
        """Look into a `.keras` file with the standard library; HDF5 is left to where h5py is."""
        if isinstance(source, Path) or not is_factory(source):
            path = existing_file(source)
            if config.factory is None and path.suffix.lower() == KERAS_SUFFIX:
                refuse_unreadable(path, trust=config.trust)

    def versions(self) -> Versions:
        """Keras with TensorFlow below it, and tf2onnx."""
        tensorflow, keras = import_tensorflow(), import_module("keras")
        framework = f"{keras.__version__}+tensorflow.{tensorflow.__version__}"
        return Versions("keras", framework, "tf2onnx", import_module("tf2onnx").__version__)

    @contextmanager
    def open_source(self, source: Any, config: ExportConfig) -> Iterator[SourceModel]:
        """Load a file, call a factory, or take a model in memory; every variable of it is given back as it was."""
        weights = Weights()
        if isinstance(source, str | Path):
            source, example, weights = _from_text(source, config)
            config = replace(config, inputs=example) if config.inputs is None else config
        _import_all()
        if not is_keras_model(source):
            raise SourceError(
                f"a {type(source).__module__}.{type(source).__qualname__} is not a Keras model; expected a "
                "keras.Model, the path of a .keras or .h5 file, or module:factory."
            )
        with variables_kept(source):
            yield open_model(source, config, weights)


def _from_text(source: str | Path, config: ExportConfig) -> tuple[Any, Any, Weights]:
    """The model that a path or `module:factory` stands for, the factory's example, and where it is from."""
    if is_factory(source) and not Path(source).exists():
        _import_all()
        built = build(str(source))
        return built.model, built.example, Weights(f"as built by {source}")
    path = existing_file(source)
    if config.factory is None:
        refuse_unreadable(path, trust=config.trust)
        _import_all()
        return load_model(path, trust=config.trust), None, Weights("as in the file", file_sha256(path))
    _import_all()
    built = build(config.factory)
    load_weights(built.model, path, config.factory)
    return built.model, built.example, Weights(f"weights of the file in {config.factory}", file_sha256(path))


def _import_all() -> None:
    import_tensorflow()
    backend = import_module("keras").backend.backend()
    if backend != "tensorflow":
        raise ExportError(
            f"Keras runs on {backend} here, and its ONNX road needs the tensorflow backend. Save the model as a "
            ".keras file and export that with `paritygate export`, or set KERAS_BACKEND=tensorflow."
        )
