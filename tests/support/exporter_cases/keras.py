"""The Keras models of the exporter conformance suite."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from support.digits_data import digits
from support.exporter_cases import ExporterCases, Refusal, sample
from support.model_packages import unpacked


def _keras(*layers: Callable[[Any], Any], shape: tuple[int | None, ...]) -> Any:
    import keras

    keras.utils.set_random_seed(0)
    given = tensor = keras.Input(shape, name="x")
    for layer in layers:
        tensor = layer(keras)(tensor)
    return keras.Model(given, tensor)


def _keras_matrix() -> tuple[Any, dict[str, Any]]:
    model = _keras(
        lambda k: k.layers.Dense(8, activation="relu"), lambda k: k.layers.BatchNormalization(),
        lambda k: k.layers.Dense(3, activation="softmax"), shape=(6,),
    )  # fmt: skip
    return model, {}


def _keras_sequence() -> tuple[Any, dict[str, Any]]:
    model = _keras(
        lambda k: k.layers.LSTM(5, return_sequences=True), lambda k: k.layers.Dense(2), shape=(7, 3)
    )
    return model, {}


def _keras_picture() -> tuple[Any, dict[str, Any]]:
    model = _keras(
        lambda k: k.layers.Conv2D(4, 3), lambda k: k.layers.MaxPooling2D(), lambda k: k.layers.Flatten(),
        lambda k: k.layers.Dense(2), shape=(8, 8, 1),
    )  # fmt: skip
    return model, {}


def _keras_demoted() -> tuple[Any, dict[str, Any]]:
    model = _keras(lambda k: k.layers.Reshape((6,)), lambda k: k.layers.Dense(2), shape=(None, 2))
    return model, {"inputs": {"x": sample(2, 3, 2)}, "dynamic": {"x": {0: "batch", 1: "frozen"}}}


def _fer() -> tuple[Any, dict[str, Any]]:
    """A whole Keras 2 model: facial expressions, trained by the authors of the package."""
    return str(unpacked("fer") / "fer" / "data" / "emotion_model.hdf5"), {}


def _digits() -> tuple[Any, dict[str, Any]]:
    """A small convolutional network, trained here until it reads most digits."""
    model = _keras(
        lambda k: k.layers.Conv2D(8, 3, activation="relu"), lambda k: k.layers.MaxPooling2D(),
        lambda k: k.layers.Flatten(), lambda k: k.layers.Dense(10, activation="softmax", name="probabilities"),
        shape=(8, 8, 1),
    )  # fmt: skip
    pictures, classes = digits()
    model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
    fitted = model.fit(pictures, classes, epochs=6, batch_size=32, verbose=0)
    right = fitted.history["accuracy"][-1]
    assert right > 0.8, f"the network has learned nothing: {right:.2f} of the digits are right"
    return model, {"inputs": {"x": pictures[:5]}}


def _absent(folder: Path) -> tuple[Any, dict[str, Any]]:
    return str(folder / "absent.keras"), {}


CASES = ExporterCases(
    module="tensorflow",
    environment="tensorflow",
    ranks={"rank2": _keras_matrix, "rank3": _keras_sequence, "rank4": _keras_picture},
    demoted=_keras_demoted,
    guarded=_keras_matrix,
    trained={"fer": _fer, "digits": _digits},
    packages=("fer", "scikit-learn"),
    refused={"absent": Refusal(_absent, "SourceNotFound", "there is no file .*absent")},
)
