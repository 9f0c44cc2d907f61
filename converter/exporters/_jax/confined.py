"""jax2onnx and the settings of the process, confined: both come back as they were."""

from __future__ import annotations

import contextlib
import importlib
import logging
import pkgutil
import sys
import threading
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

_PATCHED = ("jax.numpy", "jax.lax", "jax.nn", "jax.random", "jax.image", "flax.nnx", "flax.linen")
"""Modules into which the plugins of jax2onnx write when they are imported."""

_LOGGERS = ("jax2onnx", "onnx_ir", "onnxscript", "absl", "jax")

_lock = threading.RLock()
_written: dict[tuple[str, str], Any] = {}
"""What the plugins wrote; they look for it again at every later conversion."""


@contextlib.contextmanager
def plugins(overrides: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """jax2onnx's table of lowerings with some of ours in it, while nothing of jax or flax stays replaced.

    Plugins write names into jax and flax when they are imported. All of that is taken back at the end of this
    context, and put in place again at the beginning of the next.
    """
    with _lock:
        before = _snapshot()
        from jax2onnx.plugins import plugin_system

        for (module, name), value in _written.items():
            setattr(sys.modules[module], name, value)
        try:
            _import_primitives()
            registry = plugin_system.PLUGIN_REGISTRY
            kept = dict(registry)
            registry.update(overrides)
            try:
                yield registry
            finally:
                registry.clear()
                registry.update(kept)
        finally:
            _take_back(before)


def _import_primitives() -> None:
    """Register the lowerings of JAX's primitives.

    `import_all_plugins` would import the look-alikes of whole libraries and their examples, too, which build
    networks of their own on import; that takes longer than most conversions.
    """
    import jax2onnx.plugins.jax as parent

    for family in ("core", "lax", "random"):
        for _, name, _ in pkgutil.iter_modules([str(Path(part) / family) for part in parent.__path__]):
            importlib.import_module(f"{parent.__name__}.{family}.{name}")


def _snapshot() -> dict[str, dict[str, Any]]:
    return {name: dict(vars(sys.modules[name])) for name in _PATCHED if name in sys.modules}


def _take_back(before: Mapping[str, Mapping[str, Any]]) -> None:
    for name, known in before.items():
        module = sys.modules[name]
        for attribute, value in list(vars(module).items()):
            if attribute.startswith("__") or known.get(attribute) is value:
                continue
            submodule = f"{name}.{attribute}" in sys.modules
            if attribute in known:
                _written[name, attribute] = value
                setattr(module, attribute, known[attribute])
            elif not submodule:
                _written[name, attribute] = value
                delattr(module, attribute)


@contextlib.contextmanager
def contained_noise() -> Iterator[None]:
    """Hold back warnings, and log lines below ERROR, of jax2onnx and its helpers."""

    def errors_only(record: logging.LogRecord) -> bool:
        return record.levelno >= logging.ERROR

    loggers = [
        logger
        for name in list(logging.root.manager.loggerDict)
        if name.partition(".")[0] in _LOGGERS
        and isinstance(logger := logging.getLogger(name), logging.Logger)
    ]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for logger in loggers:
            logger.addFilter(errors_only)
        try:
            yield
        finally:
            for logger in loggers:
                logger.removeFilter(errors_only)
