"""ResNet50 as a SavedModel, 25.6 M parameters."""

from __future__ import annotations

import atexit
import shutil
import tempfile
from pathlib import Path
from typing import Any

ENVIRONMENT: str | None = "tensorflow"
MODEL = "SavedModel of ResNet50, 25.6 M parameters"


def build() -> tuple[Any, dict[str, Any]]:
    """A SavedModel of the model of `keras.py`, in a folder that goes when the process ends."""
    from benchmarks.exporters import keras

    model, _ = keras.build()
    scratch = tempfile.mkdtemp(prefix="paritygate-benchmark-")
    atexit.register(shutil.rmtree, scratch, ignore_errors=True)
    model.export(f"{scratch}/resnet50", verbose=False)
    return f"{scratch}/resnet50", {}


def bare(model: Any, options: dict[str, Any], path: Path) -> None:
    """What `python -m tf2onnx.convert --saved-model` does, without starting another process."""
    import tensorflow as tf
    import tf2onnx

    loaded = tf.saved_model.load(model)
    function = loaded.signatures["serving_default"]
    signature = list(function.structured_input_signature[1].values())
    named = {spec.name: spec for spec in signature}

    @tf.function(input_signature=[named[name] for name in sorted(named)])
    def served(*tensors: Any) -> Any:
        return function(**dict(zip(sorted(named), tensors, strict=True)))

    tf2onnx.convert.from_function(
        served, input_signature=[named[name] for name in sorted(named)], opset=18, output_path=str(path)
    )
