"""The PyTorch exporter: modules in memory, `.pt2` programs, weights with a factory, training checkpoints."""

from __future__ import annotations

import contextlib
import importlib.metadata
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from paritygate.converter.checkpoints.factories import build, is_factory
from paritygate.converter.checkpoints.files import existing_file, file_sha256
from paritygate.converter.config import ExportConfig
from paritygate.converter.errors import ExportError, FactoryError, SourceError
from paritygate.converter.exporters.base import Exporter, SourceModel, Versions, Weights
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

    if isinstance(source, torch.export.ExportedProgram):
        return _from_program(source, config, Weights())
    if isinstance(source, torch.nn.Module):
        return _from_module(source, config.inputs, Weights())
    if is_factory(source) and not Path(source).exists():
        return _from_factory(source, config)
    if isinstance(source, str | Path):
        return _from_file(existing_file(source), config)
    raise SourceError(
        f"a {type(source).__name__} is no PyTorch source; expected an nn.Module, an ExportedProgram, a file "
        f"({', '.join((*WEIGHT_SUFFIXES, PROGRAM_SUFFIX))}) or module:factory."
    )


def _from_factory(factory: str, config: ExportConfig) -> SourceModel:
    module, example = _build_module(factory)
    inputs = config.inputs if config.inputs is not None else example
    return _from_module(module, inputs, Weights(f"as built by {factory}"))


def _build_module(factory: str) -> tuple[torch.nn.Module, Any]:
    import torch

    built = build(factory)
    if not isinstance(built.model, torch.nn.Module):
        raise FactoryError(
            f"factory {factory} gave a {type(built.model).__name__}; "
            f"expected an nn.Module, or (nn.Module, example)."
        )
    return built.model, built.example


def _from_file(path: Path, config: ExportConfig) -> SourceModel:
    import torch

    from paritygate.converter.checkpoints import pytorch as files

    sha256 = file_sha256(path)
    if path.suffix == PROGRAM_SUFFIX:
        program = files.load_program(path, trust=config.trust)
        return _from_program(program, config, Weights("as in the exported program", sha256))
    content = files.load_file(path, trust=config.trust)
    if isinstance(content, torch.nn.Module):
        return _from_module(content, config.inputs, Weights("raw: whole module", sha256))
    state = files.select_state(content, path, config.weights)
    if config.factory is None:
        raise SourceError(
            f"{path} holds weights only; name the code that builds the network for them: "
            f"factory='module:function' (--factory)."
        )
    module, example = _build_module(config.factory)
    notes = files.load_into(module, state, path, config.factory)
    inputs = config.inputs if config.inputs is not None else example
    return _from_module(module, inputs, Weights(state.selection, sha256), notes)


def _from_program(
    program: torch.export.ExportedProgram, config: ExportConfig, weights: Weights
) -> SourceModel:
    from paritygate.converter.exporters._pytorch import programs

    return programs.open_program(program, config.inputs, weights)


def _from_module(
    module: torch.nn.Module, inputs: Any, weights: Weights, notes: Sequence[str] = ()
) -> SourceModel:
    from paritygate.converter.exporters._pytorch import snapshot, structure
    from paritygate.converter.exporters._pytorch.model import TorchModel, accepted_call

    inner, wrappers = snapshot.unwrap(module)
    said = [*notes, *(f"The module was taken out of its {wrapper}." for wrapper in wrappers)]
    twin = snapshot.inference_copy(inner)
    declared = declared_inputs(inputs)
    if declared is not None:
        plan = structure.plan_declared(twin, declared)
        return TorchModel(twin, plan, declared=declared, weights=weights, notes=said)
    if inputs is None:
        raise ExportError(
            "a PyTorch model does not say what it takes; give --samples x.npz, or "
            "--input 'x:float32[batch,3,32,32]'; in Python, inputs= takes example arrays or such texts."
        )
    return TorchModel(
        twin, accepted_call(twin, structure.plan_calls(twin, inputs)), weights=weights, notes=said
    )
