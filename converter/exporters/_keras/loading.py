"""Load Keras files, and weights into the network that a factory builds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from paritygate.converter.errors import FactoryError, SourceError
from paritygate.converter.exporters._keras.model import is_keras_model
from paritygate.converter.exporters._tensorflow.imports import first_line


def load_model(path: Path, *, trust: bool) -> Any:
    import keras

    try:
        return keras.saving.load_model(path, compile=False, safe_mode=not trust)
    except Exception as error:
        hint = ""
        if "register_keras_serializable" in str(error) or "Unknown" in str(error):
            hint = " It uses classes of its own: name the code that builds the model (--factory module:function)."
        raise SourceError(
            f"{path} cannot be loaded by Keras {keras.__version__}: {first_line(error)}{hint}"
        ) from error


def load_weights(model: Any, path: Path, factory: str) -> None:
    if not is_keras_model(model):
        raise FactoryError(f"factory {factory} gave a {type(model).__name__}; expected a keras.Model.")
    try:
        model.load_weights(path)
    except Exception as error:
        raise SourceError(
            f"the weights in {path} do not fit the model that {factory} builds: {first_line(error)}"
        ) from error
