"""What the configuration of a Keras model would run, or read, once Keras builds the model from it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from paritygate.converter.errors import UnsafeSource

_FOREIGN_LAYERS = {
    "TFSMLayer": "would load a SavedModel from a path",
    "TorchModuleWrapper": "would unpickle a PyTorch module",
    "JaxLayer": "would call back into Python",
    "FlaxLayer": "would call back into Python",
}
_PURE_MODULES = (
    "activations",
    "constraints",
    "initializers",
    "losses",
    "metrics",
    "nn",
    "ops",
    "regularizers",
)


def refuse_carriers(path: Path, config: Any) -> None:
    """Refuse a configuration that runs code or reads other files.

    Raises:
        UnsafeSource: Naming the layers and what they would do.
    """
    coded = list(dict.fromkeys(code_carriers(config)))
    if coded:
        layers = ", ".join(repr(name) for name in sorted(coded))
        raise UnsafeSource(
            f"{path} carries Python code in layer {layers} (a lambda), and loading it would run that code. "
            "Pass --trust (trust=True) if you trust where the file comes from."
        )
    for layer, deed in _deeds(config):
        raise UnsafeSource(
            f"{path} {deed} in layer {layer!r}, so it was not loaded. "
            "Pass --trust (trust=True) if you trust where the file comes from."
        )


def code_carriers(config: Any, layer: str = "?") -> Iterator[str]:
    """Names of the layers whose configuration holds marshalled code, in the new and the old form."""
    for name, entry in _entries(config, layer):
        if entry.get("class_name") == "__lambda__" or _is_old_lambda(entry):
            yield name


def _deeds(config: Any) -> Iterator[tuple[str, str]]:
    """Layers, and what they would do beside computing."""
    for name, entry in _entries(config):
        kind, inner = entry.get("class_name"), entry.get("config")
        if kind in _FOREIGN_LAYERS:
            yield name, _FOREIGN_LAYERS[kind]
        if kind == "function" and _is_impure(str(entry.get("module"))):
            yield name, f"would call {entry['module']}.{inner}"
        if isinstance(inner, dict) and isinstance(inner.get("vocabulary"), str):
            yield name, f"would read the file {inner['vocabulary']}"


def _is_impure(module: str) -> bool:
    """Whether a module is one of Keras's own whose functions do more than compute; it imports no others."""
    package, *parts = module.replace(".src.", ".").split(".")
    return package in ("keras", "tf_keras") and not (parts and parts[0] in _PURE_MODULES)


def _entries(config: Any, layer: str = "?") -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Every dictionary in a configuration, however deep, with the name of the layer that it belongs to."""
    waiting = [(layer, config)]
    while waiting:
        name, item = waiting.pop()
        if isinstance(item, list):
            waiting += [(name, inner) for inner in reversed(item)]
        elif isinstance(item, dict):
            inner = item.get("config")
            if isinstance(inner, dict) and isinstance(inner.get("name"), str):
                name = inner["name"]
            yield name, item
            waiting += [(name, value) for value in reversed(item.values())]


def _is_old_lambda(config: Mapping[str, Any]) -> bool:
    """Keras 2 wrote `[code, defaults, closure]`, with or without saying `function_type: lambda` beside it."""
    kinds = (config.get(key) for key in ("function_type", "output_shape_type", "mask_type"))
    written = (config.get(key) for key in ("function", "output_shape", "mask"))
    return "lambda" in kinds or any(isinstance(v, list) and v and isinstance(v[0], str) for v in written)
