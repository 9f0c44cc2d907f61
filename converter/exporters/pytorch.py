"""The PyTorch exporter: modules and scripts, programs, checkpoints with a factory, Hugging Face directories."""

from __future__ import annotations

import contextlib
import importlib.metadata
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from paritygate.converter.checkpoints.factories import build, is_factory
from paritygate.converter.checkpoints.files import existing_file, file_sha256
from paritygate.converter.checkpoints.hugging_face import CONFIG_FILE
from paritygate.converter.checkpoints.sniffing import Form, is_first_for, look_at
from paritygate.converter.config import ExportConfig
from paritygate.converter.errors import ExportError, FactoryError, SourceError, UnsafeSource
from paritygate.converter.exporters.base import Exporter, SourceModel, Versions, Weights
from paritygate.converter.exporters.binding import declared_inputs

if TYPE_CHECKING:
    import torch

    from paritygate.converter.exporters._pytorch.model import TorchModel

SUFFIXES = (".pt", ".pth", ".safetensors", ".pt2")
"""Names that only PyTorch writes; they decide where the content tells nothing."""


class PyTorchExporter(Exporter):
    """Exports through torch.export and torch.onnx, scripts through torch.onnx's exporter of TorchScript."""

    name: ClassVar[str] = "pytorch"

    def recognises(self, source: Any) -> bool:
        """Whether a source is a torch module or program, or a file or folder that holds one."""
        if isinstance(source, str | Path):
            return is_first_for(source, self.name) or (
                look_at(Path(source)) is None and Path(source).suffix in SUFFIXES
            )
        kinds = {(kind.__module__.partition(".")[0], kind.__name__) for kind in type(source).__mro__}
        if ("keras", "Model") in kinds:  # on its torch backend it is a torch module too
            return False
        return not kinds.isdisjoint({("torch", "Module"), ("torch", "ExportedProgram")})

    def modules_for(self, source: Any) -> tuple[str, ...]:
        """See `Exporter.modules_for`; only a Hugging Face folder needs transformers."""
        folder = isinstance(source, str | Path) and look_at(Path(source)) is Form.HUGGING_FACE
        return ("torch", "onnxscript", *(("transformers",) if folder else ()))

    def refuse_early(self, source: Any, config: ExportConfig) -> None:
        """See `Exporter.refuse_early`: forms that need trust are told by their look alone."""
        form = look_at(Path(source)) if isinstance(source, str | Path) else None
        if config.trust:
            return
        if form is Form.TORCHSCRIPT:
            raise _unsafe_script(Path(source))
        if form is Form.HUGGING_FACE:
            from paritygate.converter.checkpoints import hugging_face

            hugging_face.refuse_code(Path(source), trust=False)

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
        return _from_path(Path(source), config)
    raise SourceError(
        f"a {type(source).__name__} is no PyTorch source; expected an nn.Module, an ExportedProgram, a file "
        f"({', '.join(SUFFIXES)}, .ckpt), a Hugging Face model directory, or module:factory."
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


def _from_path(path: Path, config: ExportConfig) -> SourceModel:
    from paritygate.converter.checkpoints import pytorch as files

    form = look_at(path)
    if form is Form.HUGGING_FACE and config.factory is None:
        from paritygate.converter.exporters._pytorch import huggingface

        return huggingface.open_directory(path, config)
    existing_file(path)
    if form is Form.TORCHSCRIPT:
        if not config.trust:
            raise _unsafe_script(path)
        script = files.load_script(path)
        return _from_module(script, config.inputs, Weights("as in the script", file_sha256(path)))
    if form is Form.TORCH_PROGRAM or path.suffix == ".pt2":
        program = files.load_program(path, trust=config.trust)
        return _from_program(program, config, Weights("as in the exported program", file_sha256(path)))
    return _from_checkpoint(path, config)


def _unsafe_script(path: Path) -> UnsafeSource:
    return UnsafeSource(
        f"{path} is a TorchScript archive: its own code runs when it is loaded, and can read and write files; it "
        f"was not opened. Pass trust=True (--trust) if you made the file yourself, or save model.state_dict() and "
        f"give a factory."
    )


def _or_its_directory(path: Path) -> str:
    """Weights beside a `config.json` are those of a Hugging Face directory, which needs no factory."""
    beside = path.resolve().parent
    return (
        f", or give the directory {beside}, whose config.json names it"
        if (beside / CONFIG_FILE).is_file()
        else ""
    )


def _from_checkpoint(path: Path, config: ExportConfig) -> SourceModel:
    from paritygate.converter.checkpoints import pytorch as files
    from paritygate.converter.checkpoints import torch_state as states

    sha256 = file_sha256(path)
    checkpoint = files.load_file(path, trust=config.trust, whole=config.factory is None)
    module = files.whole_module(checkpoint, config.weights)
    if module is not None and config.factory is None:
        return _from_module(module, config.inputs, Weights("raw: whole module", sha256))
    state = states.select_state(checkpoint, config.weights)
    if config.factory is None:
        raise SourceError(
            f"{path} holds weights only; name the code that builds the network for them: "
            f"factory='module:function' (--factory){_or_its_directory(path)}."
        )
    module, example = _build_module(config.factory)
    notes = states.load_into(module, state, path, config.factory)
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
    from paritygate.converter.exporters._pytorch.model import accepted_call

    inner, wrappers = snapshot.unwrap(module)
    said = [*notes, *(f"The module was taken out of its {wrapper}." for wrapper in wrappers)]
    kind, twin = _prepared(inner)
    declared = declared_inputs(inputs)
    if declared is not None:
        plan = structure.plan_declared(twin, declared)
        return kind(twin, plan, declared=declared, weights=weights, notes=said)
    if inputs is None:
        raise ExportError(
            "a PyTorch model does not say what it takes; give --samples x.npz, or "
            "--input 'x:float32[batch,3,32,32]'; in Python, inputs= takes example arrays or such texts."
        )
    return kind(twin, accepted_call(twin, structure.plan_calls(twin, inputs)), weights=weights, notes=said)


def _prepared(module: torch.nn.Module) -> tuple[type[TorchModel], torch.nn.Module]:
    """How a module is exported, and the copy of it that is worked on."""
    import torch

    from paritygate.converter.exporters._pytorch import model, snapshot

    if isinstance(module, torch.jit.ScriptModule):
        from paritygate.converter.exporters._pytorch import scripted

        return scripted.ScriptedModel, scripted.inference_script(module)
    return model.TorchModel, snapshot.inference_copy(module)
