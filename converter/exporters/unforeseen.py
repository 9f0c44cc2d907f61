"""What an export says of an exception that nobody foresaw."""

from __future__ import annotations

import dis
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from paritygate.converter.errors import BundleError, ConverterError, ExportError, SourceError
from paritygate.converter.exporters.ages import too_old
from paritygate.converter.exporters.detection import taken_for_another
from paritygate.converter.exporters.named_source import SourceRejected, one_line

_OURS = Path(__file__).parents[2]


@contextmanager
def told(source: Any, exporter: str, *, reading: bool = False) -> Iterator[None]:
    """Raise in words of ours what is raised inside; see `in_words`.

    Args:
        source: What is to be exported.
        exporter: Its exporter's name.
        reading: Whether it is only being opened.
    """
    try:
        yield
    except BundleError:
        raise
    except Exception as error:
        said: ConverterError | None = taken_for_another(error, source, exporter)
        if said is None and not isinstance(error, SourceError):
            said = in_words(error, source, exporter, reading=reading)
        if said is None:
            raise
        raise said from error


def in_words(error: Exception, source: Any, exporter: str, *, reading: bool) -> ConverterError | None:
    """The error that is raised instead of another one; None where that is ours, the user's own, or the system's.

    Readers of files raise anything on what they do not expect, and a damaged file holds that. A model in memory is
    the user's own code: its exceptions are left as they are.
    """
    if isinstance(error, MemoryError):
        said = f" ({error})" if str(error) else ""
        return ExportError(
            f"there is not enough memory here to export it{said}; give it more, or export smaller inputs."
        )
    if isinstance(error, SourceRejected):
        return ExportError(f"the source refuses inputs like its example: {error}.")
    old = too_old(exporter)  # an old framework lacks what was added since, and fails in its own way
    if isinstance(error, ConverterError):
        # Its type tells callers what to do, so it stays; what was raised further in has said it already.
        if old is not None and not str(error).startswith(old):
            error.args = (f"{old}. Here it failed: {error}",)
        return None
    if old is not None:
        return ExportError(f"{old}. Here it failed: {one_line(error)}")
    if _is_raised_here(error) or _is_the_systems(error) or not _is_file(source):
        return None
    if reading:
        return SourceError(
            f"{source} is damaged, or holds something that exporter {exporter!r} does not foresee "
            f"({one_line(error)}). Save it again; if its own framework reads it, please report that message."
        )
    return ExportError(
        f"{source} could not be converted: exporter {exporter!r} does not foresee what it holds "
        f"({one_line(error)}). It may be damaged; if its own framework runs it, please report that message."
    )


def _is_file(source: Any) -> bool:
    return isinstance(source, str | Path) and (Path(source).exists() or Path(f"{source}.index").exists())


def _is_the_systems(error: Exception) -> bool:
    """Whether the system said no: a full disk is no fault of a file."""
    return isinstance(error, OSError) and error.errno is not None


def _is_raised_here(error: Exception) -> bool:
    """Whether a `raise` of ours told a caller of a bad argument, or an assertion of ours failed.

    What a builtin raises that our code called (`int`, `bytes.decode`) is not: the last instruction was a call.
    """
    if not isinstance(error, ValueError | AssertionError) or error.__traceback__ is None:
        return False
    last = error.__traceback__
    while last.tb_next is not None:
        last = last.tb_next
    code = last.tb_frame.f_code
    raised = dis.opname[code.co_code[last.tb_lasti]] in ("RAISE_VARARGS", "RERAISE")
    return raised and Path(code.co_filename).is_relative_to(_OURS)
