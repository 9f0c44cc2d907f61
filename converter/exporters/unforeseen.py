"""What an export says of an exception that nobody foresaw."""

from __future__ import annotations

import traceback
from pathlib import Path
from typing import Any

from paritygate.converter.errors import ConverterError, ExportError, SourceError
from paritygate.converter.exporters.ages import too_old
from paritygate.converter.exporters.probing import one_line

_OURS = Path(__file__).parents[2]


def in_words(error: Exception, source: Any, exporter: str) -> ConverterError | None:
    """The error that is raised instead of another one; None where that is already ours, or the user's own.

    Readers of files raise anything on what they do not expect, and a damaged file holds that. A model in memory is
    the user's own code: its exceptions are left as they are.

    Args:
        error: What was raised.
        source: What was to be exported.
        exporter: Its exporter's name.
    """
    if isinstance(error, MemoryError):
        said = f" ({error})" if str(error) else ""
        return ExportError(
            f"there is not enough memory here to export it{said}; give it more, or export smaller inputs."
        )
    if isinstance(error, SourceError):
        return None
    old = too_old(exporter)  # an old framework lacks what was added since, and fails in its own way
    if old is not None:
        return ExportError(f"{old}. Here it failed: {one_line(error)}")
    if isinstance(error, ConverterError) or not isinstance(source, str | Path) or _is_sentence(error):
        return None
    return SourceError(
        f"{source} is damaged, or holds something that exporter {exporter!r} does not foresee "
        f"({one_line(error)}). Save it again; if its own framework reads it, please report it with that message."
    )


def _is_sentence(error: Exception) -> bool:
    """Whether it is a ValueError of ours, which tells the caller of a bad argument."""
    frames = list(traceback.walk_tb(error.__traceback__))
    raised_in = Path(frames[-1][0].f_code.co_filename) if frames else Path()
    return isinstance(error, ValueError) and raised_in.is_relative_to(_OURS)
