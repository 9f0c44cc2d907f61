"""The Keras models of the exporter conformance suite."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from support import keras_files as files
from support.digits_data import digits
from support.exporter_cases import ExporterCases, Refusal, sample
from support.model_packages import unpacked


def _keras(*layers: Callable[[Any], Any], shape: tuple[int | None, ...]) -> Any:
    import keras

    keras.utils.clear_session()  # Keras numbers the layers of a session, and names are part of a model
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


def _half_an_archive(folder: Path) -> tuple[Any, dict[str, Any]]:
    source, options = files.archive(folder)
    Path(source).write_bytes(Path(source).read_bytes()[:-200])
    return source, options


def _half_an_hdf5(folder: Path) -> tuple[Any, dict[str, Any]]:
    source, options = files.hdf5(folder)
    Path(source).write_bytes(Path(source).read_bytes()[:-5000])
    return source, options


def _without_factory(folder: Path) -> tuple[Any, dict[str, Any]]:
    return files.weights(folder)[0], {}


def _other_factory(folder: Path) -> tuple[Any, dict[str, Any]]:
    return files.weights(folder)[0], {"factory": "support.keras_files:other_net"}


def _factory_of_nothing(folder: Path) -> tuple[Any, dict[str, Any]]:
    return files.weights(folder)[0], {"factory": "support.keras_files:no_net"}


def _other_checkpoint_factory(folder: Path) -> tuple[Any, dict[str, Any]]:
    return files.checkpoint(folder)[0], {"factory": "support.keras_files:other_net"}


def _never_called(_folder: Path) -> tuple[Any, dict[str, Any]]:
    import keras

    return keras.Sequential([keras.layers.Dense(2)]), {}


def _too_new(_folder: Path) -> tuple[Any, dict[str, Any]]:
    return _keras_matrix()[0], {"opset": 20}


def _keeps_nothing(folder: Path) -> tuple[Any, dict[str, Any]]:
    return files.archive(folder)[0], {"keep_saved_model": True}


CASES = ExporterCases(
    module="tensorflow",
    environment="tensorflow",
    ranks={"rank2": _keras_matrix, "rank3": _keras_sequence, "rank4": _keras_picture},
    demoted=_keras_demoted,
    guarded=_keras_matrix,
    files={
        "archive": files.archive, "hdf5": files.hdf5, "hdf5_of_keras_2": files.hdf5_of_keras_2,
        "multi_branch": files.multi_branch, "weights": files.weights,
        "weights_of_keras_2": files.weights_of_keras_2, "checkpoint": files.checkpoint,
    },
    trained={"fer": _fer, "digits": _digits},
    packages=("fer", "scikit-learn"),
    planted={
        "lambda_in_archive": files.lambda_in_archive, "lambda_in_hdf5": files.lambda_in_hdf5,
        "lambda_of_keras_2": files.lambda_of_keras_2, "saved_model_in_layer": files.saved_model_in_layer,
    },
    refused={
        "absent": Refusal(_absent, "SourceNotFound", "there is no file .*absent"),
        "half_an_archive": Refusal(_half_an_archive, "SourceError", "a zip archive that is cut off or damaged"),
        "half_an_hdf5": Refusal(_half_an_hdf5, "SourceError", "is not a whole HDF5 file"),
        "without_factory": Refusal(_without_factory, "SourceError", "holds weights without a model.*--factory"),
        "other_factory": Refusal(
            _other_factory, "SourceError",
            r":other_net builds: .* is \[.*\] in the file, the model has \[.*\]\. Use the factory",
        ),
        "factory_of_nothing": Refusal(
            _factory_of_nothing, "FactoryError", r"keras_files:no_net gave a NoneType; expected a keras\.Model"
        ),
        "other_checkpoint_factory": Refusal(
            _other_checkpoint_factory, "SourceError", r"kernel \[3, 2\].*, which it lacks; it has "
        ),
        "never_called": Refusal(_never_called, "ExportError", "has no weights yet: it was never called"),
        "too_new": Refusal(_too_new, "ExportError", "opset 20 cannot be written .* ends at 18"),
        "keeps_nothing": Refusal(_keeps_nothing, "ExportError", "'keras' reads none"),
        "vocabulary_elsewhere": Refusal(
            files.vocabulary_elsewhere,
            "UnsafeSource",
            r"would read the file .*secret\.txt in layer 'words'.*--trust",
        ),
        "function_of_keras": Refusal(
            files.function_of_keras, "UnsafeSource", r"would call keras\.utils\.get_file in layer 'act'.*--trust"
        ),
        "link_elsewhere": Refusal(
            files.link_elsewhere,
            "UnsafeSource",
            r"takes '/model_weights/stolen' from another file \(.*other\.h5\)",
        ),
        "data_elsewhere": Refusal(files.data_elsewhere, "UnsafeSource", r"from another file \(.*secret\.bin\)"),
        "weights_elsewhere": Refusal(
            files.weights_elsewhere, "UnsafeSource", "takes '/probs/.*stolen' from another"
        ),
    },
)  # fmt: skip
