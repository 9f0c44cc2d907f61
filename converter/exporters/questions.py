"""What a source is asked: the planned cases, those that graph and example call for, and the user's samples."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from paritygate.converter.config import ExportConfig
from paritygate.converter.errors import ExportError
from paritygate.converter.exporters.binding import Binding
from paritygate.converter.exporters.named_source import NamedSource
from paritygate.converter.exporters.telling import TellingSizes
from paritygate.converter.parity.feeds import EXTREMES, Case, is_wide, make_feeds, plan_cases
from paritygate.converter.parity.likeness import Moments, as_example, example_moments, like_cases
from paritygate.converter.types import Array, DType, Feeds, Signature, TensorSpec

if TYPE_CHECKING:
    from paritygate.converter.exporters.base import SourceModel


CONSTANT_CASE = f"{EXTREMES}constants"

_MOST_CONSTANTS = 16

_MOST_CASES = 8
"""Cases that ask one set of numbers; what does not fit is told as not asked."""


@dataclass(frozen=True)
class Question:
    """One case before it is answered: its name, the size of every dynamic dim, and the inputs by name."""

    case: str
    dims: dict[str, int]
    feeds: dict[str, Array]


def planned(
    source: NamedSource, binding: Binding, config: ExportConfig, told: Mapping[str, TellingSizes]
) -> Iterator[Question]:
    """All cases but the edges and the samples, in the order in which a budget keeps them.

    Args:
        source: Its model tells ranges and constants.
        binding: The settled inputs.
        config: Seed and ranges.
        told: Sizes that the source's own code looks at, by dim.
    """
    signature = Signature(binding.inputs, ())
    ranges = integer_ranges(source.model, binding, config)
    known = known_ranges(source.model, binding, config)
    free = any(spec.dtype.is_integer and spec.shape and spec.name not in known for spec in binding.inputs)
    wide = source.model.whole_numbers and free
    telling = {dim: sizes.asked for dim, sizes in told.items()}
    cases = plan_cases(signature, trace_dims=binding.trace_dims, seed=config.seed, wide=wide, telling=telling)
    moments = {} if source.model.example is None else example_moments(binding.inputs, binding.example)
    likes = _like_cases(binding, moments, config.seed + len(cases))
    for case in _in_order(cases, likes):
        limits = known if is_wide(case.name) else ranges
        feeds = make_feeds(signature, case, ranges=limits)
        if case in likes:
            feeds = as_example(binding.inputs, feeds, moments)
        yield Question(case.name, dict(case.dims), _acceptable(source.model, binding, feeds))
    for name, values in _more_numbers(source, binding, ranges, known):
        yield from _asking(source, binding, cases[0], ranges, name, values)


def _more_numbers(
    source: NamedSource,
    binding: Binding,
    ranges: Mapping[str, tuple[int, int]],
    known: Mapping[str, tuple[int, int]],
) -> Iterator[tuple[str, dict[str, Array]]]:
    """Names of further cases, and the integers that each asks, by input.

    Integers at, just below and just above what the graph compares with; every row of a small vocabulary; and
    another number beside the only one of an example, as a mask of ones is no sign that the model takes no other.
    """
    integers = [spec for spec in binding.inputs if spec.dtype.is_integer]
    numbers = [n + step for n in source.constants[:_MOST_CONSTANTS] for step in (0, -1, 1)]
    yield CONSTANT_CASE, {spec.name: _within(spec, numbers, known) for spec in integers}
    told = told_ranges(source.model, binding)
    for spec in integers:
        low, high = ranges.get(spec.name, (0, 0))
        size = binding.example[spec.name].size
        if spec.name in told and 0 < high - low < _MOST_CASES * size:
            yield (
                f"{EXTREMES}vocabulary:{spec.name}",
                {spec.name: np.arange(low, high + 1, dtype=spec.dtype.numpy)},
            )
        elif source.model.example is not None and spec.name not in known and low == high and size:
            other = [low, 0 if low else 1]
            yield f"{EXTREMES}other:{spec.name}", {spec.name: np.array(other, spec.dtype.numpy)}


def _asking(
    source: NamedSource,
    binding: Binding,
    base: Case,
    ranges: Mapping[str, tuple[int, int]],
    name: str,
    wanted: Mapping[str, Array],
) -> Iterator[Question]:
    """The base case with these integers in it; as many cases as hold most of them."""
    feeds = make_feeds(Signature(binding.inputs, ()), base, ranges=ranges)
    asked = {name: values for name, values in wanted.items() if values.size and feeds[name].size}
    count = max((-(-values.size // feeds[name].size) for name, values in asked.items()), default=0)
    for index in range(min(count, _MOST_CASES)):
        moved = {
            name: np.resize(np.roll(values, -index * feeds[name].size), feeds[name].shape)
            for name, values in asked.items()
        }
        given = _acceptable(source.model, binding, {**feeds, **moved})
        yield Question(f"{name}:{index}", dict(base.dims), given)


def _within(spec: TensorSpec, numbers: Sequence[int], known: Mapping[str, tuple[int, int]]) -> Array:
    info = np.iinfo(spec.dtype.numpy)
    low, high = known.get(spec.name, (int(info.min), int(info.max)))
    within = [n for n in dict.fromkeys(numbers) if max(low, info.min) <= n <= min(high, info.max)]
    return np.array(within, spec.dtype.numpy)


def _like_cases(binding: Binding, moments: Mapping[str, Moments], seed: int) -> list[Case]:
    """None for an example that says nothing of its scale: zeros, or one row of features."""
    if not any(entry.varies for entry in moments.values()):
        return []
    return like_cases(binding.inputs, binding.trace_dims, seed)


def _in_order(cases: Sequence[Case], likes: Sequence[Case]) -> list[Case]:
    """The small case on the example's scale before the extremes, the large one last: a budget cuts the end."""
    first = next((k for k, case in enumerate(cases) if case.name.startswith("extreme:")), len(cases))
    return [*cases[:first], *likes[:1], *cases[first:], *likes[1:]]


def integer_ranges(model: SourceModel, binding: Binding, config: ExportConfig) -> dict[str, tuple[int, int]]:
    """Safe ranges of the integer inputs: declared, else the model's own word, else what the example shows."""
    seen = {
        spec.name: (int(binding.example[spec.name].min()), int(binding.example[spec.name].max()))
        for spec in binding.inputs
        if spec.dtype.is_integer
    }
    return seen | known_ranges(model, binding, config)


def known_ranges(model: SourceModel, binding: Binding, config: ExportConfig) -> dict[str, tuple[int, int]]:
    """Ranges that someone vouches for; what an example shows is no limit of the model."""
    return told_ranges(model, binding) | dict(config.integer_ranges)


def told_ranges(model: SourceModel, binding: Binding) -> dict[str, tuple[int, int]]:
    """The vocabularies that the model itself tells, by the user's names."""
    own = {o: spec.name for o, spec in zip(binding.own_names, binding.inputs, strict=True)}
    return {own[name]: bounds for name, bounds in model.integer_ranges().items()}


def _acceptable(model: SourceModel, binding: Binding, feeds: Feeds) -> dict[str, Array]:
    names = {spec.name: own for own, spec in zip(binding.own_names, binding.inputs, strict=True)}
    given = model.acceptable({names[name]: array for name, array in feeds.items()})
    return {name: given[own] for name, own in names.items()}


def sample_question(binding: Binding, sample: Feeds, index: int) -> Question:
    """One of the user's samples, its numbers in the dtypes that the model takes.

    Raises:
        ExportError: If names, dtypes or shapes are not those of the inputs.
    """
    case = f"sample:{index}"
    dims: dict[str, int] = {}
    names = [spec.name for spec in binding.inputs]
    if set(sample) != set(names):
        raise ExportError(f"sample {index} has the inputs {sorted(sample)}; the model takes {names}.")
    feeds = {spec.name: _as_input(case, spec, sample[spec.name]) for spec in binding.inputs}
    for spec in binding.inputs:
        for axis, dim in enumerate(spec.shape):
            size = feeds[spec.name].shape[axis]
            expected = dims.setdefault(dim, size) if isinstance(dim, str) else dim
            if size != expected:
                raise ExportError(
                    f"sample {index} gives {spec.name!r} the shape {list(feeds[spec.name].shape)}; "
                    f"the model takes {spec}{'' if isinstance(dim, int) else f', and {dim!r} is {expected}'}."
                )
    return Question(case, dims, feeds)


def _as_input(case: str, spec: TensorSpec, value: Any) -> Array:
    array = np.asarray(value)
    if spec.dtype is DType.STRING and array.dtype.kind in "US":
        array = array.astype(str).astype(object)
    if array.dtype.kind in "iuf" and array.dtype != spec.dtype.numpy:
        array = _as_numbers(array, spec)
    if array.dtype != spec.dtype.numpy or array.ndim != len(spec.shape):
        raise ExportError(
            f"{case} gives {spec.name!r} as {array.dtype}{list(array.shape)}; the model takes {spec}."
        )
    return array


def _as_numbers(array: Array, spec: TensorSpec) -> Array:
    """Numbers in the model's own dtype where only the width differs, as an example is taken; else unchanged."""
    if spec.dtype.is_floating:
        with np.errstate(over="ignore"):
            cast = array.astype(spec.dtype.numpy)
        lost = np.isinf(cast.astype(np.float64)) & np.isfinite(array.astype(np.float64))
        return array if lost.any() else cast
    if array.dtype.kind == "f" or not spec.dtype.is_integer:
        return array
    info = np.iinfo(spec.dtype.numpy)
    fits = not array.size or (int(array.min()) >= info.min and int(array.max()) <= info.max)
    return array.astype(spec.dtype.numpy) if fits else array
