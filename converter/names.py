"""What people call the frameworks, and which of our names they mean: one table for exporters and environments."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

FRAMEWORK_MODULES = {
    "torch": "pytorch", "lightning": "pytorch", "pytorch_lightning": "pytorch", "transformers": "pytorch",
    "keras": "keras", "tf_keras": "keras", "tensorflow": "tensorflow",
    "jax": "jax", "flax": "jax", "paddle": "paddle", "mindspore": "mindspore",
    "sklearn": "sklearn", "xgboost": "xgboost", "lightgbm": "lightgbm",
}  # fmt: skip
"""What training code imports -> the exporter in whose environment that can be imported."""

_SAID = {
    **FRAMEWORK_MODULES,
    "pt": "pytorch", "huggingface": "pytorch", "hf": "pytorch", "safetensors": "pytorch",
    "tf": "tensorflow", "tf2": "tensorflow", "tensorflow_cpu": "tensorflow", "tensorflow_gpu": "tensorflow",
    "savedmodel": "tensorflow", "saved_model": "tensorflow", "tf2onnx": "tensorflow",
    "keras3": "keras", "h5": "keras",
    "jaxlib": "jax", "nnx": "jax", "linen": "jax", "orbax": "jax",
    "paddlepaddle": "paddle", "paddlepaddle_gpu": "paddle", "ms": "mindspore", "mindir": "mindspore",
    "scikit_learn": "sklearn", "scikit": "sklearn", "skl": "sklearn", "joblib": "sklearn",
    "xgb": "xgboost", "xgboost_cpu": "xgboost", "lgb": "lightgbm", "lgbm": "lightgbm",
}  # fmt: skip
"""What people write, in lower case and with underscores -> the exporter that they mean."""


def meant(name: str, known: Iterable[str]) -> str | None:
    """The known name that somebody means who wrote another one; None if it is not clear.

    Args:
        name: What was written.
        known: The names that there are.
    """
    names = list(known)
    plain = name.strip().lower().replace("-", "_")
    if plain in names:
        return plain
    said = _SAID.get(plain)
    if said is not None:
        return said if said in names else None
    near = difflib.get_close_matches(plain, names, n=1, cutoff=0.7)
    near = near or difflib.get_close_matches(plain, _SAID, n=1, cutoff=0.8)
    found = None if not near else _SAID.get(near[0], near[0])
    return found if found in names else None
