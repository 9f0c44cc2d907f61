"""What a framework's models need before they can be exported; a new framework is one file and one line here."""

from __future__ import annotations

from pkgutil import resolve_name
from typing import Any

from paritygate.train_hooks.errors import ModelRefused
from paritygate.train_hooks.hooks.base import Hook

HOOKS = {
    "keras": "paritygate.train_hooks.hooks.keras:KerasHook",
    "tensorflow": "paritygate.train_hooks.hooks.tensorflow:TensorFlowHook",
    "pytorch": "paritygate.train_hooks.hooks.pytorch:PyTorchHook",
    "jax": "paritygate.train_hooks.hooks.jax:JaxHook",
    "sklearn": "paritygate.train_hooks.hooks.sklearn:SklearnHook",
    "xgboost": "paritygate.train_hooks.hooks.xgboost:XGBoostHook",
    "lightgbm": "paritygate.train_hooks.hooks.lightgbm:LightGBMHook",
    "mindspore": "paritygate.train_hooks.hooks.mindspore:MindSporeHook",
    "paddle": "paritygate.train_hooks.hooks.paddle:PaddleHook",
}


def find_hook(model: Any) -> Hook:
    """The hook whose framework made the model.

    Raises:
        ModelRefused: If there is none.
    """
    for target in HOOKS.values():
        hook: Hook = resolve_name(target)()
        if hook.owns(model):
            return hook
    kind = type(model)
    raise ModelRefused(
        f"no hook for a model of {kind.__module__}.{kind.__qualname__}; "
        f"expected a model of one of: {', '.join(sorted(HOOKS))}."
    )
