"""Keras models become ONNX through tf2onnx: `.keras`, `.h5` of Keras 2 and 3, weights with a factory, in memory.

A Keras file can carry Python code: a Lambda layer holds marshalled bytecode, which runs when the model is called.
Such a file is refused before Keras sees it, unless it is trusted. Files are first looked into as a zip or HDF5
with JSON inside, so a half-written or foreign one gets a plain word instead of a traceback.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import Any

from paritygate.converter.checkpoints.factories import build, is_factory
from paritygate.converter.checkpoints.files import existing_file, file_sha256
from paritygate.converter.checkpoints.sniffing import Form, look_at, refuse_foreign
from paritygate.converter.config import ExportConfig
from paritygate.converter.errors import SourceError
from paritygate.converter.exporters._keras.backends import open_foreign
from paritygate.converter.exporters._keras.files import (
    HDF5_SUFFIXES,
    KERAS_SUFFIX,
    refuse_foreign_data,
    refuse_unreadable,
)
from paritygate.converter.exporters._keras.loading import load_model, load_weights
from paritygate.converter.exporters._keras.model import is_keras_model, open_model
from paritygate.converter.exporters._tensorflow.checkpoints import restore_from
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
        path = Path(source)
        if (is_factory(source) and not path.exists()) or look_at(path) is Form.TF_CHECKPOINT:
            return
        refuse_foreign(path, self.name)
        existing_file(path)
        if config.factory is None and path.suffix.lower() == KERAS_SUFFIX:
            refuse_unreadable(path, trust=config.trust)

    def versions(self) -> Versions:
        """Keras with its backend below it, and tf2onnx."""
        keras = import_module("keras")
        backend = keras.backend.backend()
        below = import_tensorflow() if backend == "tensorflow" else import_module(backend)
        framework = f"{keras.__version__}+{backend}.{below.__version__}"
        return Versions("keras", framework, "tf2onnx", metadata.version("tf2onnx"))

    @contextmanager
    def open_source(self, source: Any, config: ExportConfig) -> Iterator[SourceModel]:
        """Load a file, call a factory, or take a model in memory; every variable of it is given back as it was."""
        weights = Weights()
        if isinstance(source, str | Path):
            self.refuse_early(source, config)
            _import_all()
            source, example, weights = _from_text(source, config)
            config = replace(config, inputs=example) if config.inputs is None else config
        if not is_keras_model(source):
            raise SourceError(
                f"a {type(source).__module__}.{type(source).__qualname__} is not a Keras model; expected a "
                "keras.Model, the path of a .keras or .h5 file, or module:factory."
            )
        backend = _backend_of(source)
        with variables_kept(source):
            if backend == "tensorflow":
                import_tensorflow()
                yield open_model(source, config, weights)
            else:
                yield open_foreign(source, backend, config, weights)


def _backend_of(model: Any) -> str:
    """The backend that a model runs on; tf_keras knows no other than TensorFlow."""
    packages = {kind.__module__.split(".")[0] for kind in type(model).__mro__}
    return "tensorflow" if "tf_keras" in packages else str(import_module("keras").backend.backend())


def _import_all() -> None:
    if import_module("keras").backend.backend() == "tensorflow":
        import_tensorflow()


def _from_text(source: str | Path, config: ExportConfig) -> tuple[Any, Any, Weights]:
    """The model that a path or `module:factory` stands for, the factory's example, and where it is from."""
    path = Path(source)
    if is_factory(source) and not path.exists():
        built = build(str(source))
        return built.model, built.example, Weights(f"as built by {source}")
    if look_at(path) is Form.TF_CHECKPOINT:
        built, weights = restore_from(path, config)
        return built.model, built.example, weights
    if config.factory is None:
        if path.suffix.lower() != KERAS_SUFFIX:
            refuse_unreadable(path, trust=config.trust)
        return load_model(path, trust=config.trust), None, Weights("as in the file", file_sha256(path))
    if look_at(path) is Form.HDF5:
        refuse_foreign_data(path, trust=config.trust)
    built = build(config.factory)
    load_weights(built.model, path, config.factory)
    return built.model, built.example, Weights(f"weights of the file in {config.factory}", file_sha256(path))
