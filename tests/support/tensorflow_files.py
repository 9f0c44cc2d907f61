"""Models of TensorFlow in every form in which it saves them, with and without payloads; run in its environment."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from support import tensorflow_nets as nets

# --- every form in which TensorFlow saves a model -----------------------------------------------------------


def saved_model(folder: Path) -> tuple[Any, dict[str, Any]]:
    import tensorflow as tf

    net, _ = nets.picture()
    tf.saved_model.save(net, str(folder / "net"))
    return str(folder / "net"), {}


def signature(folder: Path) -> tuple[Any, dict[str, Any]]:
    save_with_two_signatures(nets.matrix()[0], folder / "net")
    return str(folder / "net"), {"signature": "scaled"}


def save_with_two_signatures(net: Any, path: Path) -> None:
    """A SavedModel with several signatures, one of them with two inputs and two outputs."""
    import tensorflow as tf

    @tf.function(
        input_signature=[tf.TensorSpec([None, 6], tf.float32, "second"), tf.TensorSpec([], name="first")]
    )
    def scaled(second: Any, first: Any) -> Any:
        return {"small": second * first, "large": net(second)["y"] / first}

    tf.saved_model.save(net, str(path), signatures={"plain": net.__call__, "scaled": scaled})


def from_keras(folder: Path) -> tuple[Any, dict[str, Any]]:
    import keras

    net = keras.Sequential([keras.Input((6,)), keras.layers.Dense(4), keras.layers.BatchNormalization()])
    net.export(str(folder / "net"), verbose=False)
    return str(folder / "net"), {}


def from_keras_2(folder: Path) -> tuple[Any, dict[str, Any]]:
    import tf_keras

    layers = tf_keras.layers
    net = tf_keras.Sequential([tf_keras.Input((6,), name="x"), layers.Dense(4), layers.LayerNormalization()])
    net.compile("sgd", "mse")
    net.fit(np.ones((4, 6), np.float32), np.ones((4, 4), np.float32), verbose=0)
    net.save(str(folder / "net"), save_format="tf")
    return str(folder / "net"), {}


def with_v1_session(build: Callable[[Any, Any], None]) -> None:
    import tensorflow as tf

    v1 = tf.compat.v1
    with tf.Graph().as_default(), v1.Session() as session:
        x = v1.placeholder(tf.float32, [None, 6], "x")
        normal = v1.random_normal_initializer
        weights = v1.get_variable("dense/kernel", [6, 3], use_resource=False, initializer=normal(seed=1))
        bias = v1.get_variable("dense/bias", [3], use_resource=True, initializer=normal(seed=2))
        tf.nn.softmax(x @ weights + bias, name="probs")
        session.run(v1.global_variables_initializer())
        build(v1, session)


def saved_by_tf_1(folder: Path) -> tuple[Any, dict[str, Any]]:
    def save(v1: Any, session: Any) -> None:
        graph = session.graph
        v1.saved_model.simple_save(
            session, str(folder / "net"), {"x": graph.get_tensor_by_name("x:0")},
            {"probs": graph.get_tensor_by_name("probs:0")},
        )  # fmt: skip

    with_v1_session(save)
    return str(folder / "net"), {}


def frozen(folder: Path) -> tuple[Any, dict[str, Any]]:
    from tensorflow.python.framework.convert_to_constants import convert_variables_to_constants_v2

    net, _ = nets.picture()
    frozen = convert_variables_to_constants_v2(net.__call__.get_concrete_function())
    (folder / "net.pb").write_bytes(frozen.graph.as_graph_def().SerializeToString())
    return str(folder / "net.pb"), {}


def frozen_by_tf_1(folder: Path) -> tuple[Any, dict[str, Any]]:
    def freeze(v1: Any, session: Any) -> None:
        definition = v1.graph_util.convert_variables_to_constants(
            session, session.graph.as_graph_def(), ["probs"]
        )
        (folder / "net.pb").write_bytes(definition.SerializeToString())

    with_v1_session(freeze)
    return str(folder / "net.pb"), {}


def checkpoint(folder: Path) -> tuple[Any, dict[str, Any]]:
    import tensorflow as tf

    net, _ = nets.matrix()
    prefix = tf.train.Checkpoint(step=tf.Variable(3), model=net).save(str(folder / "ckpt"))
    return prefix, {"factory": "support.tensorflow_files:matrix_net"}


def checkpoint_folder(folder: Path) -> tuple[Any, dict[str, Any]]:
    checkpoint(folder)
    return str(folder), {"factory": "support.tensorflow_files:matrix_net"}


def keras_checkpoint(folder: Path) -> tuple[Any, dict[str, Any]]:
    """What a Keras 3 model and its optimizer leave behind, read by a network that was never compiled."""
    import keras
    import tensorflow as tf

    net = keras_net()
    net.compile("adam", "mse")
    net.fit(np.ones((4, 6), np.float32), np.ones((4, 3), np.float32), verbose=0)
    prefix = tf.train.Checkpoint(net=net, optimizer=net.optimizer).save(str(folder / "ckpt"))
    keras.utils.set_random_seed(7)
    return prefix, {"factory": "support.tensorflow_files:keras_net"}


def keras_2_weights(folder: Path) -> tuple[Any, dict[str, Any]]:
    keras_2_net().save_weights(str(folder / "weights"), save_format="tf")
    return str(folder / "weights"), {"factory": "support.tensorflow_files:keras_2_net"}


def tf_1_checkpoint(folder: Path) -> tuple[Any, dict[str, Any]]:
    with_v1_session(lambda v1, session: v1.train.Saver().save(session, str(folder / "model")))
    return str(folder / "model"), {"factory": "support.tensorflow_files:named_net"}


# --- factories ----------------------------------------------------------------------------------------------


def matrix_net() -> Any:
    return nets.matrix()[0]


def keras_net() -> Any:
    import keras

    layers = keras.layers
    return keras.Sequential([keras.Input((6,), name="x"), layers.Dense(3), layers.BatchNormalization()])


def keras_2_net() -> Any:
    import tf_keras

    layers = tf_keras.layers
    return tf_keras.Sequential([tf_keras.Input((6,), name="x"), layers.Dense(3), layers.BatchNormalization()])


def named_net() -> Any:
    import tensorflow as tf

    class Named(tf.Module):
        def __init__(self) -> None:
            super().__init__()
            self.kernel = tf.Variable(tf.zeros([6, 3]), name="dense/kernel")
            self.bias = tf.Variable(tf.zeros([3]), name="dense/bias")

        @tf.function(input_signature=[tf.TensorSpec([None, 6], tf.float32, "x")])
        def __call__(self, x: Any) -> Any:
            return tf.nn.softmax(x @ self.kernel + self.bias)

    return Named()


# --- payloads -----------------------------------------------------------------------------------------------


def writing(canary: Path) -> Callable[[Any], Any]:
    """A function of `x` that writes the canary when it is called."""
    import tensorflow as tf

    @tf.function(input_signature=[tf.TensorSpec([None, 3], tf.float32, "x")])
    def serve(x: Any) -> Any:
        tf.io.write_file(str(canary), "ran")
        return {"y": x + 1.0}

    return serve


def planted_write(folder: Path, canary: Path) -> tuple[Any, dict[str, Any]]:
    import tensorflow as tf

    net = tf.Module()
    net.serve = writing(canary)
    tf.saved_model.save(net, str(folder / "net"), signatures=net.serve)
    return str(folder / "net"), {}


def planted_python(folder: Path, canary: Path) -> tuple[Any, dict[str, Any]]:
    """A call back into Python, which finds its function in the process that made the file, as this one does."""
    import tensorflow as tf

    def payload(x: Any) -> Any:
        canary.touch()
        return x

    @tf.function(input_signature=[tf.TensorSpec([None, 3], tf.float32, "x")])
    def serve(x: Any) -> Any:
        return {"y": tf.ensure_shape(tf.py_function(payload, [x], tf.float32), [None, 3])}

    net = tf.Module()
    net.serve, net.payload = serve, None
    tf.saved_model.save(net, str(folder / "net"), signatures=serve)
    _ALIVE.append(serve)
    return str(folder / "net"), {}


_ALIVE: list[Any] = []
"""What keeps planted Python functions registered while their files are tried."""


def planted_by_saver(folder: Path, canary: Path) -> tuple[Any, dict[str, Any]]:
    """The operator that saves variables, which a SavedModel always holds, where an answer comes from."""
    import tensorflow as tf

    @tf.function(input_signature=[tf.TensorSpec([None, 3], tf.float32, "x")])
    def serve(x: Any) -> Any:
        stolen = tf.raw_ops.SaveV2(
            prefix=str(canary / "stolen"), tensor_names=["x"], shape_and_slices=[""], tensors=[x]
        )
        with tf.control_dependencies([stolen]):
            return {"y": x + 1.0}

    net = tf.Module()
    net.serve = serve
    tf.saved_model.save(net, str(folder / "net"), signatures=serve)
    return str(folder / "net"), {}


def planted_frozen(folder: Path, canary: Path) -> tuple[Any, dict[str, Any]]:
    graph = writing(canary).get_concrete_function().graph.as_graph_def()
    for node in graph.node:  # what only runs for its effect is pruned, so the answer waits for it
        if node.op == "AddV2":
            node.input.append("^WriteFile")
    (folder / "net.pb").write_bytes(graph.SerializeToString())
    return str(folder / "net.pb"), {}


def planted_initialiser(folder: Path, canary: Path) -> tuple[Any, dict[str, Any]]:
    """An initialiser of a TF 1 SavedModel, which runs while the model is being loaded."""

    def save(v1: Any, session: Any) -> None:
        import tensorflow as tf

        graph = session.graph
        main = tf.io.write_file(str(canary), "ran")
        builder = v1.saved_model.Builder(str(folder / "net"))
        signature = v1.saved_model.predict_signature_def(
            {"x": graph.get_tensor_by_name("x:0")}, {"y": graph.get_tensor_by_name("probs:0")}
        )
        builder.add_meta_graph_and_variables(session, ["serve"], {"serving_default": signature}, main_op=main)
        builder.save()

    with_v1_session(save)
    return str(folder / "net"), {}
