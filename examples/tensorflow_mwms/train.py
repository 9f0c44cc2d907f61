"""A small CNN tells horizontal from vertical bars on every worker of a TensorFlow job; worker 0 exports it.

`tf_keras` and not Keras 3: the `fit` of Keras 3 refuses the per-replica tensors of MultiWorkerMirroredStrategy.
"""

from __future__ import annotations

import argparse

import numpy as np
import tensorflow as tf
import tf_keras

from paritygate.train_hooks import after_training, begin


def bars(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Noisy images, float32[count, 8, 8, 1], and whether their bar stands upright, int64[count]."""
    random = np.random.default_rng(seed)
    images = random.normal(0.0, 0.3, (count, 8, 8, 1)).astype(np.float32)
    upright = random.integers(0, 2, count)
    place = random.integers(0, 8, count)
    for image, is_upright, at in zip(images, upright, place, strict=True):
        view = image.transpose(1, 0, 2) if is_upright else image
        view[at] += 1.0
    return images, upright.astype(np.int64)


def build() -> tf_keras.Model:
    """Convolution, batch normalisation, pooling, two logits."""
    layers = tf_keras.layers
    return tf_keras.Sequential(
        [
            layers.Input((8, 8, 1), name="image"),
            layers.Conv2D(8, 3, padding="same", use_bias=False),
            layers.BatchNormalization(),
            layers.ReLU(),
            layers.MaxPooling2D(),
            layers.Flatten(),
            layers.Dense(2, name="logits"),
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=3)
    arguments = parser.parse_args()

    begin()  # no core environment to publish in? say so now and not after the training
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    with strategy.scope():
        model = build()
        model.compile(
            optimizer=tf_keras.optimizers.Adam(5e-3),
            loss=tf_keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            metrics=["accuracy"],
        )
    images, upright = bars(1024, seed=5)
    data = tf.data.Dataset.from_tensor_slices((images, upright)).shuffle(1024, seed=5).batch(64).repeat()
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    history = model.fit(data.with_options(options), epochs=arguments.epochs, steps_per_epoch=16, verbose=0)
    for epoch, loss in enumerate(history.history["loss"]):
        print(f"epoch {epoch}: loss {loss:.4f}")

    # Every worker calls it; worker 0 alone exports and publishes.
    result = after_training(
        model,
        images[:4],
        input_names=["image"],
        output_names=["logits"],
        dynamic={"image": {0: "batch"}},
    )
    if result is not None:
        print(result)


if __name__ == "__main__":
    main()
