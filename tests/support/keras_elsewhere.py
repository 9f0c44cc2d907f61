"""Runs in the tensorflow environment with the packages of another one behind it: Keras on JAX or PyTorch.

keras_elsewhere.py BACKEND SITE_PACKAGES OUT     writes OUT/pooling, OUT/sequence (bundles) and OUT/report.json
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

BACKEND, SITE_PACKAGES, OUT = sys.argv[1], sys.argv[2], Path(sys.argv[3])
os.environ["KERAS_BACKEND"] = BACKEND
sys.path.append(SITE_PACKAGES)

import keras  # noqa: E402
import numpy as np  # noqa: E402

from paritygate.converter.errors import ConverterError  # noqa: E402
from paritygate.converter.exporters import export_model  # noqa: E402

layers = keras.layers


def pooling() -> Any:
    """Max pooling, which Keras's own export writes wrongly on JAX."""
    image = keras.Input((12, 12, 2), name="image")
    hidden = layers.MaxPooling2D(2)(layers.Conv2D(4, 3, activation="relu")(image))
    hidden = layers.BatchNormalization()(hidden)
    return keras.Model(
        image, {"probs": layers.Dense(3, activation="softmax")(layers.Flatten()(hidden)), "kept": hidden}
    )


def sequence() -> Any:
    return keras.Sequential([keras.Input((None, 4), name="x"), layers.LSTM(5), layers.Dense(2, name="y")])


@keras.saving.register_keras_serializable("here")
class Odd(layers.Layer):
    def call(self, x: Any) -> Any:
        return x * 2


def class_of_this_script() -> Any:
    return keras.Sequential([keras.Input((4,), name="x"), Odd(), layers.Dense(2, name="y")])


def main() -> None:
    assert keras.backend.backend() == BACKEND
    keras.utils.set_random_seed(0)
    report: dict[str, Any] = {}
    for build in (pooling, sequence, class_of_this_script):
        model = build()
        before = [np.array(weight) for weight in model.get_weights()]
        try:
            bundle = export_model(model, OUT / build.__name__, name=build.__name__)
            report[build.__name__] = {"notes": bundle.manifest["notes"], "signature": str(bundle.signature)}
        except ConverterError as error:
            report[build.__name__] = {"error": type(error).__name__, "said": str(error)}
        after = model.get_weights()
        report[build.__name__]["untouched"] = all(map(np.array_equal, before, after))
    report["imported"] = sorted({"tensorflow", "torch", "jax"} & sys.modules.keys())
    (OUT / "report.json").write_text(json.dumps(report))


if __name__ == "__main__":
    main()
