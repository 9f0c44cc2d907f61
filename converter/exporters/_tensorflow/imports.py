"""Import TensorFlow, Keras and tf2onnx, or say in one line why this process cannot export with them."""

from __future__ import annotations

import importlib
import importlib.util
import re
from typing import Any

from paritygate.converter.errors import ExportError

OLDEST_TENSORFLOW = (2, 16)
"""The first release that brings Keras 3 and runs on the Pythons of this package without NumPy 1 alone."""

_NO_NEWS = (
    "Graph execution error", "Exception encountered when calling", "Detected at node", "<stack traces", "[[",
    "Arguments received", "Node:", "in user code", "File ",
)  # fmt: skip


def import_module(module: str) -> Any:
    """A module that an export needs.

    Raises:
        ExportError: If it cannot be imported here; says where to export instead.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ExportError(
            f"exporting a TensorFlow or Keras model needs {module}, which cannot be imported here ({error}). "
            "Install paritygate[tensorflow], or export the saved model with `paritygate export`, which uses an "
            "environment of its own."
        ) from error


def import_tensorflow() -> Any:
    """TensorFlow, with tf2onnx known to be there.

    Raises:
        ExportError: If either is missing, or TensorFlow is too old.
    """
    tensorflow = import_module("tensorflow")
    check_age(str(tensorflow.__version__))
    import_module("tf2onnx")
    return tensorflow


def check_age(version: str) -> None:
    """Refuse a TensorFlow that is older than what tf2onnx's graphs are tested with.

    Raises:
        ExportError: Saying how to export from such an image all the same.
    """
    found = tuple(int(part) for part in re.findall(r"\d+", version)[:2])
    if found < OLDEST_TENSORFLOW:
        oldest = ".".join(map(str, OLDEST_TENSORFLOW))
        raise ExportError(
            f"TensorFlow {version} is older than {oldest}, the oldest that exports in its own process. Write a "
            "SavedModel, an .h5 file or a checkpoint there, and export it elsewhere with `paritygate export`."
        )


def is_there(module: str) -> bool:
    """Whether a module is installed, without importing it."""
    return importlib.util.find_spec(module) is not None


def first_line(error: BaseException) -> str:
    """The first line of an exception's text, or its type; cut to 300 characters."""
    line = (str(error).strip().splitlines() or [type(error).__name__])[0]
    return line if len(line) <= 300 else line[:300] + "..."


def telling_line(error: BaseException) -> str:
    """The line in which TensorFlow or Keras says what is wrong, out of the many that say where."""
    text = re.sub(r"\x1b\[\d*m", "", str(error))
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    raised = [line for line in lines if "in user code" in text and re.match(r"\w*(Error|Exception): ", line)]
    telling = (
        raised or [line for line in lines if not line.startswith(_NO_NEWS)] or lines or [type(error).__name__]
    )
    return telling[0].split(" [Op:")[0][:300]
