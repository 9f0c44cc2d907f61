"""Keras models in every form in which Keras 2 and 3 save them, with and without payloads."""

from __future__ import annotations

import json
import os
import zipfile
from pathlib import Path
from typing import Any

import numpy as np


def net() -> Any:
    """A small trained network of Keras 3."""
    return _trained(_package("keras"))


def net_of_keras_2() -> Any:
    """The same of Keras 2."""
    return _trained(_package("tf_keras"))


def other_net() -> Any:
    keras = _package("keras")
    return keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])


def no_net() -> None:
    """A factory that forgot to return what it built."""


def _package(name: str) -> Any:
    import importlib

    return importlib.import_module(name)


def _trained(package: Any) -> Any:
    layers = package.layers
    package.utils.set_random_seed(0)
    x = package.Input((8, 8, 1), name="image")
    hidden = layers.MaxPooling2D()(layers.BatchNormalization()(layers.Conv2D(4, 3)(x)))
    model = package.Model(x, layers.Dense(3, activation="softmax", name="probs")(layers.Flatten()(hidden)))
    model.compile("adam", "mse")
    generator = np.random.default_rng(0)
    pictures, wanted = generator.random((16, 8, 8, 1)), generator.random((16, 3))
    model.fit(pictures.astype(np.float32), wanted.astype(np.float32), verbose=0)
    return model


# --- whole models -------------------------------------------------------------------------------------------


def archive(folder: Path) -> tuple[Any, dict[str, Any]]:
    net().save(folder / "net.keras")
    return str(folder / "net.keras"), {}


def hdf5(folder: Path) -> tuple[Any, dict[str, Any]]:
    net().save(folder / "net.h5")
    return str(folder / "net.h5"), {}


def hdf5_of_keras_2(folder: Path) -> tuple[Any, dict[str, Any]]:
    net_of_keras_2().save(str(folder / "net.h5"), save_format="h5")
    return str(folder / "net.h5"), {}


def multi_branch(folder: Path) -> tuple[Any, dict[str, Any]]:
    """Two inputs and outputs in dicts, of which Keras keeps neither order through a file."""
    import keras

    layers = keras.layers
    left, right = keras.Input((4,), name="left"), keras.Input((2,), name="a_right")
    both = layers.Concatenate()([left, right])
    outputs = {"z": layers.Dense(2)(both), "a": layers.Dense(3)(both)}
    keras.Model({"left": left, "a_right": right}, outputs).save(folder / "net.keras")
    return str(folder / "net.keras"), {}


# --- weights ------------------------------------------------------------------------------------------------


def weights(folder: Path) -> tuple[Any, dict[str, Any]]:
    net().save_weights(folder / "net.weights.h5")
    return str(folder / "net.weights.h5"), {"factory": "support.keras_files:net"}


def weights_of_keras_2(folder: Path) -> tuple[Any, dict[str, Any]]:
    net_of_keras_2().save_weights(str(folder / "weights.h5"), save_format="h5")
    return str(folder / "weights.h5"), {"factory": "support.keras_files:net_of_keras_2"}


def checkpoint(folder: Path) -> tuple[Any, dict[str, Any]]:
    import tensorflow as tf

    model = net()
    prefix = tf.train.Checkpoint(model=model, optimizer=model.optimizer).save(str(folder / "ckpt"))
    return prefix, {"factory": "support.keras_files:net"}


# --- payloads -----------------------------------------------------------------------------------------------


def _with_lambda(package: Any, canary: Path) -> Any:
    """A model with a payload in a Lambda layer, of which building the model is no trial."""
    marker = str(canary)
    layers = package.layers
    planted = layers.Lambda(
        lambda x: (__import__("os").makedirs(marker, exist_ok=True), x)[1], output_shape=(4,), name="planted"
    )
    model = package.Sequential([package.Input((4,), name="x"), planted, layers.Dense(2, name="y")])
    if canary.exists():
        canary.rmdir()
    return model


def lambda_in_archive(folder: Path, canary: Path) -> tuple[Any, dict[str, Any]]:
    _with_lambda(_package("keras"), canary).save(folder / "net.keras")
    return str(folder / "net.keras"), {}


def lambda_in_hdf5(folder: Path, canary: Path) -> tuple[Any, dict[str, Any]]:
    _with_lambda(_package("keras"), canary).save(folder / "net.h5")
    return str(folder / "net.h5"), {}


def lambda_of_keras_2(folder: Path, canary: Path) -> tuple[Any, dict[str, Any]]:
    _with_lambda(_package("tf_keras"), canary).save(str(folder / "net.h5"), save_format="h5")
    return str(folder / "net.h5"), {}


def saved_model_in_layer(folder: Path, canary: Path) -> tuple[Any, dict[str, Any]]:
    """A layer that loads a SavedModel, which writes a file when it is called."""
    import keras

    from support import tensorflow_files

    source, _ = tensorflow_files.planted_write(folder, canary)
    layer = keras.layers.TFSMLayer(source, call_endpoint="serving_default", name="foreign")
    given = keras.Input((3,), name="x")
    keras.Model(given, layer(given)).save(folder / "net.keras")
    if canary.exists():
        canary.unlink()
    return str(folder / "net.keras"), {}


# --- what reads other files: refused as unsafe --------------------------------------------------------------


def _edited(folder: Path, name: str, change: Any) -> str:
    """The archive of `name` with another configuration."""
    whole = folder / name
    with zipfile.ZipFile(whole) as archive:
        members = {entry: archive.read(entry) for entry in archive.namelist()}
    config = json.loads(members["config.json"])
    change(config)
    members["config.json"] = json.dumps(config).encode()
    with zipfile.ZipFile(whole, "w") as archive:
        for entry, content in members.items():
            archive.writestr(entry, content)
    return str(whole)


def vocabulary_elsewhere(folder: Path) -> tuple[Any, dict[str, Any]]:
    import keras

    secret = folder / "secret.txt"
    secret.write_text("a\nb\n")
    words = keras.layers.StringLookup(vocabulary=["a", "b"], name="words")
    given = keras.Input((1,), dtype="string", name="text")
    keras.Model(given, words(given)).save(folder / "net.keras")

    def point(config: dict[str, Any]) -> None:
        (layer,) = [entry for entry in config["config"]["layers"] if entry["class_name"] == "StringLookup"]
        layer["config"]["vocabulary"] = str(secret)

    return _edited(folder, "net.keras", point), {}


def function_of_keras(folder: Path) -> tuple[Any, dict[str, Any]]:
    """A Lambda layer whose function is Keras's own downloader."""
    import keras

    given = keras.Input((4,), name="x")
    keras.Model(given, keras.layers.Lambda(keras.ops.tanh, name="act")(given)).save(folder / "net.keras")

    def point(config: dict[str, Any]) -> None:
        (layer,) = [entry for entry in config["config"]["layers"] if entry["class_name"] == "Lambda"]
        layer["config"]["function"] |= {"module": "keras.utils", "config": "get_file"}

    return _edited(folder, "net.keras", point), {}


def link_elsewhere(folder: Path) -> tuple[Any, dict[str, Any]]:
    import h5py

    source, _ = hdf5(folder)
    with h5py.File(folder / "other.h5", "w") as other:
        other["kernel"] = np.ones(3)
    with h5py.File(source, "a") as file:
        file["model_weights"]["stolen"] = h5py.ExternalLink(str(folder / "other.h5"), "/kernel")
    return source, {}


def data_elsewhere(folder: Path) -> tuple[Any, dict[str, Any]]:
    import h5py

    source, _ = hdf5(folder)
    secret = folder / "secret.bin"
    secret.write_bytes(os.urandom(12))
    with h5py.File(source, "a") as file:
        file.create_dataset("model_weights/stolen", (3,), "f4", external=[(str(secret), 0, 12)])
    return source, {}


def weights_elsewhere(folder: Path) -> tuple[Any, dict[str, Any]]:
    import h5py

    source, options = weights_of_keras_2(folder)
    with h5py.File(source, "a") as file:
        file["probs"]["stolen"] = h5py.ExternalLink(str(folder / "other.h5"), "/kernel")
    return source, options
