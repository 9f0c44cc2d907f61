"""The JAX exporter: functions, Flax modules, and checkpoints of Orbax and flax.serialization with a factory."""

from __future__ import annotations

import contextlib
import functools
import importlib.metadata
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

from paritygate.converter.checkpoints.factories import build, is_factory
from paritygate.converter.checkpoints.sniffing import is_first_for
from paritygate.converter.config import ExportConfig
from paritygate.converter.errors import ExportError, SourceError
from paritygate.converter.exporters.base import Exporter, SourceModel, Versions, Weights


class JaxExporter(Exporter):
    """Exports what JAX itself traces, through jax2onnx's lowerings of JAX's primitives."""

    name: ClassVar[str] = "jax"
    modules: ClassVar[tuple[str, ...]] = ("jax", "jax2onnx")

    def recognises(self, source: Any) -> bool:
        """Whether a source is a Flax module, a function that works with JAX, or a checkpoint of either."""
        if isinstance(source, str | Path):
            return is_first_for(source, self.name)
        if isinstance(source, tuple) and len(source) == 2:
            model, params = source
            takes = _works_with_jax(model) or (callable(model) and _holds_arrays(params))
            return _is_flax(model) or takes
        return _is_flax(source) or _works_with_jax(source)

    def versions(self) -> Versions:
        """JAX, and jax2onnx."""
        version = importlib.metadata.version
        return Versions("jax", version("jax"), "jax2onnx", version("jax2onnx"))

    def refuse_early(self, source: Any, config: ExportConfig) -> None:
        """See `Exporter.refuse_early`: a checkpoint without the code that builds its network."""
        if isinstance(source, str | Path) and Path(source).exists():
            _require_factory(Path(source), config)

    @contextlib.contextmanager
    def open_source(self, source: Any, config: ExportConfig) -> Iterator[SourceModel]:
        """See `Exporter.open_source`; a module's state is copied and never written."""
        _require("jax", "jax2onnx")
        yield _open(source, config)


def _require(*packages: str) -> None:
    for package in packages:
        try:
            importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError as error:
            raise ExportError(
                f"the JAX exporter needs {package}, which is not installed here; run: "
                f"pip install 'paritygate[jax]'"
            ) from error


def _open(source: Any, config: ExportConfig) -> SourceModel:
    from paritygate.converter.exporters._jax.model import JaxModel
    from paritygate.converter.exporters._jax.sources import is_linen, open_callee

    if is_factory(source) and not Path(source).exists():
        built = build(source)
        weights = Weights(f"as built by {source}")
        if is_linen(built.model) and built.model.scope is None and built.example is not None:
            return JaxModel(open_callee((built.model, built.example)), config.inputs, weights=weights)
        inputs = config.inputs if config.inputs is not None else built.example
        return JaxModel(open_callee(built.model), inputs, weights=weights)
    if isinstance(source, str | Path):
        return _from_checkpoint(Path(source), config)
    return JaxModel(open_callee(source), config.inputs)


def _require_factory(path: Path, config: ExportConfig) -> str:
    if config.factory is None:
        raise SourceError(
            f"{path} holds weights only; name the code that builds the network for them: "
            f"factory='module:function' (--factory)."
        )
    return config.factory


def _from_checkpoint(path: Path, config: ExportConfig) -> SourceModel:
    factory = _require_factory(path, config)
    _require("flax")
    from paritygate.converter.checkpoints import flax as files
    from paritygate.converter.exporters._jax.fitting import fit
    from paritygate.converter.exporters._jax.model import JaxModel
    from paritygate.converter.exporters._jax.sources import open_callee

    checkpoint = files.read(path)
    model, inputs, weights, notes = fit(build(factory), checkpoint, config)
    return JaxModel(open_callee(model), inputs, weights=weights, notes=notes)


# --- whose is it: asked without importing anything ----------------------------------------------------------


def _is_flax(value: Any) -> bool:
    modules = ("flax.nnx.module", "flax.linen.module")
    return any(kind.__module__ in modules and kind.__name__ == "Module" for kind in type(value).__mro__)


def _is_jax(value: Any) -> bool:
    """Whether a value is an array, a function or a module of jax or flax."""
    name = (
        value.__name__
        if isinstance(value, types.ModuleType)
        else (getattr(value, "__module__", None) if callable(value) else type(value).__module__)
    )
    return isinstance(name, str) and name.partition(".")[0] in ("jax", "jaxlib", "flax")


def _holds_arrays(tree: Any, depth: int = 32) -> bool:
    if isinstance(tree, dict):
        tree = list(tree.values())
    if isinstance(tree, list | tuple):
        return depth > 0 and any(_holds_arrays(part, depth - 1) for part in tree)
    return type(tree).__module__.partition(".")[0] == "jaxlib"


def _works_with_jax(value: Any) -> bool:
    """Whether a function is one of JAX's, or its code names something of jax or flax."""
    if "jax" not in sys.modules:
        return False
    if isinstance(value, functools.partial):
        return _works_with_jax(value.func) or _holds_arrays([*value.args, *value.keywords.values()])
    if type(value).__module__.startswith("jaxlib") and callable(value):
        return True
    if not isinstance(value, types.FunctionType | types.MethodType):
        return False
    function = value.__func__ if isinstance(value, types.MethodType) else value
    held = [cell.cell_contents for cell in function.__closure__ or () if _is_filled(cell)]
    named = [function.__globals__.get(name) for name in _names(function.__code__)]
    parts = [part for part in (*held, *named) if part is not None]
    return any(_is_jax(part) or _is_flax(part) or _holds_arrays(part) for part in parts)


def _names(code: types.CodeType) -> set[str]:
    inner = (const for const in code.co_consts if isinstance(const, types.CodeType))
    return set(code.co_names).union(*(_names(part) for part in inner))


def _is_filled(cell: Any) -> bool:
    try:
        cell.cell_contents  # noqa: B018 - an empty cell raises
    except ValueError:
        return False
    return True
