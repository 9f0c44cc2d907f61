"""Networks of JAX and Flax for the exporter's cases, and the factories for their checkpoints."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen, nnx
from jax import lax

from paritygate.converter.checkpoints.torch_archive import TensorRef, read_archive
from support.digits_data import digits
from support.exporter_cases import sample
from support.model_packages import unpacked


def matrix() -> tuple[Any, Any]:
    """A plain function of two layers, and its parameters."""
    random = np.random.default_rng(1)
    sizes = {"w1": (6, 8), "b1": (8,), "w2": (8, 3), "b2": (3,)}
    params = {name: random.standard_normal(size).astype(np.float32) for name, size in sizes.items()}

    def answer(params: Any, x: Any) -> Any:
        hidden = jnp.tanh(x @ params["w1"] + params["b1"])
        return jax.nn.softmax(hidden @ params["w2"] + params["b2"])

    return answer, params


def matrix_with_example() -> tuple[Any, Any]:
    """The same, as a factory."""
    return matrix(), {"x": sample(4, 6)}


class Picture(nnx.Module):
    """Convolution, normalisation, pooling by position, dropout."""

    def __init__(self, rngs: nnx.Rngs, classes: int = 3) -> None:
        self.conv = nnx.Conv(1, 4, (3, 3), rngs=rngs)
        self.norm = nnx.BatchNorm(4, rngs=rngs)
        self.drop = nnx.Dropout(0.5, rngs=rngs)
        self.head = nnx.Linear(64, classes, rngs=rngs)

    def __call__(self, image: Any) -> Any:
        hidden = nnx.max_pool(nnx.relu(self.norm(self.conv(image))), (2, 2), (2, 2))
        return self.head(self.drop(hidden.reshape(hidden.shape[0], -1)))


def picture() -> Any:
    """A picture network whose running statistics are not those it began with."""
    net = Picture(nnx.Rngs(0))
    net.train()
    net(jnp.asarray(3 * sample(16, 8, 8, 1) + 1))
    return net


def picture_with_example() -> tuple[Any, Any]:
    """The same, as a factory."""
    return picture(), {"image": sample(2, 8, 8, 1)}


def other_picture_with_example() -> tuple[Any, Any]:
    """One of more classes."""
    return Picture(nnx.Rngs(0), classes=5), {"image": sample(2, 8, 8, 1)}


class Words(nnx.Module):
    """Embedding, attention, normalisation."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.embed = nnx.Embed(11, 8, rngs=rngs)
        self.attend = nnx.MultiHeadAttention(2, 8, decode=False, rngs=rngs)
        self.norm = nnx.LayerNorm(8, rngs=rngs)

    def __call__(self, tokens: Any) -> dict[str, Any]:
        hidden = self.embed(tokens)
        hidden = self.norm(hidden + self.attend(hidden))
        return {"hidden": hidden, "mean": hidden.mean(1)}


class Small(linen.Module):
    """A network of linen that is told whether it trains."""

    @linen.compact
    def __call__(self, x: Any, train: bool = False) -> Any:
        hidden = linen.relu(linen.BatchNorm(use_running_average=not train)(linen.Dense(8)(x)))
        return linen.Dense(3)(linen.Dropout(0.5, deterministic=not train)(hidden))


def small() -> tuple[Any, Any]:
    """It with variables."""
    net = Small()
    return net, net.init(jax.random.key(0), jnp.ones((2, 6)))


def small_with_example() -> tuple[Any, Any]:
    """It without variables, as a factory."""
    return Small(), {"x": sample(4, 6)}


def sequence() -> tuple[Any, Any]:
    """An LSTM of linen."""
    net = linen.RNN(linen.LSTMCell(5))
    return net, net.init(jax.random.key(0), jnp.ones((2, 7, 3)))


def whole_numbers(a: Any, b: Any) -> tuple[Any, ...]:
    """The divisions that Python has, and those that C has."""
    return jnp.floor_divide(a, b), jnp.mod(a, b), lax.div(a, b), lax.rem(a, b)


def loops(x: Any) -> dict[str, Any]:
    """Loops of fixed length, over nothing, and until the data say so; and a choice of three."""
    grown, counter = lax.fori_loop(0, 5, lambda _, s: (s[0] + 0.1 * s[0], s[1] + 1), (x, jnp.int32(0)))
    _, trail = lax.scan(lambda c, _: (c * 0.5, c.sum()), x, xs=None, length=4)
    halved = lax.while_loop(lambda v: jnp.max(jnp.abs(v)) > 1.0, lambda v: v / 2.0, x)
    index = (x[0] > 0).astype(jnp.int32) + (x[0] > 1)
    chosen = lax.switch(index, [lambda v: v, lambda v: v * 2, lambda v: -v], x)
    return {"grown": grown, "counter": counter, "trail": trail, "halved": halved, "chosen": chosen}


def loops_with_example() -> tuple[Any, Any]:
    """The same, as a factory."""
    return loops, {"x": sample(3)}


def windows(x: Any) -> tuple[Any, ...]:
    """Places of a vector that hang on another input, as JAX clamps them to the vector's end."""
    start = jnp.sum(x).astype(jnp.int32)
    return lax.dynamic_slice(x, (start,), (3,)), lax.dynamic_update_slice(x, x[:2] + 1, (start,))


def windows_with_example() -> tuple[Any, Any]:
    """The same, as a factory."""
    return windows, {"x": sample(9)}


def proposals() -> tuple[Any, dict[str, Any]]:
    """The network that proposes faces in facenet-pytorch, with its weights, said in JAX."""
    path = unpacked("facenet-pytorch") / "facenet_pytorch" / "data" / "pnet.pt"
    return _propose, {name: _channels_last(value) for name, value in torch_weights(path).items()}


def _propose(params: Any, image: Any) -> dict[str, Any]:
    """float32[batch, height, width, 3] to boxes and probabilities at every place."""
    hidden = _prelu(_conv(image, params, "conv1"), params["prelu1.weight"])
    hidden = linen.max_pool(hidden, (2, 2), strides=(2, 2), padding=[(0, 0), (0, 0)])
    hidden = _prelu(_conv(hidden, params, "conv2"), params["prelu2.weight"])
    hidden = _prelu(_conv(hidden, params, "conv3"), params["prelu3.weight"])
    return {
        "boxes": _conv(hidden, params, "conv4_2"),
        "faces": jax.nn.softmax(_conv(hidden, params, "conv4_1"), axis=-1),
    }


def _conv(x: Any, params: Any, name: str) -> Any:
    kernel = params[f"{name}.weight"]
    form = ("NHWC", "HWIO", "NHWC")
    return (
        lax.conv_general_dilated(x, kernel, (1, 1), "VALID", dimension_numbers=form) + params[f"{name}.bias"]
    )


def _prelu(x: Any, slope: Any) -> Any:
    return jnp.where(x >= 0, x, slope * x)


def _channels_last(value: Any) -> Any:
    return value.transpose(2, 3, 1, 0) if value.ndim == 4 else value


def torch_weights(path: Path) -> dict[str, Any]:
    """The arrays of a PyTorch file, read without torch."""
    archive = read_archive(path)
    return {name: _array(archive, ref) for name, ref in archive.content.items() if isinstance(ref, TensorRef)}


def _array(archive: Any, ref: TensorRef) -> Any:
    values = np.frombuffer(archive.read(ref.storage), ref.dtype)[ref.offset :]
    strides = [step * values.itemsize for step in ref.stride]
    return np.lib.stride_tricks.as_strided(values, ref.shape, strides).copy()


def trained() -> tuple[Any, Any]:
    """A picture network that was trained here on digits; the first pictures."""
    import optax

    pictures, classes = digits()
    net = Picture(nnx.Rngs(0), classes=10)
    optimizer = nnx.Optimizer(net, optax.adam(3e-3), wrt=nnx.Param)

    @nnx.jit
    def step(net: Any, optimizer: Any, x: Any, y: Any) -> None:
        def loss(net: Any) -> Any:
            return optax.softmax_cross_entropy_with_integer_labels(net(x), y).mean()

        optimizer.update(net, nnx.grad(loss)(net))

    net.train()
    order = np.random.default_rng(0)
    for _ in range(4):
        shuffled = order.permutation(1792)
        for rows in np.split(shuffled, 28):
            step(net, optimizer, pictures[rows], classes[rows])
    net.eval()
    right = float((np.asarray(net(pictures)).argmax(1) == classes).mean())
    assert right > 0.8, f"the network has learned nothing: {right:.2f} of the digits are right"
    net.train()
    return net, pictures[:5]
