"""Six layers of a transformer in Flax nnx, 30 M parameters, from memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

ENVIRONMENT: str | None = "jax"
MODEL = "Flax nnx transformer of six layers, 29.6 M parameters"

_WIDTH, _LAYERS, _WORDS, _LENGTH = 512, 6, 20_000, 64


def build() -> tuple[Any, dict[str, Any]]:
    """The model, with random weights."""
    import numpy as np
    from flax import nnx

    class Layer(nnx.Module):
        def __init__(self, rngs: Any) -> None:
            self.before = nnx.LayerNorm(_WIDTH, rngs=rngs)
            self.attend = nnx.MultiHeadAttention(8, _WIDTH, decode=False, rngs=rngs)
            self.between = nnx.LayerNorm(_WIDTH, rngs=rngs)
            self.wide = nnx.Linear(_WIDTH, 4 * _WIDTH, rngs=rngs)
            self.narrow = nnx.Linear(4 * _WIDTH, _WIDTH, rngs=rngs)

        def __call__(self, x: Any) -> Any:
            x = x + self.attend(self.before(x))
            return x + self.narrow(nnx.gelu(self.wide(self.between(x))))

    class Encoder(nnx.Module):
        def __init__(self, rngs: Any) -> None:
            self.embed = nnx.Embed(_WORDS, _WIDTH, rngs=rngs)
            self.layers = nnx.List([Layer(rngs) for _ in range(_LAYERS)])

        def __call__(self, tokens: Any) -> Any:
            x = self.embed(tokens)
            for layer in self.layers:
                x = layer(x)
            return x.mean(1)

    tokens = np.arange(2 * _LENGTH, dtype=np.int32).reshape(2, _LENGTH) % _WORDS
    return Encoder(nnx.Rngs(0)), {"inputs": {"tokens": tokens}}


def bare(model: Any, options: dict[str, Any], path: Path) -> None:
    """jax2onnx's own call, as its documentation has it."""
    import jax
    import jax.numpy as jnp
    from jax2onnx import to_onnx

    model.eval()
    inputs = [jax.ShapeDtypeStruct(("B", _LENGTH), jnp.int32)]
    to_onnx(model, inputs, opset=18, return_mode="file", output_path=str(path))
