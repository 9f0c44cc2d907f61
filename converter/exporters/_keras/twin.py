"""The same Keras model in double precision."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np

from paritygate.converter.exporters._keras.calls import packed_call
from paritygate.converter.exporters._tensorflow.calls import Call
from paritygate.converter.types import Array, DType

_TWIN_LIMIT_BYTES = 4 * 2**30
_NARROW_POLICIES = ("float16", "bfloat16", "float32", "mixed_float16", "mixed_bfloat16")


def twin_builder(model: Any, *, trust: bool) -> Callable[[], Call] | None:
    """Builds the double-precision twin; None for a model whose twin would fill the memory.

    Args:
        model: The model.
        trust: Whether code that its configuration carries, as that of a Lambda layer, may be run.
    """
    if model.count_params() * 8 > _TWIN_LIMIT_BYTES:
        return None

    def build() -> Call:
        with _unsafe(model) if trust else nullcontext():
            return packed_call(_double_precision(model))

    return build


def _unsafe(model: Any) -> AbstractContextManager[Any]:
    """Let Keras make Lambda layers anew for a while; it is off again afterwards."""
    package = "keras"
    if any(kind.__module__.split(".")[0] == "tf_keras" for kind in type(model).__mro__):
        package = "tf_keras"
    scope: AbstractContextManager[Any] = importlib.import_module(
        f"{package}.src.saving.serialization_lib"
    ).SafeModeScope(safe_mode=False)
    return scope


def _double_precision(model: Any) -> Any:
    """The same model built anew from its configuration with float64 layers and the same weights."""
    twin = type(model).from_config(widened(model.get_config()))
    if not twin.built:
        twin.build(model.input_shape)
    twin.set_weights([w.astype(np.float64) if _is_floating(w) else w for w in model.get_weights()])
    return twin


def _is_floating(array: Array) -> bool:
    return DType.from_numpy(array.dtype).is_floating


def widened(config: Any) -> Any:
    """A model's configuration with every floating dtype and dtype policy made float64."""
    if isinstance(config, list | tuple):
        return type(config)(widened(item) for item in config)
    if not isinstance(config, dict):
        return config
    if config.get("class_name") in ("DTypePolicy", "Policy"):
        return {**config, "config": {**config["config"], "name": _widened_name(config["config"].get("name"))}}
    return {key: _widened_name(v) if key == "dtype" else widened(v) for key, v in config.items()}


def _widened_name(name: Any) -> Any:
    return "float64" if isinstance(name, str) and name in _NARROW_POLICIES else widened(name)
