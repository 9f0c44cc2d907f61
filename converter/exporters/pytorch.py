"""The PyTorch exporter: modules in memory, `.pt2` programs, weights with a factory, training checkpoints."""

from __future__ import annotations

import contextlib
import importlib.metadata
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from paritygate.converter.config import ExportConfig
from paritygate.converter.errors import ExportError, SourceError
from paritygate.converter.exporters.base import Exporter, SourceModel, Versions
from paritygate.converter.exporters.binding import declared_inputs

if TYPE_CHECKING:
    import torch

WEIGHT_SUFFIXES = (".pt", ".pth", ".safetensors")
"""Files that hold weights only; the network comes from a factory."""

PROGRAM_SUFFIX = ".pt2"


class PyTorchExporter(Exporter):
    """Exports through torch.export and torch.onnx (dynamo)."""

    name: ClassVar[str] = "pytorch"

    def recognises(self, source: Any) -> bool:
        """Whether a source is a torch module or program, or a file with a suffix that only torch writes."""
        if isinstance(source, str | Path):
            return Path(str(source)).suffix in (*WEIGHT_SUFFIXES, PROGRAM_SUFFIX)
        return any(
            kind.__module__.partition(".")[0] == "torch" and kind.__name__ in ("Module", "ExportedProgram")
            for kind in type(source).__mro__
        )

    def versions(self) -> Versions:
        """PyTorch, and torch.onnx with the onnxscript that it works with."""
        torch_version = importlib.metadata.version("torch")
        script = importlib.metadata.version("onnxscript")
        return Versions("pytorch", torch_version, "torch.onnx", f"{torch_version} (onnxscript {script})")

    @contextlib.contextmanager
    def open_source(self, source: Any, config: ExportConfig) -> Iterator[SourceModel]:
        """See `Exporter.open_source`; the user's module is copied and never worked on."""
        _require_torch()
        from paritygate.converter.exporters._pytorch.snapshot import untouched_process

        with untouched_process():
            yield _open(source, config)


def _require_torch() -> None:
    for package in ("torch", "onnxscript"):
        try:
            importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError as error:
            raise ExportError(
                f"the PyTorch exporter needs {package}, which is not installed here; "
                f"run: pip install 'paritygate[torch]'"
            ) from error


def _open(source: Any, config: ExportConfig) -> SourceModel:
    import torch

    if isinstance(source, torch.nn.Module):
        return _from_module(source, config)
    raise SourceError(
        f"a {type(source).__name__} is no PyTorch source; expected an nn.Module, an ExportedProgram, a file "
        f"({', '.join((*WEIGHT_SUFFIXES, PROGRAM_SUFFIX))}) or module:factory."
    )


def _from_module(module: torch.nn.Module, config: ExportConfig) -> SourceModel:
    from paritygate.converter.exporters._pytorch import snapshot, structure
    from paritygate.converter.exporters._pytorch.model import TorchModel

    inner, wrappers = snapshot.unwrap(module)
    notes = [f"Taken out of {wrapper}." for wrapper in wrappers]
    twin = snapshot.inference_copy(inner)
    declared = declared_inputs(config.inputs)
    if declared is not None:
        return TorchModel(twin, structure.plan_declared(twin, declared), declared=declared, notes=notes)
    if config.inputs is None:
        raise ExportError(
            "a PyTorch model does not say what it takes; give example inputs (inputs=), or declare them as in "
            "x:float32[batch,3,32,32]."
        )
    return TorchModel(twin, structure.plan_call(twin, config.inputs), notes=notes)
