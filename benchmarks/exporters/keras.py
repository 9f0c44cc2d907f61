"""ResNet50 of Keras, 25.6 M parameters, from memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

ENVIRONMENT: str | None = "tensorflow"
MODEL = "Keras ResNet50, 25.6 M parameters"


def build() -> tuple[Any, dict[str, Any]]:
    """The model, with random weights."""
    import keras

    keras.utils.set_random_seed(0)
    return keras.applications.ResNet50(weights=None), {}


def bare(model: Any, options: dict[str, Any], path: Path) -> None:
    """tf2onnx's own call for Keras models, as its documentation has it."""
    import tensorflow as tf
    import tf2onnx

    signature = [tf.TensorSpec([None, 224, 224, 3], tf.float32, name="image")]
    tf2onnx.convert.from_keras(model, input_signature=signature, opset=18, output_path=str(path))
