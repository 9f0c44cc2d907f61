"""Which line of the user's code made an operator of a traced graph, as TensorFlow remembers it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import paritygate.converter

_OURS = str(Path(paritygate.converter.__file__).parent)
_READ_FROM_FILES = ("tensorflow/python/saved_model/", "tensorflow/python/framework/importer.py")
_FRAMEWORKS = ("tensorflow", "keras", "tf_keras", "tf2onnx", "wrapt")


def source_line(graph: Any, node: str, operator: str) -> str | None:
    """`file:line` of the code that made an operator.

    Args:
        graph: The traced `FuncGraph` before its functions were inlined.
        node: The operator's name after that, which may have gained scopes in front.
        operator: Its type.

    Returns:
        None where no code of the user's made it: a framework's own layer, or a graph read from a file.
    """
    made = [op for each in _graphs(graph, set()) for op in each.get_operations() if op.type == operator]
    fitting = [op for op in made if node == op.name or node.endswith(f"/{op.name}")] or made
    lines = {_line(op.traceback) for op in fitting}
    return lines.pop() if len(lines) == 1 else None


def _graphs(graph: Any, seen: set[int]) -> Iterator[Any]:
    """A graph and those of the functions that it calls."""
    if graph is None or id(graph) in seen:
        return
    seen.add(id(graph))
    yield graph
    for function in getattr(graph, "_functions", {}).values():
        yield from _graphs(getattr(function, "graph", None), seen)


def _line(traceback: Any) -> str | None:
    """The innermost frame of the user's, below the call with which an export traces the model."""
    frames = list(traceback or ())  # a graph read from a file may have none
    last = max((k for k, frame in enumerate(frames) if frame.filename.startswith(_OURS)), default=-1)
    frames = frames[last + 1 :]
    if any(part in frame.filename.replace("\\", "/") for frame in frames for part in _READ_FROM_FILES):
        return None
    own = [frame for frame in frames if not frame.filename.startswith(_framework_folders())]
    return f"{Path(own[-1].filename).name}:{own[-1].lineno}" if own else None


def _framework_folders() -> tuple[str, ...]:
    files = (getattr(sys.modules.get(name), "__file__", None) for name in _FRAMEWORKS)
    return tuple(str(Path(file).parent) for file in files if file)
