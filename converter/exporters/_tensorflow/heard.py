"""What tf2onnx only logs: it goes on after an error and gives a graph that nothing can run."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from paritygate.converter.errors import ExportError, UnsupportedOperator
from paritygate.converter.exporters._tensorflow.imports import first_line


@contextmanager
def heard_errors() -> Iterator[list[logging.LogRecord]]:
    """Collect what tf2onnx logs as an error: it goes on after one and gives a graph that nothing can run."""
    heard: list[logging.LogRecord] = []
    handler = _Collector(heard)
    logger = logging.getLogger("tf2onnx")
    logger.addHandler(handler)
    try:
        yield heard
    finally:
        logger.removeHandler(handler)


class _Collector(logging.Handler):
    def __init__(self, heard: list[logging.LogRecord]) -> None:
        super().__init__(logging.ERROR)
        self._heard = heard

    def emit(self, record: logging.LogRecord) -> None:
        self._heard.append(record)


def raise_heard(
    heard: Sequence[logging.LogRecord], opset: int, line_of: Callable[[str, str], str | None]
) -> None:
    """Raise the first of the collected errors.

    Args:
        heard: What was logged.
        opset: The opset that was asked for.
        line_of: The user's line that made a node of a name and an operator, if it is known.

    Raises:
        UnsupportedOperator: If an operator has no form; named with the layer that uses it.
        ExportError: For anything else.
    """
    for record in heard:
        if record.msg.startswith("Tensorflow op [") and isinstance(record.args, tuple):
            node, operator = str(record.args[0]), str(record.args[1])
            line = line_of(node, operator)
            raise UnsupportedOperator(
                f"TensorFlow operator {operator} in {_layer(node)}{f' ({line})' if line else ''} has no ONNX form "
                f"at opset {opset}. "
                "Replace it by operators that have one, or move it out of the model.",
                operator=operator,
                module=_layer(node),
            )
    if heard:
        record = heard[0]
        cause = record.exc_info[1] if record.exc_info else None
        where = f" in {_layer(str(record.args[0]))}" if cause and isinstance(record.args, tuple) else ""
        said = first_line(cause) if cause else record.getMessage().splitlines()[0]
        raise ExportError(f"tf2onnx cannot convert the model{where}: {said}")


def _layer(node: str) -> str:
    return node.rsplit("/", 1)[0] if "/" in node else node
