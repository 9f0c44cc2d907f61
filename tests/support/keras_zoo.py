"""Runs inside the tensorflow environment: builds models, exports them there, and says what it saw.

    keras_zoo.py OUT       writes OUT/<name>/ (bundles), OUT/files/ (saved models) and OUT/report.json

The report has, for each model, the error if there was one, whether every variable is as it was, and the largest
distance between the sealed answers and the model's own `predict` or call, asked anew.
"""

from __future__ import annotations

import json
import sys
import traceback
from pathlib import Path
from typing import Any

import keras
import numpy as np
import onnx
import tensorflow as tf
import tf_keras

from paritygate.converter.config import ExportConfig
from paritygate.converter.errors import ConverterError
from paritygate.converter.exporters import detect, get_exporter

layers = keras.layers


def _two_inputs() -> tuple[Any, Any, Any]:
    numbers = keras.Input((4,), name="numbers")
    ids = keras.Input((3,), name="ids", dtype="int32")
    rows = layers.Flatten()(layers.Embedding(10, 4, name="rows")(ids))
    return numbers, ids, layers.Concatenate(name="joined")([numbers, rows])


def dict_outputs() -> Any:
    numbers, ids, joined = _two_inputs()
    outputs = {"probs": layers.Dense(2, activation="softmax")(joined), "aaa": layers.Dense(1)(joined)}
    return keras.Model([numbers, ids], outputs), {}


def dict_inputs() -> Any:
    numbers, ids, joined = _two_inputs()
    return keras.Model({"ids": ids, "numbers": numbers}, [layers.Dense(2, name="scores")(joined), joined]), {}


def sequential() -> Any:
    return keras.Sequential(
        [
            keras.Input((12, 12, 1), name="image"),
            layers.Conv2D(4, 3, activation="relu"),
            layers.BatchNormalization(),
            layers.MaxPooling2D(),
            layers.Dropout(0.5),
            layers.Flatten(),
            layers.Dense(10, activation="softmax", name="probs"),
        ]
    ), {}


def trained_sequential() -> Any:
    model, options = sequential()
    model.compile("sgd", "sparse_categorical_crossentropy")
    rng = np.random.default_rng(0)
    model.fit(rng.random((32, 12, 12, 1), np.float32), rng.integers(0, 10, 32), verbose=0)
    return model, options


def built_by_its_first_call() -> Any:
    model = keras.Sequential([layers.Dense(4, name="wide"), layers.Dense(2, name="last")])
    model(np.ones((1, 3), np.float32))
    return model, {"input_names": ("x",)}


def gelu() -> Any:
    return keras.Sequential([keras.Input((5,), name="x"), layers.Dense(8, activation="gelu", name="y")]), {}


def recurrent() -> Any:
    sequence = keras.Input((None, 6), name="sequence")
    hidden = layers.Bidirectional(layers.GRU(5, return_sequences=True))(sequence)
    return keras.Model(sequence, layers.Dense(2, name="tags")(layers.LSTM(4)(hidden))), {}


def attention() -> Any:
    tokens = keras.Input((6, 8), name="tokens")
    mixed = layers.LayerNormalization()(layers.MultiHeadAttention(2, 4)(tokens, tokens) + tokens)
    return keras.Model(tokens, layers.Dense(3, name="out")(mixed)), {}


def mixed_precision() -> Any:
    policy = keras.DTypePolicy("mixed_float16")
    return keras.Sequential(
        [
            keras.Input((4,), name="x"),
            layers.Dense(8, dtype=policy),
            layers.Dense(2, dtype="float32", name="y"),
        ]
    ), {}


def input_handed_through() -> Any:
    x = keras.Input((4,), name="x")
    return keras.Model(x, [x, layers.Dense(2, name="y")(x), x]), {}


def bytes_in() -> Any:
    stack = [
        keras.Input((4,), dtype="uint8", name="pixels"),
        layers.Rescaling(1 / 255.0),
        layers.Dense(2, name="y"),
    ]
    return keras.Sequential(stack), {}


def side_file() -> Any:
    stack = [keras.Input((64,), name="x"), layers.Dense(64), layers.Dense(64, name="y")]
    return keras.Sequential(stack), {"external_data_threshold_bytes": 0}


class Subclassed(keras.Model):
    def __init__(self) -> None:
        super().__init__()
        self.dense, self.drop = layers.Dense(2), layers.Dropout(0.5)

    def call(self, left: Any, right: Any, training: Any = None) -> Any:
        return {"total": self.drop(self.dense(left + right), training=training), "both": (left, right)}


def subclassed() -> Any:
    model = Subclassed()
    example = {"left": np.ones((2, 3), np.float32), "right": np.full((2, 3), 2, np.float32)}
    model(**example)
    return model, {"inputs": example}


def subclassed_by_position() -> Any:
    model, options = subclassed()
    return model, {"inputs": tuple(options["inputs"].values())}


def legacy_keras() -> Any:
    stack = [
        tf_keras.Input((6,), name="x"),
        tf_keras.layers.Dense(5),
        tf_keras.layers.BatchNormalization(name="y"),
    ]
    return tf_keras.Sequential(stack), {}


def under_a_strategy() -> Any:
    with tf.distribute.MirroredStrategy(["/cpu:0"]).scope():
        return legacy_keras()


class Module(tf.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = tf.Variable(tf.reshape(tf.range(6, dtype=tf.float32), (3, 2)))

    @tf.function(input_signature=[tf.TensorSpec([None, 3], tf.float32, name="x")])
    def __call__(self, x: Any) -> Any:
        return {"y": x @ self.weight}


def module() -> Any:
    return Module(), {}


def spoiled() -> Any:
    def change_one_weight(path: Path) -> None:
        model = onnx.load(path)
        tensor = max(model.graph.initializer, key=lambda t: int(np.prod(t.dims)))
        weights = onnx.numpy_helper.to_array(tensor).copy()
        weights.flat[0] += 0.5
        tensor.CopyFrom(onnx.numpy_helper.from_array(weights, tensor.name))
        onnx.save(model, path)

    model, _ = gelu()
    return model, {"after_conversion": change_one_weight}


def never_called() -> Any:
    return keras.Sequential([layers.Dense(2)]), {}


def unsupported_operator() -> Any:
    odd = layers.Lambda(lambda x: tf.math.erfinv(x), name="odd")
    return keras.Sequential([keras.Input((4,), name="x"), odd, layers.Dense(2)]), {}


def opset_too_new() -> Any:
    model, _ = gelu()
    return model, {"opset": 20}


def silent_about_inputs() -> Any:
    model, _ = subclassed()
    return model, {}


class Counting(tf.Module):
    def __init__(self) -> None:
        super().__init__()
        self.calls = tf.Variable(0)

    def __call__(self, x: Any) -> Any:
        self.calls.assign_add(1)
        return x + 1.0


def keeps_state() -> Any:
    return Counting(), {"inputs": np.ones((2, 3), np.float32)}


def ragged_output() -> Any:
    class Ragged(tf.Module):
        def __call__(self, x: Any) -> Any:
            return tf.RaggedTensor.from_tensor(x)

    return Ragged(), {"inputs": np.ones((2, 3), np.float32)}


ZOO = [
    dict_outputs, dict_inputs, sequential, trained_sequential, built_by_its_first_call, gelu, recurrent, attention,
    mixed_precision, input_handed_through, bytes_in, side_file, subclassed, subclassed_by_position, legacy_keras,
    under_a_strategy, module, spoiled, never_called, unsupported_operator, opset_too_new, silent_about_inputs,
    keeps_state, ragged_output,
]  # fmt: skip


def _export(build: Any, out: Path) -> dict[str, Any]:
    model, options = build()
    variables = [np.array(variable.numpy()) for variable in getattr(model, "variables", ())]
    said: dict[str, Any] = {"detected": detect(model)}
    try:
        bundle = get_exporter(said["detected"]).export(
            model, out / build.__name__, ExportConfig(build.__name__, **options)
        )
        said["farthest"] = _farthest(model, bundle)
    except ConverterError as error:
        said |= {
            "error": type(error).__name__,
            "message": str(error),
            "module": getattr(error, "module", None),
        }
    except Exception:
        said |= {"error": "unexpected", "message": traceback.format_exc()}
    after = [variable.numpy() for variable in getattr(model, "variables", ())]
    said["untouched"] = all(a.tobytes() == b.tobytes() for a, b in zip(variables, after, strict=True))
    return said


def _farthest(model: Any, bundle: Any) -> float:
    """The model asked anew, by name, in inference mode; the outputs in the order of its own flat structure."""
    farthest = 0.0
    for probe in bundle.probes():
        feeds = list(probe.inputs.values())
        if isinstance(model, Subclassed):
            answer = model(*feeds, training=False)
        elif isinstance(model, tf.Module) and not hasattr(model, "layers"):
            answer = model(*feeds)
        elif isinstance(getattr(model, "_inputs_struct", None), dict):
            answer = model(dict(probe.inputs), training=False)
        else:
            answer = model(feeds if len(feeds) > 1 else feeds[0], training=False)
        flat = (
            {name: tf.nest.flatten(value) for name, value in answer.items()}
            if isinstance(answer, dict)
            else None
        )
        own = [t for part in flat.values() for t in part] if flat is not None else tf.nest.flatten(answer)
        for sealed, tensor in zip(probe.outputs.values(), own, strict=True):
            difference = np.abs(sealed.astype(np.float64) - tensor.numpy().astype(np.float64))
            farthest = max(farthest, float(np.max(difference, initial=0.0)))
    return farthest


def _save_files(folder: Path) -> None:
    folder.mkdir()
    model, _ = trained_sequential()
    model.save(folder / "digits.keras")
    model.save_weights(folder / "digits.weights.h5")
    marker = str(folder / "payload-ran")
    planted = layers.Lambda(
        lambda x: (__import__("os").makedirs(marker, exist_ok=True), x)[1], name="planted"
    )
    carrier = keras.Sequential([keras.Input((4,), name="x"), planted, layers.Dense(2, name="y")])
    carrier.save(folder / "planted.keras")
    Path(marker).rmdir()  # building the model ran the payload once, which shows that it works


def main(out: Path) -> None:
    keras.utils.set_random_seed(0)
    report = {build.__name__: _export(build, out) for build in ZOO}
    _save_files(out / "files")
    (out / "report.json").write_text(json.dumps(report))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
