"""Load Keras files, and weights into the network that a factory builds."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from paritygate.converter.errors import FactoryError, SourceError
from paritygate.converter.exporters._keras.model import is_keras_model
from paritygate.converter.exporters._tensorflow.imports import first_line

_SHOWN = 300
"""Characters of what Keras says that are told."""

_SEVERAL = re.compile(
    r"A total of (?P<count>\d+) objects could not be loaded\. Example error message for object "
    r"<(?P<kind>\w+) name=(?P<name>[^,>]+)[^\n]*\n(?P<said>.*?)(?:\n\s*List of objects that .*)?",
    re.DOTALL,
)
_SHAPES = re.compile(
    r"variable\.shape=\((?P<own>[\d, ]*)\), Received: value\.shape=\((?P<given>[\d, ]*)\)"
    r"(?:\. Target variable: <\w+ (?:path|name)=(?P<path>[^,>]+))?"
)
_WITHIN = "Exception encountered: "


def load_model(path: Path, *, trust: bool) -> Any:
    import keras

    try:
        return keras.saving.load_model(path, compile=False, safe_mode=not trust)
    except Exception as error:
        hint = ""
        if "register_keras_serializable" in str(error) or "Unknown" in str(error):
            hint = " It uses classes of its own: name the code that builds the model (--factory module:function)."
        raise SourceError(
            f"{path} cannot be loaded by Keras {keras.__version__}: {said_by(error)}{hint}"
        ) from error


def load_weights(model: Any, path: Path, factory: str) -> None:
    if not is_keras_model(model):
        raise FactoryError(f"factory {factory} gave a {type(model).__name__}; expected a keras.Model.")
    try:
        model.load_weights(path)
    except Exception as error:
        if "has not yet been built" in str(error):
            raise SourceError(
                f"the model that {factory} builds has no weights yet, so that those in {path} have no place; let "
                f"the factory call it once on an example, or build() it."
            ) from error
        raise SourceError(
            f"the weights in {path} do not fit the model that {factory} builds: "
            f"{said_by(error).rstrip('.')}. Use the factory and the settings that they were trained with."
        ) from error


def said_by(error: BaseException) -> str:
    """What is wrong, in one line of at most 300 characters, out of the many that Keras says where loading fails.

    It lists all parts that failed and says of one of them why; of parts within parts it says the cause last.
    """
    text = str(error).strip()
    several = _SEVERAL.fullmatch(text)
    if several is not None:
        part = f"{several['kind']} {several['name']!r}"
        many = int(several["count"])
        where = part if many == 1 else f"{many} layers, such as {part}"
        return _cut(f"{where}: {_reason(several['said'])}")
    if _WITHIN in text:
        return _cut(text.rpartition(_WITHIN)[2])
    return _reason(text) if _SHAPES.search(text) else first_line(error)


def _reason(text: str) -> str:
    """One reason as a line; the values of a variable are left out, as they fill pages."""
    shapes = _SHAPES.search(text)
    if shapes is None:
        return text
    variable = f"{shapes['path']} " if shapes["path"] else "a variable "
    given, own = ([int(size) for size in re.findall(r"\d+", shapes[name])] for name in ("given", "own"))
    return f"{variable}is {given} in the file, the model has {own}"


def _cut(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _SHOWN else line[:_SHOWN] + "..."
