"""Keep the exporter's own chatter away from the user's terminal and the user's warning filters."""

from __future__ import annotations

import contextlib
import io
import logging
import warnings
from collections.abc import Iterator

_LOGGERS = ("torch.onnx", "torch.export", "torch.fx", "torch._dynamo", "onnxscript", "onnx_ir")


@contextlib.contextmanager
def contained_noise() -> Iterator[None]:
    """Hold back warnings and log lines below ERROR of torch's exporter and its helpers.

    They speak of torch's own inner deprecations and of `torchvision` not being installed; what matters in them
    reaches the user as an error, a demotion or a note.
    """
    loggers = [logging.getLogger(name) for name in _LOGGERS]
    filters = [_BelowError() for _ in loggers]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with contextlib.ExitStack() as stack:
            for logger, silence in zip(loggers, filters, strict=True):
                stack.enter_context(_held(logger, silence))
            yield


@contextlib.contextmanager
def contained_prints() -> Iterator[None]:
    """Drop what torch's exporter prints: progress with emoji, whole graphs before an error."""
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        yield


class _BelowError(logging.Filter):
    def filter(self, record: logging.LogRecord) -> bool:
        return record.levelno >= logging.ERROR


@contextlib.contextmanager
def _held(logger: logging.Logger, silence: logging.Filter) -> Iterator[None]:
    """Filters act on a logger's own records only, so every handler that it would reach gets the filter too."""
    handlers = [handler for handler in logger.handlers if silence not in handler.filters]
    for target in (logger, *handlers):
        target.addFilter(silence)
    try:
        yield
    finally:
        for target in (logger, *handlers):
            target.removeFilter(silence)
