"""Probe inputs as a pure function of signature and seed: which cases to ask, and the arrays of each.

The random stream is numpy's legacy RandomState, which numpy promises never to change (NEP 19), so the same
signature and seed give the same bytes on every machine and version.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from paritygate.converter.types import Array, DType, Signature, TensorSpec

DEFAULT_SEED = 1
"""As Polygraphy's DataLoader; case number i draws from seed + i."""

SWEEP_SIZES = (1, 2, 3, 7, 17)
"""Sizes tried for each dynamic dim besides the one it was traced with: 1 (broadcasting), small, primes."""

RECIPES = {
    "random": "floats from a standard normal, integers over their range, both booleans, mixed texts",
    "zeros": "all zero, false, or empty; integers at the low end of their range",
    "ones": "all one or true; integers at the high end of their range",
    "negative": "floats below zero only",
    "small": "floats near 1e-3, where an epsilon in a normalisation shows",
    "large": "floats near 1e2, where exponentials saturate and half precision nears its end",
    "wide": "integers without a range near the ends of their type, which floats cannot hold",
    "half": "integers without a range that fill the lower half of their bits, where halves are compared as signed",
}

WIDE = ("wide", "half")
"""Recipes for models that compute with integers of any size."""

_WIDE_NUMBERS = 16
"""How many integers the cases of one wide recipe hold together at least; fewer meet a fault of halves by luck."""

_FLOAT_ONLY = ("negative", "small", "large")

_TEXTS = ("", "a", "b", "parity gate", "Grüße", "日本語")

EXTREMES = "extreme:"
"""What the names of cases with extreme inputs begin with."""

EDGES = "edges"
"""First word of the names of cases that lie exactly at the decisions of a model, where the source knows them."""

Range: TypeAlias = "tuple[float, float] | Sequence[str]"
"""Lowest and highest value of a number (both included), or the texts that a string input may hold."""


@dataclass(frozen=True)
class Case:
    """One question to ask.

    Attributes:
        name: `base`, `sweep:batch=7`, `joint:batch=3,time=7` or `extreme:zeros`.
        dims: The size of every dynamic dimension.
        recipe: A key of RECIPES.
        seed: Where this case's random stream begins.
    """

    name: str
    dims: Mapping[str, int]
    recipe: str
    seed: int


def plan_cases(
    signature: Signature,
    *,
    trace_dims: Mapping[str, int],
    seed: int = DEFAULT_SEED,
    wide: bool = False,
    telling: Mapping[str, Sequence[int]] | None = None,
) -> list[Case]:
    """The cases that prove a signature, the most important first: what a budget cuts is the end.

    `base` has all dims at their trace sizes. Then each dim alone takes the sizes 1, 2, 3, 7 and 17, others at
    trace size; two joint cases move all dims at once; last come the extremes at trace sizes.

    Args:
        signature: Its named input dims are the ones that are swept.
        trace_dims: The size of each at tracing.
        seed: Start of the random streams.
        wide: Whether to add the recipes of `WIDE` as the last cases.
        telling: More sizes of dims to try, each alone.

    Raises:
        ValueError: If a dynamic dim has no trace size.
    """
    dynamic = list(signature.dynamic_dims())
    missing = [dim for dim in dynamic if dim not in trace_dims]
    if missing:
        raise ValueError(f"no trace size is given for the dynamic dims {', '.join(missing)}")
    base = {dim: trace_dims[dim] for dim in dynamic}
    planned = [("base", base, "random")]
    planned += [
        (f"sweep:{dim}={size}", base | {dim: size}, "random")
        for dim in dynamic
        for size in SWEEP_SIZES
        if size != base[dim]
    ]
    planned += [
        (f"sweep:{dim}={size}", base | {dim: size}, "random")
        for dim in dynamic
        for size in (telling or {}).get(dim, ())
        if size not in (*SWEEP_SIZES, base[dim])
    ]
    planned += [(_joint_name(dims), dims, "random") for dims in _joint(dynamic)]
    planned += [(f"{EXTREMES}{recipe}", base, recipe) for recipe in _extremes(signature)]
    if wide:
        draws = range(-(-_WIDE_NUMBERS // max(_fewest_integers(signature, base), 2)))
        planned += [(wide_name(recipe, k), base, recipe) for recipe in WIDE for k in draws]
    return [Case(name, dims, recipe, seed + index) for index, (name, dims, recipe) in enumerate(planned)]


def make_feeds(
    signature: Signature, case: Case, *, ranges: Mapping[str, Range] | None = None
) -> dict[str, Array]:
    """The inputs of one case.

    Args:
        signature: Names, dtypes and shapes of the inputs.
        case: From `plan_cases`.
        ranges: What an input may hold, by its name: (low, high) for numbers, the allowed texts for strings.
            Without it, wide integers stay in 0..1, since any embedding knows those ids; 8-bit ones take all.

    Returns:
        One array an input, in the order of the signature.

    Raises:
        ValueError: If a range is given for an unknown input, is empty, or does not fit the dtype.
    """
    ranges = ranges or {}
    unknown = ranges.keys() - {spec.name for spec in signature.inputs}
    if unknown:
        raise ValueError(f"ranges are given for unknown inputs {', '.join(sorted(unknown))}")
    return {spec.name: _array(spec, case, ranges.get(spec.name)) for spec in signature.inputs}


def wide_name(recipe: str, draw: int) -> str:
    """The name of one draw of a recipe of `WIDE`."""
    return f"{EXTREMES}{recipe}:{draw}" if draw else f"{EXTREMES}{recipe}"


def is_wide(case: str) -> bool:
    """Whether a case has this name because of its wide integers."""
    return case.startswith(EXTREMES) and case.split(":")[1] in WIDE


def _fewest_integers(signature: Signature, dims: Mapping[str, int]) -> int:
    sizes = [
        math.prod(dims[dim] if isinstance(dim, str) else dim for dim in spec.shape)
        for spec in signature.inputs
        if spec.dtype.is_integer and spec.shape
    ]
    return min(sizes, default=_WIDE_NUMBERS)


def _joint(dynamic: Sequence[str]) -> list[dict[str, int]]:
    """Two size assignments that move all dims at once, neighbours never equal; nothing to join below two dims."""
    if len(dynamic) < 2:
        return []
    return [{dim: sizes[i % 2] for i, dim in enumerate(dynamic)} for sizes in ((3, 7), (5, 2))]


def _joint_name(dims: Mapping[str, int]) -> str:
    return "joint:" + ",".join(f"{dim}={size}" for dim, size in dims.items())


def _extremes(signature: Signature) -> list[str]:
    has_floats = any(spec.dtype.is_floating for spec in signature.inputs)
    if not signature.inputs:
        return []
    return [
        name for name in RECIPES if name not in ("random", *WIDE) and (has_floats or name not in _FLOAT_ONLY)
    ]


def _array(spec: TensorSpec, case: Case, limits: Range | None) -> Array:
    shape = tuple(case.dims[dim] if isinstance(dim, str) else dim for dim in spec.shape)
    # Each input has a stream of its own, so that adding one input leaves the others' values as they were.
    rng = np.random.RandomState((case.seed ^ zlib.crc32(spec.name.encode("utf-8"))) & 0xFFFFFFFF)
    if spec.dtype is DType.STRING:
        return _strings(shape, case.recipe, _texts(spec, limits), rng)
    if spec.dtype is DType.BOOL:
        return _booleans(spec, shape, case.recipe, _bounds(spec, limits) or (0, 1), rng)
    bounds = _bounds(spec, limits)
    if spec.dtype.is_integer and case.recipe in WIDE and bounds is None and shape:
        return (_wide_integers if case.recipe == "wide" else _half_integers)(spec.dtype, shape, rng)
    if spec.dtype.is_integer:
        return _integers(spec.dtype, shape, case.recipe, bounds or _default_bounds(spec.dtype), rng)
    values = _bounded_floats(shape, case.recipe, bounds, rng) if bounds else _floats(shape, case.recipe, rng)
    return values.astype(spec.dtype.numpy)


def _texts(spec: TensorSpec, limits: Range | None) -> Sequence[str]:
    texts = _TEXTS if limits is None else limits
    if not texts or not all(isinstance(text, str) for text in texts):
        raise ValueError(
            f"input {spec.name!r} takes strings; its range must be a list of texts, got {limits!r}"
        )
    return [str(text) for text in texts]


def _bounds(spec: TensorSpec, limits: Range | None) -> tuple[float, float] | None:
    if limits is None:
        return None
    if len(limits) != 2 or any(isinstance(bound, str) for bound in limits):
        raise ValueError(f"input {spec.name!r} takes numbers; its range must be (low, high), got {limits!r}")
    low, high = limits
    if not low <= high:  # type: ignore[operator]  # both are numbers: checked above
        raise ValueError(f"the range {limits!r} of input {spec.name!r} is empty; expected low <= high")
    return low, high  # type: ignore[return-value]


def _default_bounds(dtype: DType) -> tuple[int, int]:
    if dtype in (DType.INT8, DType.UINT8):
        info = np.iinfo(dtype.numpy)
        return int(info.min), int(info.max)
    return 0, 1


def _strings(shape: tuple[int, ...], recipe: str, texts: Sequence[str], rng: np.random.RandomState) -> Array:
    count = int(np.prod(shape, dtype=np.int64))
    fixed = {"zeros": texts[0], "ones": texts[-1]}
    array = np.empty(count, dtype=object)
    array[:] = [
        fixed.get(recipe) if recipe in fixed else texts[k] for k in rng.randint(len(texts), size=count)
    ]
    return array.reshape(shape)


def _booleans(
    spec: TensorSpec,
    shape: tuple[int, ...],
    recipe: str,
    bounds: tuple[float, float],
    rng: np.random.RandomState,
) -> Array:
    low, high = bounds
    if not {low, high} <= {0, 1}:
        raise ValueError(
            f"the range ({low}, {high}) of input {spec.name!r} does not fit bool; expected 0 and 1"
        )
    low, high = bool(low), bool(high)
    if recipe in ("zeros", "ones") or low is high:
        return np.full(shape, high if recipe == "ones" else low)
    return np.asarray(rng.randint(2, size=shape), dtype=np.bool_)


def _integers(
    dtype: DType, shape: tuple[int, ...], recipe: str, bounds: tuple[float, float], rng: np.random.RandomState
) -> Array:
    info = np.iinfo(dtype.numpy)
    low, high = int(bounds[0]), int(bounds[1])
    if low < info.min or high > info.max:
        raise ValueError(f"the range ({low}, {high}) does not fit {dtype.value}")
    if recipe in ("zeros", "ones"):
        return np.full(shape, low if recipe == "zeros" else high, dtype=dtype.numpy)
    count = int(np.prod(shape, dtype=np.int64))
    # Python integers from 64 random bits: numpy's own randint cannot span all of uint64 and int64 at once.
    draws = [int.from_bytes(rng.bytes(8), "little") for _ in range(count)] if high - low >= 2**31 else None
    if draws is not None:
        return np.array([low + draw % (high - low + 1) for draw in draws], dtype=dtype.numpy).reshape(shape)
    offsets = rng.randint(high - low + 1, size=shape)
    if (low, high) == (0, 1) and len(shape) > 1:
        offsets[..., 0] |= ~offsets.any(axis=-1)  # a mask that leaves nothing of a row is asked as zeros
    return np.asarray(np.asarray(offsets, dtype=object) + low, dtype=dtype.numpy).reshape(shape)


def _wide_integers(dtype: DType, shape: tuple[int, ...], rng: np.random.RandomState) -> Array:
    """Both signs, magnitudes in the upper six bits: an int64 is beyond 2**57, an int32 beyond 2**25.

    Half of them share the upper half of their bits and differ in the sign of the lower one: vectorised comparisons
    of int64 are made of comparisons of halves.
    """
    info = np.iinfo(dtype.numpy)
    low, half = int(info.max) >> 6, 2 ** (info.bits // 2)
    draws = [int.from_bytes(rng.bytes(9), "little") for _ in range(int(np.prod(shape, dtype=np.int64)))]
    spread = [low + (draw >> 2) % (int(info.max) - low + 1) for draw in draws]
    near = spread[0] - spread[0] % half if spread else 0
    values = [near + value % half if draw & 2 else value for draw, value in zip(draws, spread, strict=True)]
    signs = [-1 if info.min < 0 and draw & 1 else 1 for draw in draws]
    return np.array([s * v for s, v in zip(signs, values, strict=True)], dtype=dtype.numpy).reshape(shape)


def _half_integers(dtype: DType, shape: tuple[int, ...], rng: np.random.RandomState) -> Array:
    """Both signs, two in three with the highest bit of the lower half set, as an int64 from 2**31 to 2**32 has."""
    info = np.iinfo(dtype.numpy)
    high = 2 ** (info.bits // 2 - 1)
    draws = [int.from_bytes(rng.bytes(9), "little") for _ in range(int(np.prod(shape, dtype=np.int64)))]
    values = [high + (draw >> 4) % high if draw & 12 else (draw >> 4) % 10 for draw in draws]
    signs = [-1 if info.min < 0 and draw & 1 else 1 for draw in draws]
    return np.array([s * v for s, v in zip(signs, values, strict=True)], dtype=dtype.numpy).reshape(shape)


def _floats(shape: tuple[int, ...], recipe: str, rng: np.random.RandomState) -> Array:
    if recipe in ("zeros", "ones"):
        return np.full(shape, float(recipe == "ones"))
    normal = np.asarray(rng.standard_normal(shape))
    if recipe == "negative":
        return -np.abs(normal)
    return np.asarray(normal * {"random": 1.0, "small": 1e-3, "large": 1e2}.get(recipe, 1.0))


def _bounded_floats(
    shape: tuple[int, ...], recipe: str, bounds: tuple[float, float], rng: np.random.RandomState
) -> Array:
    low, high = map(float, bounds)
    if recipe in ("zeros", "ones"):
        return np.full(shape, low if recipe == "zeros" else high)
    return np.asarray(low + (high - low) * rng.random_sample(shape))
