"""Runs in the tensorflow environment with the packages of another one behind it: Keras on JAX or PyTorch.

    keras_elsewhere.py BACKEND SITE_PACKAGES OUT

It trains a network on that backend and leaves OUT/pooling.keras, what that answers (OUT/answers.npz: `x` and the
outputs), the bundle of the model in memory (OUT/pooling) and OUT/report.json.
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
    """Max pooling, which Keras's own export writes wrongly on JAX; trained for one round."""
    image = keras.Input((12, 12, 2), name="image")
    hidden = layers.MaxPooling2D(2)(layers.Conv2D(4, 3, activation="relu")(image))
    hidden = layers.BatchNormalization()(hidden)
    probs = layers.Dense(3, activation="softmax")(layers.Flatten()(hidden))
    model = keras.Model(image, {"probs": probs, "kept": hidden})
    generator = np.random.default_rng(0)
    pictures = generator.standard_normal((32, 12, 12, 2)).astype(np.float32)
    wanted = {"probs": np.eye(3, dtype=np.float32)[generator.integers(0, 3, 32)]}
    model.compile("sgd", {"probs": "categorical_crossentropy"})
    model.fit(pictures, wanted, verbose=0)
    return model


@keras.saving.register_keras_serializable("here")
class Odd(layers.Layer):
    def call(self, x: Any) -> Any:
        return x * 2


def class_of_this_script() -> Any:
    return keras.Sequential([keras.Input((4,), name="x"), Odd(), layers.Dense(2, name="y")])


def _export(model: Any, name: str) -> dict[str, Any]:
    before = [np.array(weight) for weight in model.get_weights()]
    try:
        bundle = export_model(model, OUT / name, name=name)
        said: dict[str, Any] = {"notes": bundle.manifest["notes"], "signature": str(bundle.signature)}
    except ConverterError as error:
        said = {"error": type(error).__name__, "said": str(error)}
    return {**said, "untouched": all(map(np.array_equal, before, model.get_weights()))}


def main() -> None:
    assert keras.backend.backend() == BACKEND
    keras.utils.set_random_seed(0)
    model = pooling()
    model.save(OUT / "pooling.keras")
    x = np.random.default_rng(1).standard_normal((5, 12, 12, 2)).astype(np.float32)
    answers = model.predict(x, verbose=0)
    np.savez(OUT / "answers.npz", x=x, **answers)
    report = {"pooling": _export(model, "pooling"), "odd": _export(class_of_this_script(), "odd")}
    report["imported"] = {name: name in sys.modules for name in ("tensorflow", "torch", "jax")}
    (OUT / "report.json").write_text(json.dumps(report))


if __name__ == "__main__":
    main()
