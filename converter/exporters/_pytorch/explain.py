"""Turn what torch says of a failed capture or conversion into one line that names the place in the user's model."""

from __future__ import annotations

import contextlib
import logging
import re
import traceback
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from paritygate.converter.errors import ExportError, UnsupportedOperator

_SYMBOLIC_SHAPES = "torch.fx.experimental.symbolic_shapes"
_GUARD = re.compile(r"eval (?P<guard>.+?) \[guard added\] \((?P<place>[^)]*)\)")
_NO_FUNCTION = re.compile(r"No ONNX function found for <OpOverload\(op='([^']+)', overload='([^']+)'\)>")
_NODE = re.compile(r"Error when translating node %(\w+)")
_ANSI = re.compile(r"\x1b\[[0-9;]*m")


@dataclass
class GuardLog(logging.Handler):
    """The guards that torch.export adds while it captures, each with the user's line that asked for it."""

    guards: list[tuple[str, str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__(logging.INFO)

    __hash__ = logging.Handler.__hash__

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a record that tells of a guard."""
        found = _GUARD.search(record.getMessage())
        if found:
            self.guards.append((found["guard"], found["place"]))

    def why_fixed(self, size: int) -> str:
        """` (file:line in function)` of the guard that fixed a size, or an empty text where torch does not say."""
        fixing = re.compile(rf"^Eq\(\w+, {size}\)$|^Eq\({size}, \w+\)$")
        places = [place for guard, place in self.guards if fixing.match(guard)]
        return f", because of {places[0]}" if places else ""


@contextlib.contextmanager
def recorded_guards() -> Iterator[GuardLog]:
    """Listen to torch's shape reasoning, the only place where it says which line fixed a size.

    The messages are those of `TORCH_LOGS=dynamic`; where a version of torch words them otherwise, reasons only get
    shorter.
    """
    logger = logging.getLogger(_SYMBOLIC_SHAPES)
    level, propagate, handlers = logger.level, logger.propagate, list(logger.handlers)
    log = GuardLog()
    logger.handlers[:] = [log]
    logger.setLevel(logging.INFO)
    logger.propagate = False
    try:
        yield log
    finally:
        logger.handlers[:] = handlers
        logger.setLevel(level)
        logger.propagate = propagate


def conversion_error(
    error: Exception, program: torch.export.ExportedProgram, module: torch.nn.Module
) -> ExportError:
    """What a failed `torch.onnx.export` means: an operator without ONNX form, named with its module, or the first cause."""
    text = "\n".join(_ANSI.sub("", str(link)) for link in chain(error))
    missing = _NO_FUNCTION.search(text)
    node = _NODE.search(text)
    if missing is None:
        return ExportError(f"torch.onnx cannot convert the captured model: {first_line(deepest(error))}.")
    place = _module_of_node(program, node[1] if node else "", missing[1])
    operator = f"{missing[1].replace('.', '::')}.{missing[2]}".removesuffix(".default")
    return unsupported(operator, place, module)


def capture_error(error: Exception, module: torch.nn.Module) -> ExportError:
    """What a failed `torch.export` means, with the module and the line of the user's code that was at work."""
    place = _module_at_work(error, module)
    root = deepest(error)
    found = re.search(r"([\w]+)\.([\w]+)\.(\w+)", str(root))
    if any(type(link).__name__ == "UnsupportedOperatorException" for link in chain(error)) and found:
        return unsupported(f"{found[1]}::{found[2]}", place, module)
    line = user_line(error, module)
    where = f" in {describe(place, module)}" if place is not None else ""
    return ExportError(
        f"torch.export cannot capture the model{where}{f' ({line})' if line else ''}: {first_line(root)}. "
        f"Make that part traceable: no Python decision on a tensor's values."
    )


def unsupported(operator: str, place: str | None, module: torch.nn.Module) -> UnsupportedOperator:
    """The error for an operator without ONNX form."""
    where = f", used in {describe(place, module)}," if place is not None else ""
    return UnsupportedOperator(
        f"the operator {operator}{where} has no ONNX form in this exporter. Replace it, or compute it outside "
        f"the model.",
        operator=operator,
        module=place,
    )


def describe(place: str, module: torch.nn.Module) -> str:
    """A module's path and class, as in `encoder.spectral (Spectral)`."""
    kind = type(dict(module.named_modules()).get(place, module)).__name__
    return f"{place} ({kind})" if place else f"the model itself ({kind})"


def chain(error: BaseException) -> Iterator[BaseException]:
    """An exception and what caused it, the outermost first."""
    link: BaseException | None = error
    while link is not None:
        yield link
        link = link.__cause__ or link.__context__


def deepest(error: BaseException) -> BaseException:
    """The first cause."""
    return list(chain(error))[-1]


def first_line(error: BaseException) -> str:
    """The first line of an exception's text, with its type."""
    lines = [line.strip() for line in _ANSI.sub("", str(error)).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0].rstrip('.')}"[:300] if lines else type(error).__name__


def user_line(error: BaseException, module: torch.nn.Module) -> str | None:
    """`file.py:12` of the deepest frame that runs a method of the user's model, torch's own layers excepted."""
    for frame, number in reversed(_frames(error)):
        name = frame.f_code.co_filename
        if isinstance(frame.f_locals.get("self"), torch.nn.Module) and not _is_torch(name):
            return f"{Path(name).name}:{number}"
    return None


def _module_at_work(error: BaseException, module: torch.nn.Module) -> str | None:
    paths = {id(part): path for path, part in module.named_modules()}
    for frame, _ in reversed(_frames(error)):
        path = paths.get(id(frame.f_locals.get("self")))
        if path is not None:
            return path
    return None


def _frames(error: BaseException) -> list[tuple[Any, int]]:
    return [pair for link in chain(error) for pair in traceback.walk_tb(link.__traceback__)]


def _is_torch(filename: str) -> bool:
    return Path(torch.__file__).parent in Path(filename).parents


def _module_of_node(program: torch.export.ExportedProgram, name: str, operator: str) -> str | None:
    """The path of the module that a graph node came from; torch's decompositions keep that, not always the name."""
    nodes = list(program.graph.nodes)
    short = operator.split("::")[-1].split(".")[-1]
    for sought in (lambda n: n.name == name, lambda n: short in str(n.target)):
        for node in nodes:
            if sought(node) and node.meta.get("nn_module_stack"):
                path, _ = list(node.meta["nn_module_stack"].values())[-1]
                return strip_prefix(path)
    return None


PREFIX = "source"
"""Where the user's model stands inside the flat wrapper that is captured."""


def strip_prefix(path: str) -> str:
    """A path inside the wrapper as a path inside the user's model."""
    path = path.removeprefix("L['self'].").removeprefix("L__self___")
    return path.removeprefix(PREFIX).removeprefix(".")
