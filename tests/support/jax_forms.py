"""Functions whose steps ONNX does otherwise than JAX; as a program, exports each: `python jax_forms.py FOLDER`."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from paritygate.converter.errors import ConverterError
from paritygate.converter.exporters import export_model

TABLE = np.arange(12, dtype=np.float32).reshape(4, 3)
PLACES = np.array([0, 3, -1, 100, -100, 2], np.int32)
HALVES = np.array([0.5, 1.5, 2.5, -0.5, -1.5, -2.5, 2.4, -2.6, 0.0], np.float32)
BEYOND = np.array([np.nan, np.inf, -np.inf, 3e9, -3e9, 1e20, -7.9, 7.9], np.float32)
WHOLE = np.array([[1, -2, 3], [4, 5, -6]], np.int32)
SMALL = np.array([1e-6, -2e-7, 3e-8, 1e-20, -0.5, 5.0, 80.0], np.float32)
FLAGS = np.array([[True, False], [False, False]])


def _truths(x: Any, y: Any) -> Any:
    return lax.max(x, y), lax.min(x, y), jnp.max(x, 1), jnp.min(x, 1)


def _near_zero(x: Any) -> Any:
    """Their sizes are of one order after the division, so that no digit hides behind a larger answer."""
    return jnp.log1p(x) / x, jnp.expm1(x) / x


FORMS: dict[str, tuple[Callable[..., Any], dict[str, np.ndarray[Any, Any]]]] = {
    "gather_clips": (lambda i: jnp.asarray(TABLE).at[i].get(mode="clip"), {"i": PLACES}),
    "gather_fills": (lambda i: jnp.asarray(TABLE).at[i].get(mode="fill", fill_value=7.0), {"i": PLACES}),
    "take": (lambda i: jnp.take(jnp.asarray(TABLE), i, axis=0, mode="clip"), {"i": PLACES}),
    "halves_away": (lambda x: lax.round(x, lax.RoundingMethod.AWAY_FROM_ZERO), {"x": HALVES}),
    "halves_even": (lambda x: jnp.round(x), {"x": HALVES}),
    "floats_as_int32": (lambda x: x.astype(jnp.int32), {"x": BEYOND}),
    "floats_as_uint8": (lambda x: x.astype(jnp.uint8), {"x": BEYOND}),
    "near_zero": (_near_zero, {"x": SMALL}),
    "negative_unsigned": (lambda x: -x, {"x": np.array([0, 1, 200], np.uint32)}),
    "truths": (_truths, {"x": FLAGS, "y": FLAGS.T.copy()}),
    "whole_matrices": (lambda x, y: x @ y.T, {"x": WHOLE, "y": WHOLE}),
    "tiled": (lambda x: jnp.tile(x, (2, 3)), {"x": TABLE}),
    "stacked": (lambda x: jnp.stack([x, x + 1, -x], 1), {"x": TABLE}),
    "backwards": (lambda x: lax.scan(lambda c, r: (c * 0.5 + r, c), x[0], x, reverse=True), {"x": TABLE}),
    "slice_kept_inside": (lambda x, i: lax.dynamic_slice(x, (i, 0), (2, 3)), {"x": TABLE, "i": np.int32(9)}),
    "least_of_windows": (
        lambda x: lax.reduce_window(x, jnp.inf, lax.min, (1, 2, 2, 1), (1, 1, 1, 1), "VALID"),
        {"x": np.random.default_rng(0).standard_normal((2, 5, 5, 3)).astype(np.float32)},
    ),
}
REFUSED: dict[str, tuple[Callable[..., Any], dict[str, np.ndarray[Any, Any]]]] = {
    "complex": (lambda x: jnp.abs(x + 1j * x), {"x": TABLE}),
    "fft": (lambda x: jnp.abs(jnp.fft.rfft(x)), {"x": TABLE}),
}


def main(folder: Path) -> None:
    """A bundle for each form, with the very example as sealed sample, and `refused.json`."""
    jax.config.update("jax_platforms", "cpu")
    for name, (function, example) in FORMS.items():
        export_model(
            function, folder / name, name="form", framework="jax", inputs=example, dynamic={},
            samples=[example], include_samples=True,
        )  # fmt: skip
    said = {}
    for name, (function, example) in REFUSED.items():
        try:
            export_model(function, folder / name, name="form", framework="jax", inputs=example, dynamic={})
        except ConverterError as error:
            said[name] = f"{type(error).__name__}: {error}"
    (folder / "refused.json").write_text(json.dumps(said), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
