"""The MindSpore exporter: cells in memory or from a factory, checkpoints with a factory, MindIR files."""

from __future__ import annotations

import contextlib
import importlib.metadata
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

from paritygate.converter.checkpoints.factories import build, is_factory
from paritygate.converter.checkpoints.files import existing_file, file_sha256
from paritygate.converter.checkpoints.sniffing import Form, is_first_for, look_at
from paritygate.converter.config import ExportConfig
from paritygate.converter.errors import ExportError, FactoryError, SourceError
from paritygate.converter.exporters.base import Exporter, SourceModel, Versions, Weights
from paritygate.converter.exporters.binding import declared_inputs

TRANSLATOR = "paritygate.mindir"
"""What writes the graph: our own translation of MindIR, since MindSpore's ends at opset 11."""


class MindSporeExporter(Exporter):
    """Exports through MindIR, which MindSpore compiles a cell to, and our own table of its primitives."""

    name: ClassVar[str] = "mindspore"
    modules: ClassVar[tuple[str, ...]] = ("mindspore",)

    def recognises(self, source: Any) -> bool:
        """Whether a source is a Cell, or a file that only MindSpore writes."""
        if isinstance(source, str | Path):
            return is_first_for(source, self.name) or (
                look_at(Path(source)) is None and Path(source).suffix == ".mindir"
            )
        return any(
            kind.__name__ == "Cell" and kind.__module__.partition(".")[0] == "mindspore"
            for kind in type(source).__mro__
        )

    def versions(self) -> Versions:
        """MindSpore, and our translation of its MindIR."""
        version = importlib.metadata.version("mindspore")
        return Versions("mindspore", version, TRANSLATOR, f"2 (onnx {importlib.metadata.version('onnx')})")

    def refuse_early(self, source: Any, config: ExportConfig) -> None:
        """See `Exporter.refuse_early`: a checkpoint without the code that builds its network."""
        path = Path(source) if isinstance(source, str | Path) else None
        if path is not None and path.exists() and not _is_program(path):
            _require_factory(path, config)

    @contextlib.contextmanager
    def open_source(self, source: Any, config: ExportConfig) -> Iterator[SourceModel]:
        """See `Exporter.open_source`; the user's cell is copied and never worked on."""
        _require_mindspore()
        from paritygate.converter.exporters._mindspore.cells import untouched_process

        with untouched_process():
            yield _open(source, config)


def _require_mindspore() -> None:
    try:
        importlib.metadata.version("mindspore")
    except importlib.metadata.PackageNotFoundError as error:
        raise ExportError(
            "the MindSpore exporter needs mindspore, which is not installed here; `paritygate export` runs it in "
            "an environment of its own, or run: pip install 'paritygate[mindspore]'"
        ) from error


def _open(source: Any, config: ExportConfig) -> SourceModel:
    from mindspore import nn

    if isinstance(source, nn.Cell):
        return _from_cell(source, config.inputs, Weights())
    if is_factory(source) and not Path(source).exists():
        cell, example = _build_cell(source)
        inputs = config.inputs if config.inputs is not None else example
        return _from_cell(cell, inputs, Weights(f"as built by {source}"))
    if isinstance(source, str | Path):
        return _from_file(existing_file(source), config)
    raise SourceError(
        f"a {type(source).__name__} is no MindSpore source; expected an nn.Cell, a file (.ckpt, .safetensors, "
        f".mindir), or module:factory."
    )


def _build_cell(factory: str) -> tuple[Any, Any]:
    from mindspore import nn

    built = build(factory)
    if not isinstance(built.model, nn.Cell):
        raise FactoryError(
            f"factory {factory} gave a {type(built.model).__name__}; expected an nn.Cell, or (nn.Cell, example)."
        )
    return built.model, built.example


def _is_program(path: Path) -> bool:
    return look_at(path) is Form.MINDIR or path.suffix == ".mindir"


def _require_factory(path: Path, config: ExportConfig) -> str:
    if config.factory is None:
        raise SourceError(
            f"{path} holds weights only; name the code that builds the network for them: "
            f"factory='module:function' (--factory)."
        )
    return config.factory


def _from_file(path: Path, config: ExportConfig) -> SourceModel:
    if _is_program(path):
        from paritygate.converter.exporters._mindspore import files

        return files.open_mindir(path, config)
    return _from_checkpoint(path, config)


def _from_checkpoint(path: Path, config: ExportConfig) -> SourceModel:
    from paritygate.converter.exporters._mindspore import checkpoints

    factory = _require_factory(path, config)
    weights = checkpoints.read_checkpoint(path)
    cell, example = _build_cell(factory)
    notes = checkpoints.load_into(cell, weights, path, factory, config.weights)
    inputs = config.inputs if config.inputs is not None else example
    selection = "raw" if config.weights is None else f"entries under {config.weights}"
    return _from_cell(cell, inputs, Weights(selection, file_sha256(path)), notes)


def _from_cell(cell: Any, inputs: Any, weights: Weights, notes: Sequence[str] = ()) -> SourceModel:
    from paritygate.converter.exporters._mindspore import calls, cells
    from paritygate.converter.exporters._mindspore.model import CellModel

    twin = cells.inference_copy(cell)
    declared = declared_inputs(inputs)
    if declared is not None:
        return CellModel(
            twin, calls.plan_declared(twin, declared), declared=declared, weights=weights, notes=notes
        )
    if inputs is None:
        raise ExportError(
            "a MindSpore cell does not say what it takes; give --samples x.npz, or "
            "--input 'x:float32[batch,3,32,32]'; in Python, inputs= takes example arrays or such texts."
        )
    return CellModel(twin, calls.plan_example(twin, inputs), weights=weights, notes=notes)
