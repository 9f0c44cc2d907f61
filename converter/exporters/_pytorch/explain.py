"""Turn what torch says of a failed capture into one line that names the place in the user's model."""

from __future__ import annotations

import contextlib
import logging
import re
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

import torch

from paritygate.converter.errors import ExportError, UnsupportedOperator

_SYMBOLIC_SHAPES = "torch.fx.experimental.symbolic_shapes"
_GUARD = re.compile(r"eval (?P<guard>.+?) \[guard added\]")
_NO_FUNCTION = re.compile(r"No ONNX function found for <OpOverload\(op='([^']+)', overload='([^']+)'\)>")
_CUSTOM = re.compile(r"no fake impl registered for <CustomOpDef\(([\w:]+)\)>")
_NODE = re.compile(r"Error when translating node %(\w+)")
_TRACED_LINE = re.compile(r'File "([^"]+)", line (\d+)')
_SYMBOL = re.compile(r"\b[su]\d+\b")
_NUMBER = re.compile(r"\b\d+\b")
_HUGE = 2**31
"""Larger numbers in a guard are torch's own bounds of what a size can be."""
_MOST_SIZES = 24
_ANSI = re.compile(r"\x1b\[[0-9;]*m")


class GuardLog(logging.Handler):
    """The guards that torch.export adds while it captures, each with the place in the model that caused it."""

    def __init__(self, module: torch.nn.Module) -> None:
        super().__init__(logging.INFO)
        self._module = module
        self.guards: list[tuple[str, str | None]] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a record that tells of a guard, with the line of the model that runs at this moment."""
        found = _GUARD.search(record.getMessage())
        if found:
            frames = list(traceback.walk_stack(sys._getframe()))
            self.guards.append((found["guard"], place_in_model(frames, self._module)))

    def compared_sizes(self, symbol: str) -> tuple[int, ...]:
        """Sizes around those at which a guard on one symbol alone changes: `Ne(s77, 37)`, `2*s77 <= 50`.

        torch.export keeps such guards to itself, and the branch that is not taken is not in the graph.
        """
        sizes: dict[int, None] = {}
        for guard, _ in self.guards:
            if set(_SYMBOL.findall(guard)) != {symbol}:
                continue
            numbers = [int(number) for number in _NUMBER.findall(guard)]
            limits = [*numbers, *(a // b for a in numbers for b in numbers if 1 < b < a)]
            sizes |= dict.fromkeys(near for n in limits for near in (n - 1, n, n + 1) if 0 < near < _HUGE)
        return tuple(sizes)[:_MOST_SIZES]

    def why_fixed(self, size: int) -> str:
        """`, because of <place>` of the first guard that fixed a size, or an empty text without one."""
        fixing = re.compile(rf"^Eq\(\w+, {size}\)$|^Eq\({size}, \w+\)$")
        places = [place for guard, place in self.guards if place is not None and fixing.match(guard)]
        return f", because of {places[0]}" if places else ""


@contextlib.contextmanager
def recorded_guards(module: torch.nn.Module) -> Iterator[GuardLog]:
    """Listen to torch's shape reasoning, the only place that says when a size is fixed, at the moment it is.

    The messages are those of `TORCH_LOGS=dynamic`; where a version of torch words them otherwise, reasons only
    get shorter.
    """
    logger = logging.getLogger(_SYMBOLIC_SHAPES)
    level, propagate, handlers = logger.level, logger.propagate, list(logger.handlers)
    log = GuardLog(module)
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
    """What a failed `torch.onnx.export` means: an operator without ONNX form, or the first cause."""
    text = "\n".join(_ANSI.sub("", str(link)) for link in chain(error))
    missing = _NO_FUNCTION.search(text)
    node = _NODE.search(text)
    if missing is None:
        return ExportError(f"torch.onnx cannot convert the captured model: {first_line(deepest(error))}.")
    found = _node_that_failed(program, node[1] if node else "", missing[1])
    operator = f"{missing[1].replace('.', '::')}.{missing[2]}".removesuffix(".default")
    return unsupported(operator, _module_of_node(found), module, _line_of_node(found))


def capture_error(error: Exception, module: torch.nn.Module) -> ExportError:
    """What a failed `torch.export` means, with the module and the line of the user's code that was at work."""
    frames = _frames(error)
    path, line = _module_at_work(frames, module), _line_at_work(frames)
    missing = next(
        (link for link in chain(error) if type(link).__name__ == "UnsupportedOperatorException"), None
    )
    if missing is not None:
        return unsupported(_operator_name(str(missing)), path, module, line)
    custom = _CUSTOM.search(str(deepest(error)))
    if custom is not None:
        return unsupported(custom[1], path, module, line)
    place = place_in_model(frames, module)
    if any(type(link).__name__ == "GuardOnDataDependentSymNode" for link in chain(error)):
        said = (
            "a Python decision hangs on the values of a tensor there; use torch.where or torch.cond instead"
        )
    else:
        said = f"{first_line(deepest(error))}. Make that part traceable"
    return ExportError(f"torch.export cannot capture {place or 'the model'}: {said}.")


def _operator_name(text: str) -> str:
    """`library::operator` from torch's spelling `library.operator.overload`."""
    parts = text.split(".")
    return "::".join(parts[:2]) if len(parts) >= 2 else text


def unsupported(
    operator: str, place: str | None, module: torch.nn.Module, line: str | None = None
) -> UnsupportedOperator:
    """The error for an operator without ONNX form; with the module and the line (`net.py:12`) that use it."""
    places = [describe(place, module)] if place is not None else []
    where = f", used in {', '.join([*places, *([line] if line else [])])}," if places or line else ""
    return UnsupportedOperator(
        f"the operator {operator}{where} has no ONNX form in this exporter. Replace it, or compute it outside "
        f"the model.",
        operator=operator,
        module=place,
    )


def describe(place: str, module: torch.nn.Module) -> str:
    """A module's path and class, as in `encoder.spectral (Spectral)`; `forward of Net` for the whole model."""
    kind = type(dict(module.named_modules()).get(place, module)).__name__
    return f"{place} ({kind})" if place else f"forward of {kind}"


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


def place_in_model(frames: Sequence[tuple[FrameType, int]], module: torch.nn.Module) -> str | None:
    """`encoder.0 (Block), net.py:12`: the innermost module of the model at work, and its innermost line."""
    path = _module_at_work(frames, module)
    line = _line_at_work(frames)
    where = [describe(path, module)] if path is not None else []
    return ", ".join([*where, *([line] if line else [])]) or None


def _line_at_work(frames: Sequence[tuple[FrameType, int]]) -> str | None:
    """`net.py:12`, the innermost line of the user's own modules."""
    return next((f"{Path(f.f_code.co_filename).name}:{n}" for f, n in frames if _is_users(f)), None)


def _is_users(frame: FrameType) -> bool:
    """Whether a frame runs a method of a module that is neither torch's nor ours."""
    name = frame.f_code.co_filename
    ours = Path(name).parent == Path(__file__).parent
    return isinstance(_own_self(frame), torch.nn.Module) and not ours and not _is_torch(name)


def _own_self(frame: FrameType) -> Any:
    """The first argument of the function that a frame runs, whatever its author calls it."""
    code = frame.f_code
    return frame.f_locals.get(code.co_varnames[0]) if code.co_argcount else None


def _module_at_work(frames: Sequence[tuple[FrameType, int]], module: torch.nn.Module) -> str | None:
    paths = {id(part): path for path, part in module.named_modules()}
    return next((paths[id(_own_self(f))] for f, _ in frames if id(_own_self(f)) in paths), None)


def _frames(error: BaseException) -> list[tuple[FrameType, int]]:
    """All frames of an exception and its causes, the innermost first."""
    return [pair for link in chain(error) for pair in traceback.walk_tb(link.__traceback__)][::-1]


def _is_torch(filename: str) -> bool:
    return Path(torch.__file__).parent in Path(filename).parents


def _node_that_failed(program: torch.export.ExportedProgram, name: str, operator: str) -> Any | None:
    """A graph node by its name, else by its operator: decompositions do not always keep the name."""
    nodes = list(program.graph.nodes)
    short = operator.split("::")[-1].split(".")[-1]
    tests: list[Callable[[Any], bool]] = [lambda n: n.name == name, lambda n: short in str(n.target)]
    return next((n for test in tests for n in nodes if test(n) and n.meta.get("nn_module_stack")), None)


def _module_of_node(node: Any | None) -> str | None:
    """The path of the module that a graph node came from."""
    if node is None:
        return None
    path, _ = list(node.meta["nn_module_stack"].values())[-1]
    return strip_prefix(str(path))


def _line_of_node(node: Any | None) -> str | None:
    """`net.py:12`, the innermost line outside of torch that a graph node came from."""
    lines = _TRACED_LINE.findall(str(node.meta.get("stack_trace") or "")) if node is not None else []
    own = [f"{Path(file).name}:{number}" for file, number in lines if not _is_torch(file)]
    return own[-1] if own else None


PREFIX = "source"
"""Where the user's model stands inside the flat wrapper that is captured."""


def strip_prefix(path: str) -> str:
    """A path inside the wrapper as a path inside the user's model."""
    path = path.removeprefix("L['self'].").removeprefix("L__self___")
    return path.removeprefix(PREFIX).removeprefix(".")
