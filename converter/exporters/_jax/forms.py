"""Steps of a program that have no ONNX operator, or one that means something else, in forms that have one.

Every rule says a step again through JAX itself, in other steps that give the same numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from paritygate.converter.exporters import near_zero

if TYPE_CHECKING:
    from paritygate.converter.exporters._jax.rewriting import Rewriter

Rule = Callable[["Rewriter", Any, list[Any]], list[Any]]

# --- windows ------------------------------------------------------------------------------------------------


def _max_window(rewriter: Rewriter, equation: Any, given: list[Any]) -> list[Any]:
    return [_pooled(given[0], equation.params)]


def _min_window(rewriter: Rewriter, equation: Any, given: list[Any]) -> list[Any]:
    return [-_pooled(-given[0], equation.params)]


def _pooled(x: Any, params: Mapping[str, Any]) -> Any:
    """A maximum over windows with the windowed axes behind two others, as MaxPool has them.

    Flax pools pictures as [batch, height, width, channel]; a MaxPool over four axes, which that would be as it
    stands, runs in no runtime.
    """
    rank = x.ndim
    plain = [axis for axis in range(rank) if _is_plain(axis, params)]
    pooled = [axis for axis in range(rank) if axis not in plain]
    if not pooled:
        return x
    order = [*plain, *pooled]
    moved = lax.transpose(x, order)
    head, tail = moved.shape[: len(plain)], moved.shape[len(plain) :]
    flat = moved if len(plain) == 2 else lax.reshape(moved, (math.prod(head), 1, *tail))
    answer = lax.reduce_window_max_p.bind(flat, **{key: _moved(key, params[key], pooled) for key in params})
    if len(plain) != 2:
        answer = lax.reshape(answer, (*head, *answer.shape[2:]))
    return lax.transpose(answer, [order.index(axis) for axis in range(rank)])


def _is_plain(axis: int, params: Mapping[str, Any]) -> bool:
    """Whether a window does nothing along an axis."""
    return (
        params["window_dimensions"][axis] == 1
        and params["window_strides"][axis] == 1
        and tuple(params["padding"][axis]) == (0, 0)
        and params["base_dilation"][axis] == 1
    )


def _moved(key: str, value: Any, pooled: Sequence[int]) -> Any:
    neutral = (0, 0) if key == "padding" else 1
    return (neutral, neutral, *(value[axis] for axis in pooled))


# --- places -------------------------------------------------------------------------------------------------


def _gather(rewriter: Rewriter, equation: Any, given: list[Any]) -> list[Any]:
    """JAX takes the nearest place for one outside, where ONNX's Gather ends the run."""
    operand, indices = given
    numbers, sizes = equation.params["dimension_numbers"], equation.params["slice_sizes"]
    if equation.params["mode"] == lax.GatherScatterMode.FILL_OR_DROP:
        return rewriter.bind(equation, given)
    limits = [operand.shape[axis] - sizes[axis] for axis in numbers.start_index_map]
    dtype = np.dtype(indices.dtype)
    if any(isinstance(limit, int) and limit > np.iinfo(dtype).max for limit in limits):
        return rewriter.bind(equation, given)
    highest = lax.concatenate([jnp.asarray(limit, dtype).reshape(1) for limit in limits], 0)
    inside = lax.max(
        lax.min(indices, jnp.broadcast_to(highest, indices.shape)), jnp.zeros(indices.shape, dtype)
    )
    return rewriter.bind(equation, [operand, inside])


def _slice(rewriter: Rewriter, equation: Any, given: list[Any]) -> list[Any]:
    operand, *starts = given
    ends = equation.params["slice_sizes"]
    return [lax.dynamic_slice_p.bind(operand, *_clamped(operand, starts, ends), slice_sizes=ends)]


def _update(rewriter: Rewriter, equation: Any, given: list[Any]) -> list[Any]:
    operand, update, *starts = given
    return [lax.dynamic_update_slice_p.bind(operand, update, *_clamped(operand, starts, update.shape))]


def _clamped(operand: Any, starts: Sequence[Any], sizes: Sequence[Any]) -> list[Any]:
    """Places at which a part of these sizes lies inside, which JAX does on its own and ONNX does not."""
    return [
        jnp.clip(start, 0, jnp.asarray(whole - size, start.dtype))
        for start, whole, size in zip(starts, operand.shape, sizes, strict=True)
    ]


# --- numbers ------------------------------------------------------------------------------------------------


def _round(rewriter: Rewriter, equation: Any, given: list[Any]) -> list[Any]:
    """Halves away from zero, where ONNX's Round takes the even neighbour."""
    (x,) = given
    if equation.params["rounding_method"] != lax.RoundingMethod.AWAY_FROM_ZERO:
        return rewriter.bind(equation, given)
    size = lax.abs(x)
    below = lax.floor(size)
    half, one = jnp.asarray(0.5, x.dtype), jnp.asarray(1, x.dtype)
    return [lax.sign(x) * jnp.where(size - below >= half, below + one, below)]


def _convert(rewriter: Rewriter, equation: Any, given: list[Any]) -> list[Any]:
    """Floats as integers: the nearest one that the type has, and 0 for no number; ONNX's Cast leaves both open."""
    (x,) = given
    wanted = np.dtype(equation.params["new_dtype"])
    if wanted.kind not in "iu" or np.dtype(x.dtype).kind != "f" or wanted.type.__module__ == "ml_dtypes":
        return rewriter.bind(equation, given)
    own = np.dtype(x.dtype).type
    low, high = own(np.iinfo(wanted).min), own(np.iinfo(wanted).max)
    fits = int(high) <= np.iinfo(wanted).max
    most = high if fits else np.nextafter(high, own(0))
    number = jnp.where(x == x, x, own(0))
    (whole,) = rewriter.bind(equation, [jnp.clip(number, low, most)])
    return [whole] if fits else [jnp.where(number >= high, np.iinfo(wanted).max, whole)]


class _InJax:
    """See `near_zero.Writer`: JAX's own steps, in the type of a value."""

    _STEPS: Mapping[str, Callable[..., Any]] = {
        "Abs": lax.abs, "Add": jnp.add, "Div": jnp.divide, "Exp": lax.exp, "Less": jnp.less, "Log": lax.log,
        "Max": jnp.maximum, "Mul": jnp.multiply, "Sub": jnp.subtract, "Tanh": lax.tanh, "Where": jnp.where,
    }  # fmt: skip

    def __init__(self, dtype: Any) -> None:
        self._dtype = dtype
        self.eps = float(jnp.finfo(dtype).eps)

    def op(self, operator: str, *inputs: Any) -> Any:
        return self._STEPS[operator](*inputs)

    def number(self, value: float) -> Any:
        return jnp.asarray(value, self._dtype)


def _near_zero(form: Callable[..., Any], *types: Any) -> Rule:
    """A step that keeps its digits near zero in these types, where jax2onnx subtracts what is nearly the same."""

    def rule(rewriter: Rewriter, equation: Any, given: list[Any]) -> list[Any]:
        (x,) = given
        if np.dtype(x.dtype) not in types:
            return rewriter.bind(equation, given)
        return [form(_InJax(x.dtype), x)]

    return rule


def _neg(rewriter: Rewriter, equation: Any, given: list[Any]) -> list[Any]:
    (x,) = given
    return [jnp.zeros((), x.dtype) - x] if np.dtype(x.dtype).kind == "u" else rewriter.bind(equation, given)


def _of_booleans(form: Callable[..., Any]) -> Rule:
    """A larger or smaller one of two truths, which ONNX's Max and Min do not take, as `or` and `and`."""

    def rule(rewriter: Rewriter, equation: Any, given: list[Any]) -> list[Any]:
        if given[0].dtype != np.bool_:
            return rewriter.bind(equation, given)
        return [form(*given, **{key: tuple(v) for key, v in equation.params.items() if key == "axes"})]

    return rule


def _dot(rewriter: Rewriter, equation: Any, given: list[Any]) -> list[Any]:
    """Integers behind a batch of one: as plain matrices they become a Gemm, which runs on floats only."""
    left, right = given
    (_, (left_batch, _)) = equation.params["dimension_numbers"]
    if left_batch or np.dtype(left.dtype).kind not in "iu" or left.ndim != 2 or right.ndim != 2:
        return rewriter.bind(equation, given)
    ((left_axes, right_axes), _) = equation.params["dimension_numbers"]
    if len(left_axes) != 1:
        return rewriter.bind(equation, given)
    numbers = (((left_axes[0] + 1,), (right_axes[0] + 1,)), ((0,), (0,)))
    answer = lax.dot_general(
        left[None], right[None], numbers, preferred_element_type=equation.outvars[0].aval.dtype
    )
    return [answer[0]]


# --- shapes -------------------------------------------------------------------------------------------------


def _tile(_rewriter: Rewriter, equation: Any, given: list[Any]) -> list[Any]:
    (x,) = given
    reps = equation.params["reps"]
    pairs = list(zip(reps, x.shape, strict=True))
    apart = lax.reshape(x, [size for _, n in pairs for size in (1, n)])
    wide = jnp.broadcast_to(apart, [size for pair in pairs for size in pair])
    return [lax.reshape(wide, [times * n for times, n in pairs])]


def _stack(_rewriter: Rewriter, equation: Any, given: list[Any]) -> list[Any]:
    axis = equation.params["axis"]
    return [lax.concatenate([lax.expand_dims(x, (axis,)) for x in given], axis)]


def _unstack(_rewriter: Rewriter, equation: Any, given: list[Any]) -> list[Any]:
    (x,) = given
    axis = equation.params["axis"]
    return [lax.index_in_dim(x, index, axis, keepdims=False) for index in range(x.shape[axis])]


ONNX_RULES: Mapping[str, Rule] = {
    "reduce_window_max": _max_window,
    "reduce_window_min": _min_window,
    "gather": _gather,
    "dynamic_slice": _slice,
    "dynamic_update_slice": _update,
    "round": _round,
    "convert_element_type": _convert,
    "log1p": _near_zero(near_zero.log1p, np.float32, np.float64),
    "expm1": _near_zero(near_zero.expm1, np.float32, np.float64),
    "sinh": _near_zero(near_zero.sinh, np.float64),  # of float32 there is a kernel
    "neg": _neg,
    "max": _of_booleans(lax.bitwise_or),
    "min": _of_booleans(lax.bitwise_and),
    "reduce_max": _of_booleans(lax.reduce_or),
    "reduce_min": _of_booleans(lax.reduce_and),
    "dot_general": _dot,
    "tile": _tile,
    "stack": _stack,
    "unstack": _unstack,
}
