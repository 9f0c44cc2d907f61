"""Small `tf.Module`s that say themselves what they take."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from support.digits_data import digits


def module(
    shape: tuple[int | None, ...], body: Callable[[Any, Any, Any], Any], *weights: tuple[int, ...]
) -> Any:
    """A `tf.Module` whose call takes `x` of a shape and hands it, with its weights, to `body`."""
    import tensorflow as tf

    class Net(tf.Module):
        def __init__(self) -> None:
            super().__init__()
            generator = np.random.default_rng(0)
            self.weights = [
                tf.Variable(generator.standard_normal(size).astype(np.float32), name=f"w{k}")
                for k, size in enumerate(weights)
            ]

        @tf.function(input_signature=[tf.TensorSpec(shape, tf.float32, name="x")])
        def __call__(self, x: Any) -> Any:
            return {"y": body(tf, x, self.weights)}

    return Net()


def scalar() -> tuple[Any, dict[str, Any]]:
    return module((), lambda tf, x, w: tf.tanh(w[0] * x), (2,)), {}


def vector() -> tuple[Any, dict[str, Any]]:
    return module((None,), lambda tf, x, w: tf.sigmoid(x[:, None] * w[0]), (3,)), {}


def matrix() -> tuple[Any, dict[str, Any]]:
    return module((None, 6), lambda tf, x, w: tf.nn.softmax(tf.nn.relu(x @ w[0]) @ w[1]), (6, 8), (8, 3)), {}


def sequence() -> tuple[Any, dict[str, Any]]:
    return module(
        (None, None, 4), lambda tf, x, w: tf.cumsum(tf.einsum("btf,fg->btg", x, w[0]), 1), (4, 5)
    ), {}


def picture() -> tuple[Any, dict[str, Any]]:
    def body(tf: Any, x: Any, w: Any) -> Any:
        hidden = tf.nn.max_pool2d(tf.nn.relu(tf.nn.conv2d(x, w[0], 1, "SAME")), 2, 2, "VALID")
        return tf.reduce_mean(hidden, [1, 2]) @ w[1]

    return module((None, 8, 8, 1), body, (3, 3, 1, 4), (4, 2)), {}


def demoted() -> tuple[Any, dict[str, Any]]:
    net = module(
        (None, None, 2),
        lambda tf, x, w: tf.reshape(x, [-1, 6]) @ tf.tile(w[0], [tf.shape(x)[1] // 3, 1]),
        (6, 2),
    )
    return net, {"inputs": {"x": np.ones((2, 3, 2), np.float32)}, "dynamic": {"x": {0: "batch", 1: "frozen"}}}


def trained_on_digits() -> tuple[Any, dict[str, Any]]:
    """Softmax regression with a hidden layer, trained here by plain gradients until it reads most digits."""
    import tensorflow as tf

    net = module((None, 8, 8, 1), _reads, (64, 32), (32, 10))
    pictures, classes = digits()
    for _ in range(60):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(
                tf.keras.losses.sparse_categorical_crossentropy(classes, net(pictures)["y"])
            )
        for variable, gradient in zip(net.weights, tape.gradient(loss, net.weights), strict=True):
            variable.assign_sub(0.5 * gradient)
    right = float(np.mean(np.argmax(net(pictures)["y"], 1) == classes))
    assert right > 0.8, f"the network has learned nothing: {right:.2f} of the digits are right"
    return net, {"inputs": {"x": pictures[:5]}}


def _reads(tf: Any, x: Any, w: Any) -> Any:
    return tf.nn.softmax(tf.nn.relu(tf.reshape(x, [-1, 64]) @ w[0]) @ w[1])
