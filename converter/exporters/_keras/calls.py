"""How a Keras model is called: its inputs in their structure, training off."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from paritygate.converter.exporters._tensorflow.calls import Call


def is_sequential(model: Any) -> bool:
    """Whether a model is a Sequential, of either package."""
    return any(kind.__name__ == "Sequential" for kind in type(model).__mro__)


def packed_call(model: Any) -> Call:
    """Calls the model with its inputs in the structure that it was built with: one, a list, or a dict."""
    order = {id(tensor): k for k, tensor in enumerate(model.inputs)}

    def pack(structure: Any, tensors: Sequence[Any]) -> Any:
        if isinstance(structure, Mapping):
            return {key: pack(item, tensors) for key, item in structure.items()}
        if isinstance(structure, list | tuple):
            return [pack(item, tensors) for item in structure]
        return tensors[order[id(structure)]]

    structure = model.inputs[0] if is_sequential(model) else model.input
    answer = training_off(model)
    return lambda tensors: answer(pack(structure, tensors))


def training_off(model: Any) -> Callable[..., Any]:
    """The model as a function in inference mode."""
    # tf_keras refuses `training` where `call` does not take it; Keras 3 drops it there.
    if getattr(model, "_expects_training_arg", True):
        return lambda *args, **kwargs: model(*args, training=False, **kwargs)
    return lambda *args, **kwargs: model(*args, **kwargs)
