"""Backends: what computes an answer, behind one small interface.

A new one is one file and one line in `BACKENDS`; the name is what `config.pbtxt` calls it.
"""

from __future__ import annotations

import pkgutil
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from paritygate.serving.backends.base import EmbeddedBackend

BACKENDS: dict[str, str] = {
    "onnxruntime": "paritygate.serving.backends.onnxruntime:OnnxRuntimeBackend",
}


def get_backend(name: str) -> type[EmbeddedBackend]:
    """The backend of this name, imported on first use.

    Raises:
        ValueError: If there is none; the message lists the known ones.
    """
    if name not in BACKENDS:
        raise ValueError(f"there is no backend '{name}'; known: {', '.join(sorted(BACKENDS))}.")
    backend: type[EmbeddedBackend] = pkgutil.resolve_name(BACKENDS[name])
    return backend
