"""How the command line speaks: lines for people, one JSON object for machines, one line for an error."""

from __future__ import annotations

import json
import os
import traceback
from collections.abc import Mapping
from typing import Any

import typer
from rich.console import Console

from paritygate.converter.errors import printable

UsageError: Any = typer.BadParameter.__base__
"""What typer raises for a command line that it cannot read; it names only this subclass of it."""


def out() -> Console:
    """Standard output: colours on a terminal, plain lines elsewhere, never wrapped in a pipe."""
    return Console(soft_wrap=True, highlight=False)


def print_json(value: Mapping[str, Any]) -> None:
    """Write one JSON object on one line to standard output."""
    typer.echo(json.dumps(value, ensure_ascii=False, sort_keys=True, default=str))


def report_error(error: BaseException, *, as_json: bool) -> None:
    """Say on standard error, in one line, what went wrong; with `as_json` also as an object on standard output."""
    if os.environ.get("PARITYGATE_DEBUG") == "1":
        traceback.print_exception(error)
    text = describe(error)
    if as_json:
        print_json({"error": text, "kind": type(error).__name__})
    typer.echo(f"error: {text}", err=True)


def describe(error: BaseException) -> str:
    """One line for an error: our own sentence, the system's reason, or the name of what we did not foresee."""
    if any(cls.__module__.partition(".")[0] == "paritygate" for cls in type(error).__mro__):
        return _one_line(str(error))
    if isinstance(error, UsageError):
        return _one_line(f"{error.format_message()} See --help.")
    if isinstance(error, typer.Abort):
        return "interrupted; nothing more was done"
    if isinstance(error, KeyboardInterrupt | ValueError):
        # The libraries raise ValueError for a caller's bad argument, with a sentence that says so (docs of each).
        return _one_line(str(error))
    if isinstance(error, MemoryError):
        return _one_line(f"not enough memory: {str(error) or 'an allocation failed'}. Give smaller inputs.")
    if isinstance(error, OSError) and error.strerror:
        where = f": {error.filename}" if error.filename else ""
        return _one_line(f"{error.strerror}{where}")
    if isinstance(error, ImportError):
        return _one_line(f"{error}. Install the extra that brings it (README, Install).")
    return _one_line(f"unexpected {type(error).__name__}: {error} (PARITYGATE_DEBUG=1 shows where)")


_LONGEST = 4000
"""Characters of an error; names out of a file may be of any length."""


def _one_line(text: str) -> str:
    """Without breaks, and without what steers a terminal: an error repeats names that a file gave."""
    line = printable(" ".join(text.split()))
    return line if len(line) <= _LONGEST else f"{line[: _LONGEST - 1]}…"
