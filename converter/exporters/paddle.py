"""The PaddlePaddle exporter: layers in memory, saved programs, weights with a factory."""

from __future__ import annotations

import contextlib
import importlib.metadata
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from paritygate.converter.checkpoints.factories import build, is_factory
from paritygate.converter.checkpoints.files import existing_file, file_sha256
from paritygate.converter.checkpoints.sniffing import Form, is_first_for, look_at, refuse_foreign
from paritygate.converter.config import ExportConfig
from paritygate.converter.errors import ExportError, FactoryError, SourceError
from paritygate.converter.exporters.base import Exporter, SourceModel, Versions, Weights

if TYPE_CHECKING:
    import paddle

PARAMETERS_SUFFIXES = (".pdparams", ".pdopt")


class PaddleExporter(Exporter):
    """Exports through paddle.jit.save and paddle2onnx."""

    name: ClassVar[str] = "paddle"

    def recognises(self, source: Any) -> bool:
        """Whether a source is a paddle layer, or a file of its own forms."""
        if isinstance(source, str | Path):
            return is_first_for(source, self.name)
        return any(
            kind.__module__.partition(".")[0] == "paddle" and kind.__name__ == "Layer"
            for kind in type(source).__mro__
        )

    def versions(self) -> Versions:
        """PaddlePaddle and paddle2onnx."""
        return Versions(
            "paddle", _installed_paddle(), "paddle2onnx", importlib.metadata.version("paddle2onnx")
        )

    def refuse_early(self, source: Any, config: ExportConfig) -> None:
        """Weights without a factory, and files of other frameworks."""
        if isinstance(source, str | Path) and Path(source).exists():
            refuse_foreign(source, self.name)
            if _is_parameters(Path(source)):
                _require_factory(Path(source), config)

    @contextlib.contextmanager
    def open_source(self, source: Any, config: ExportConfig) -> Iterator[SourceModel]:
        """See `Exporter.open_source`; a layer is copied and never worked on."""
        _require_paddle()
        with tempfile.TemporaryDirectory(prefix="paritygate-paddle-") as scratch:
            yield _open(source, config, Path(scratch))


def _installed_paddle() -> str:
    """The version of the wheel that gives `paddle`: there is one for CPUs and one for GPUs."""
    for distribution in ("paddlepaddle", "paddlepaddle-gpu"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            return importlib.metadata.version(distribution)
    raise ExportError(
        "the PaddlePaddle exporter needs paddlepaddle, which is not installed here; "
        "run: pip install 'paritygate[paddle]'"
    )


def _require_paddle() -> None:
    _installed_paddle()
    try:
        importlib.metadata.version("paddle2onnx")
    except importlib.metadata.PackageNotFoundError as error:
        raise ExportError(
            "the PaddlePaddle exporter needs paddle2onnx, which is not installed here; "
            "run: pip install 'paritygate[paddle]'"
        ) from error


def _open(source: Any, config: ExportConfig, folder: Path) -> SourceModel:
    with warnings.catch_warnings():
        # It is for those who compile operators, which nobody does here.
        warnings.filterwarnings("ignore", message="No ccache found")
        import paddle

    from paritygate.converter.exporters._paddle.layers import LayerModel

    if isinstance(source, paddle.nn.Layer):
        return LayerModel(source, config.inputs, folder, Weights())
    if is_factory(source) and not Path(source).exists():
        layer, example = _build_layer(source)
        inputs = config.inputs if config.inputs is not None else example
        return LayerModel(layer, inputs, folder, Weights(f"as built by {source}"))
    if isinstance(source, str | Path):
        return _from_file(existing_file(source), config, folder)
    raise SourceError(
        f"a {type(source).__name__} is no PaddlePaddle source; expected a paddle.nn.Layer, a file (.json, "
        ".pdmodel, .pdparams) or module:factory."
    )


def _build_layer(factory: str) -> tuple[paddle.nn.Layer, Any]:
    import paddle

    built = build(factory)
    if not isinstance(built.model, paddle.nn.Layer):
        raise FactoryError(
            f"factory {factory} gave a {type(built.model).__name__}; "
            f"expected a paddle.nn.Layer, or (paddle.nn.Layer, example)."
        )
    return built.model, built.example


def _is_parameters(path: Path) -> bool:
    return path.suffix in PARAMETERS_SUFFIXES or look_at(path) in (Form.PADDLE_PARAMETERS, Form.PICKLE)


def _require_factory(path: Path, config: ExportConfig) -> str:
    if config.factory is None:
        raise SourceError(
            f"{path} holds weights only; name the code that builds the layer for them: "
            f"factory='module:function' (--factory)."
        )
    return config.factory


def _from_file(path: Path, config: ExportConfig, folder: Path) -> SourceModel:
    from paritygate.converter.exporters._paddle import parameters
    from paritygate.converter.exporters._paddle.layers import LayerModel
    from paritygate.converter.exporters._paddle.saved import PARAMETERS_SUFFIX, SavedProgram

    refuse_foreign(path, "paddle")
    sha256 = file_sha256(path)
    if _is_parameters(path):
        factory = _require_factory(path, config)
        arrays, selection = parameters.load_parameters(path, config.weights, trust=config.trust)
        layer, example = _build_layer(factory)
        notes = parameters.load_into(layer, arrays, path, factory)
        inputs = config.inputs if config.inputs is not None else example
        return LayerModel(layer, inputs, folder, Weights(selection, sha256), notes)
    if path.suffix == PARAMETERS_SUFFIX:
        raise SourceError(
            f"{path} holds the weights of a program; name the program beside it (.json, .pdmodel)."
        )
    return SavedProgram(
        path, folder, config.inputs, Weights("as in the saved program", sha256), trust=config.trust
    )
