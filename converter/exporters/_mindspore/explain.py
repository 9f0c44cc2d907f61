"""What MindSpore says of a failure, as one line."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

import numpy as np

from paritygate.converter.errors import ExportError, UnsupportedOperator
from paritygate.converter.exporters._mindspore.mindir import Node, Program
from paritygate.converter.exporters._mindspore.scopes import Scope
from paritygate.converter.types import Array, DType

_PLACE = re.compile(r"In file (?P<file>[^\s:,]+?):(?P<line>\d+)")
_OURS = "_paritygate_flat_cell"


class Refused(Exception):
    """The cell refused its inputs; the text is MindSpore's own first sentence."""


def refused(error: Exception) -> Exception:
    """An error of a run with its noise taken off."""
    return (
        error if isinstance(error, ExportError) else Refused(f"{type(error).__name__}: {first_line(error)}")
    )


def first_line(error: BaseException) -> str:
    """The first sentence of an error, without the frames of MindSpore's own code."""
    for line in str(error).splitlines():
        said = line.strip().rstrip(".")
        if said and not set(said) <= set("-=") and not said.startswith(("- C++", "- The")):
            return said[:300]
    return type(error).__name__


def place_of(error: BaseException) -> str:
    """`, net.py:12` of the user's line at fault, or an empty text."""
    for match in _PLACE.finditer(str(error)):
        if "site-packages" not in match["file"] and _OURS not in match["file"]:
            return f", {match['file'].rpartition('/')[2]}:{match['line']}"
    return ""


def not_compiled(error: Exception) -> ExportError:
    """Why MindSpore's compiler does not take a cell."""
    return ExportError(
        f"MindSpore cannot compile the cell as a graph{place_of(error)}: {first_line(error)}. Make that part such "
        f"that the cell runs in graph mode."
    )


def unsupported(node: Node, reason: str, cell: Any = None) -> UnsupportedOperator:
    """The error for a primitive without an ONNX form.

    Args:
        node: What has none.
        reason: Why, to follow the operator's name.
        cell: The user's cell, where there is one: MindIR carries no lines, so its class tells the place.
    """
    scope = Scope.parse(node.scope)
    place = "" if cell is None else source_place(cell, scope.path, node.called)
    return UnsupportedOperator(
        f"the operator {node.called}, used in {scope}{place}, {reason}. Replace it, or compute it outside the "
        f"model.",
        operator=node.called,
        module=scope.path or None,
    )


def source_place(cell: Any, path: str, operator: str) -> str:
    """`, net.py:12` of the call in the user's own code, or of the `construct` around it; else an empty text.

    Args:
        cell: The user's cell.
        path: The place of the part that uses the operator, names joined by dots.
        operator: Its name, which a call of it often has too.
    """
    parts, around = dict(cell.cells_and_names()), path
    while around and (around not in parts or _is_library(parts[around])):
        around = around.rpartition(".")[0]
    owner = parts.get(around, cell)
    if _is_library(owner):
        return ""
    construct = type(owner).construct
    try:
        lines, first = inspect.getsourcelines(construct)
        file = Path(inspect.getsourcefile(construct) or "").name
    except (OSError, TypeError):
        return ""
    called = re.compile(rf"\b{re.escape(operator)}\(", re.IGNORECASE)
    found = [number for number, line in enumerate(lines, first) if called.search(line)]
    return f", {file}:{found[0] if len(found) == 1 else first}"


def _is_library(cell: Any) -> bool:
    return type(cell).__module__.partition(".")[0] == "mindspore"


def refuse_state(program: Program, stateful: set[str]) -> None:
    """Refuse a cell that changes its own weights while it answers.

    Raises:
        ExportError: Naming the primitive and the cell.
    """
    for graph in program.graphs():
        for node in graph.nodes.values():
            if node.primitive and node.called in stateful:
                raise ExportError(
                    f"{Scope.parse(node.scope)} changes a weight while it answers ({node.called}); a served model "
                    f"keeps no state. Give the state as an input and take it as an output."
                )


def dtype_of(array: Array, name: str) -> DType:
    """The type of an input.

    Raises:
        ExportError: If no served model may have it.
    """
    try:
        return DType.from_numpy(array.dtype)
    except ValueError as error:
        raise ExportError(f"input {name!r}: {error}") from error


def is_float(array: Any) -> bool:
    """Whether an array holds floats, bfloat16 too."""
    return np.issubdtype(array.dtype, np.floating) or array.dtype.name == "bfloat16"
