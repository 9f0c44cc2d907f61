"""Inputs under the user's names and dimensions: which size may vary, what it is called, what to trace with."""

from __future__ import annotations

import difflib
import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from paritygate.converter.config import ExportConfig, parse_input_spec, shared_name_fault
from paritygate.converter.errors import ExportError
from paritygate.converter.types import Array, DemotedDim, Dim, DType, Feeds, TensorSpec

if TYPE_CHECKING:
    from paritygate.converter.exporters.base import SourceInput, SourceModel

BATCH = "batch"
"""The name of an open axis 0 that the user did not name."""

_TRACE_SIZES = (2, 3, 5, 7, 11, 13, 17, 19, 23)
_SYNTHETIC_SIZES = (17, 19, 23, 29, 31, 37)

MAX_SYNTHETIC_ELEMENTS = 2**26
"""Elements of all inputs that are made up where no example was given; a few bytes can declare any size."""

_MAX_RANK = 32
"""More axes than any array of numpy before 2.0 may have, and than any model takes."""


@dataclass(frozen=True)
class Binding:
    """The inputs of one export.

    Attributes:
        own_names: The source's own names, in order.
        inputs: The same inputs under the user's names; a text in a shape is a size that should vary.
        example: Feeds under the user's names, at the sizes of the user's own example.
        sizes: Size of each named dimension in the user's own example.
        trace_dims: Size of each named dimension to trace with; at least 2, and unlike each other where grown.
        demoted: Dimensions that should vary and cannot.
        notes: Sentences for the manifest.
    """

    own_names: tuple[str, ...]
    inputs: tuple[TensorSpec, ...]
    example: dict[str, Array]
    sizes: dict[str, int]
    trace_dims: dict[str, int]
    demoted: tuple[DemotedDim, ...] = ()
    notes: tuple[str, ...] = ()

    def to_own(self, feeds: Feeds) -> dict[str, Array]:
        """Feeds under the source's own names."""
        return {own: feeds[spec.name] for own, spec in zip(self.own_names, self.inputs, strict=True)}

    def own_inputs(self) -> tuple[TensorSpec, ...]:
        """The inputs under the source's own names."""
        pairs = zip(self.own_names, self.inputs, strict=True)
        return tuple(replace(spec, name=own) for own, spec in pairs)

    def at(self, sizes: Mapping[str, int]) -> dict[str, Array]:
        """The example with the named dimensions at other sizes, its rows repeated or cut."""
        wanted = {**self.sizes, **sizes}
        return {spec.name: resize(self.example[spec.name], spec, wanted) for spec in self.inputs}

    def trace_example(self) -> dict[str, Array]:
        """The example at the sizes to trace with."""
        return self.at(self.trace_dims)

    def demote(self, dim: str, size: int, reason: str) -> Binding:
        """The same binding with one dimension fixed, the reason kept, and a note of both."""
        note = f"{dim!r}{self._where(dim)} was to stay open and is fixed at {size}: {reason}."
        inputs = tuple(
            replace(spec, shape=tuple(size if d == dim else d for d in spec.shape)) for spec in self.inputs
        )
        return replace(
            self,
            inputs=inputs,
            example=self.at({dim: size}),
            sizes={d: n for d, n in self.sizes.items() if d != dim},
            trace_dims={d: n for d, n in self.trace_dims.items() if d != dim},
            demoted=(*self.demoted, DemotedDim(dim, size, reason)),
            notes=(*self.notes, note),
        )

    def axes_of(self, dim: str) -> list[tuple[str, int]]:
        """Where a named dimension stands, as pairs of input and axis."""
        return [(spec.name, axis) for spec in self.inputs for axis, d in enumerate(spec.shape) if d == dim]

    def _where(self, dim: str) -> str:
        places = ", ".join(f"{name} axis {axis}" for name, axis in self.axes_of(dim))
        return f" ({places})" if places else ""


def under_new_names(model: SourceModel, config: ExportConfig) -> ExportConfig:
    """The same wishes with every input under the name that `input_names` gives it.

    Whoever renames an input may still call it by the source's own name: the command line reads open sizes off
    `--input`, where an input has to bear the name that the source knows. A name that is new as well as an own one
    is the new one.

    Raises:
        ExportError: If names do not fit the inputs, or one input is given twice, under both of its names.
    """
    own = tuple(spec.name for spec in model.inputs)
    names = _user_names(own, config.input_names)
    renamed = {old: new for old, new in zip(own, names, strict=True) if old not in names}
    if not renamed:
        return config
    samples = tuple(
        {renamed.get(name, name): value for name, value in sample.items()}
        if set(sample) == set(own)
        else sample
        for sample in config.samples
    )
    return replace(
        config,
        dynamic=None if config.dynamic is None else _renamed_axes(config.dynamic, renamed),
        integer_ranges=_renamed_ranges(config.integer_ranges, renamed),
        samples=samples,
    )


def _renamed_axes(
    dynamic: Mapping[str, Mapping[int, str]], renamed: Mapping[str, str]
) -> dict[str, dict[int, str]]:
    found: dict[str, dict[int, str]] = {}
    for given, axes in dynamic.items():
        name = renamed.get(given, given)
        known = found.setdefault(name, {})
        for axis, dim in axes.items():
            if known.setdefault(axis, dim) != dim:
                raise ExportError(
                    f"axis {axis} of input {name!r} is called {known[axis]!r} and {dim!r}, under its new and its "
                    f"own name; give it one name, once (--dynamic, --input or dynamic=)."
                )
    return found


def _renamed_ranges(
    ranges: Mapping[str, tuple[int, int]], renamed: Mapping[str, str]
) -> dict[str, tuple[int, int]]:
    found: dict[str, tuple[int, int]] = {}
    for given, bounds in ranges.items():
        name = renamed.get(given, given)
        if found.setdefault(name, bounds) != bounds:
            raise ExportError(
                f"input {name!r} has two ranges, {list(found[name])} and {list(bounds)}, under its new and its "
                f"own name; give one (--integer-range or integer_ranges=)."
            )
    return found


def bind_inputs(model: SourceModel, config: ExportConfig) -> Binding:
    """Give a source's inputs the user's names and dimensions.

    Raises:
        ExportError: If names, dimensions, ranges or example do not fit the inputs that the source takes.
    """
    own = tuple(spec.name for spec in model.inputs)
    names = _user_names(own, config.input_names)
    renamed = dict(zip(own, names, strict=True))
    fault = shared_name_fault(names, config.output_names)
    if fault is not None:
        raise ExportError(fault)
    _refuse_unknown("--dynamic (dynamic=)", config.dynamic or {}, names)
    _refuse_unknown("--integer-range (integer_ranges=)", config.integer_ranges, names)
    example = None if model.example is None else {renamed[k]: v for k, v in model.example.items()}
    shapes, notes = _named_shapes(model, names, config)
    inputs = tuple(
        TensorSpec(name, spec.dtype, shape)
        for name, spec, shape in zip(names, model.inputs, shapes, strict=True)
    )
    if example is None:
        ranges = {renamed[k]: v for k, v in model.integer_ranges().items()} | dict(config.integer_ranges)
        example = synthesise(inputs, ranges)
    sizes = _sizes(inputs, example)
    binding = Binding(own, inputs, example, sizes, trace_sizes(sizes), notes=tuple(notes))
    for entry in _fixed_by_the_source(model, names, config):
        binding = binding.demote(entry.dim, entry.size, entry.reason)
    return binding


def _fixed_by_the_source(model: SourceModel, names: Sequence[str], config: ExportConfig) -> list[DemotedDim]:
    """Sizes that the user opened and that the source itself declares as fixed."""
    if config.dynamic is None or not model.dims_are_declared:
        return []
    found: dict[str, DemotedDim] = {}
    for spec, name in zip(model.inputs, names, strict=True):
        for given, dim in config.dynamic.get(name, {}).items():
            axis = _axis(given, spec, name)
            size = spec.shape[axis]
            if isinstance(size, int):
                reason = f"the source itself fixes axis {axis} of input {name!r} at {size}"
                found.setdefault(dim, DemotedDim(dim, size, reason))
    return list(found.values())


def _user_names(own: Sequence[str], given: Sequence[str] | None) -> tuple[str, ...]:
    if given is None:
        return tuple(own)
    if len(given) != len(own):
        raise ExportError(
            f"input_names gives {len(given)} names {list(given)}, but the model takes {len(own)} inputs "
            f"{list(own)}; give one name each, in that order."
        )
    return tuple(given)


def _refuse_unknown(what: str, given: Iterable[str], names: Sequence[str]) -> None:
    for name in given:
        if name not in names:
            near = difflib.get_close_matches(name, names, n=1)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            raise ExportError(f"{what} names the input {name!r}; the model's inputs are {list(names)}.{hint}")


def _named_shapes(
    model: SourceModel, names: Sequence[str], config: ExportConfig
) -> tuple[list[tuple[Dim, ...]], list[str]]:
    if config.dynamic is not None:
        return [
            _shape_as_asked(m, n, config.dynamic, model) for m, n in zip(model.inputs, names, strict=True)
        ], []
    if model.dims_are_declared:
        return [_shape_as_declared(m, n) for m, n in zip(model.inputs, names, strict=True)], []
    return _shapes_by_default(model.inputs, names)


def _shape_as_declared(spec: SourceInput, name: str) -> tuple[Dim, ...]:
    """An open axis 0 is `batch`, any other open axis `<input>_dim<axis>`; a name that the source gave stays."""
    return tuple(
        (BATCH if axis == 0 else f"{name}_dim{axis}") if dim is None else dim
        for axis, dim in enumerate(spec.shape)
    )


def _shape_as_asked(
    spec: SourceInput, name: str, dynamic: Mapping[str, Mapping[int, str]], model: SourceModel
) -> tuple[Dim, ...]:
    asked = {_axis(axis, spec, name): dim for axis, dim in dynamic.get(name, {}).items()}
    shape: list[Dim] = []
    for axis, dim in enumerate(spec.shape):
        if axis in asked:
            shape.append(dim if model.dims_are_declared and isinstance(dim, int) else asked[axis])
        elif isinstance(dim, int):
            shape.append(dim)
        else:
            shape.append(_example_size(model, spec, name, axis))
    return tuple(shape)


def _axis(axis: int, spec: SourceInput, name: str) -> int:
    rank = len(spec.shape)
    if not -rank <= axis < rank:
        raise ExportError(
            f"--dynamic (dynamic=) opens axis {axis} of input {name!r}, which has {rank} axes only."
        )
    return axis % rank


def _example_size(model: SourceModel, spec: SourceInput, name: str, axis: int) -> int:
    if model.example is None:
        raise ExportError(
            f"axis {axis} of input {name!r} is open in the source and --dynamic (dynamic=) does not name it; "
            f"name it, or give an example input whose size it shall be fixed at."
        )
    return int(model.example[spec.name].shape[axis])


def _shapes_by_default(
    inputs: Sequence[SourceInput], names: Sequence[str]
) -> tuple[list[tuple[Dim, ...]], list[str]]:
    shapes: list[tuple[Dim, ...]] = [tuple(_fixed(dim) for dim in spec.shape) for spec in inputs]
    firsts = {name: shape[0] for name, shape in zip(names, shapes, strict=True) if shape}
    if len(set(firsts.values())) == 1:
        return [(BATCH, *shape[1:]) if shape else () for shape in shapes], []
    if not firsts:
        return shapes, []
    sizes = ", ".join(f"{name} has {size}" for name, size in firsts.items())
    return shapes, [
        f"No dimension was opened: axis 0 differs among the inputs ({sizes}); name one with "
        f"--dynamic (dynamic=)."
    ]


def _fixed(dim: int | str | None) -> int:
    assert isinstance(dim, int), "a source whose dims are not declared gives the sizes of its example"
    return dim


def _sizes(inputs: Sequence[TensorSpec], example: Feeds) -> dict[str, int]:
    sizes: dict[str, int] = {}
    places: dict[str, str] = {}
    for spec in inputs:
        array = example[spec.name]
        if array.ndim != len(spec.shape):
            raise ExportError(f"the example for {spec} has {array.ndim} axes; give an array of that shape.")
        for axis, dim in enumerate(spec.shape):
            size, place = int(array.shape[axis]), f"axis {axis} of {spec.name!r}"
            if size == 0:
                raise ExportError(f"the example is empty along {place}; give one with at least one element.")
            known = sizes.setdefault(dim, size) if isinstance(dim, str) else dim
            if known != size:
                if not isinstance(dim, str):
                    raise ExportError(f"{place} has size {size} in the example; the model takes {dim} there.")
                raise ExportError(
                    f"{place} has size {size} in the example, but {dim!r} is {known} at {places[dim]}; "
                    f"sizes that differ need different names in --dynamic (dynamic=)."
                )
            if isinstance(dim, str):
                places.setdefault(dim, place)
    return sizes


def trace_sizes(sizes: Mapping[str, int]) -> dict[str, int]:
    """Sizes to trace with: the example's own, but a 1 becomes a prime that no other dimension has.

    A size of 1 is broadcast, squeezed and baked into graphs without a word, so it is never traced with.
    """
    taken = {size for size in sizes.values() if size > 1}
    trace: dict[str, int] = {}
    for dim, size in sizes.items():
        trace[dim] = size if size > 1 else next(n for n in _from(_TRACE_SIZES) if n not in taken)
        taken.add(trace[dim])
    return trace


def resize(array: Array, spec: TensorSpec, sizes: Mapping[str, int]) -> Array:
    """An array with its named axes at other sizes: what is there is repeated in turn, or cut."""
    for axis, dim in enumerate(spec.shape):
        if isinstance(dim, str) and array.shape[axis] != sizes[dim]:
            array = np.take(array, np.arange(sizes[dim]) % array.shape[axis], axis=axis)
    return np.ascontiguousarray(array) if array.ndim else array


def synthesise(inputs: Sequence[TensorSpec], ranges: Mapping[str, tuple[int, int]]) -> dict[str, Array]:
    """Example feeds for specs without an example: seeded normal floats, integers in their range, `""`.

    Raises:
        ExportError: If they would have more than `MAX_SYNTHETIC_ELEMENTS`.
    """
    generator = np.random.default_rng(0)
    sizes = synthetic_sizes(inputs)
    shapes = [tuple(sizes[dim] if isinstance(dim, str) else dim for dim in spec.shape) for spec in inputs]
    _refuse_absurd(inputs, shapes)
    return {
        spec.name: _synthetic(spec, shape, ranges.get(spec.name, (0, 1)), generator)
        for spec, shape in zip(inputs, shapes, strict=True)
    }


def _refuse_absurd(inputs: Sequence[TensorSpec], shapes: Sequence[tuple[int, ...]]) -> None:
    total = 0
    for spec, shape in zip(inputs, shapes, strict=True):
        if len(shape) > _MAX_RANK:
            raise ExportError(f"input {spec.name!r} has {len(shape)} axes; expected at most {_MAX_RANK}.")
        total += math.prod(shape)
        if total > MAX_SYNTHETIC_ELEMENTS:
            raise ExportError(
                f"input {spec.name!r} of shape {list(shape)} and those before it have {total} elements; no "
                f"example of more than {MAX_SYNTHETIC_ELEMENTS} in sum is made up. Give one (--samples)."
            )


def synthetic_sizes(inputs: Sequence[TensorSpec]) -> dict[str, int]:
    """Sizes to trace open dimensions with where no example shows any; no two are alike, inner axes get room."""
    firsts = [spec.shape[0] for spec in inputs if spec.shape and isinstance(spec.shape[0], str)]
    others = [dim for spec in inputs for dim in spec.shape[1:] if isinstance(dim, str) and dim not in firsts]
    sizes: dict[str, int] = dict(zip(dict.fromkeys(firsts), _from(_TRACE_SIZES), strict=False))
    for dim in dict.fromkeys(others):
        sizes[dim] = next(n for n in _from(_SYNTHETIC_SIZES) if n not in sizes.values())
    return sizes


def _from(sizes: Sequence[int]) -> Iterator[int]:
    """The sizes in order, then every larger prime."""
    yield from sizes
    yield from (n for n in itertools.count(max(sizes) + 1) if all(n % k for k in range(2, math.isqrt(n) + 1)))


def _synthetic(
    spec: TensorSpec, shape: tuple[int, ...], bounds: tuple[int, int], generator: np.random.Generator
) -> Array:
    if spec.dtype is DType.STRING:
        return np.full(shape, "", dtype=object)
    if spec.dtype.is_floating:
        return np.asarray(generator.standard_normal(shape)).astype(spec.dtype.numpy)
    low, high = (0, 1) if spec.dtype is DType.BOOL else bounds
    return np.asarray(generator.integers(low, high, size=shape, endpoint=True)).astype(spec.dtype.numpy)


def declared_inputs(inputs: Any) -> tuple[TensorSpec, ...] | None:
    """The specs in `ExportConfig.inputs`, if it holds specs or their texts; None if it holds arrays."""
    items = list(inputs) if isinstance(inputs, tuple | list) else [inputs]
    if not items or not all(isinstance(item, str | TensorSpec) for item in items):
        return None
    return tuple(item if isinstance(item, TensorSpec) else parse_input_spec(item) for item in items)


def bind_example(inputs: Any, names: Sequence[str]) -> dict[str, Array] | None:
    """An array, a sequence or a dict of arrays as feeds under the given names; None if nothing was given.

    Raises:
        ExportError: If the number or the names do not fit.
    """
    if inputs is None:
        return None
    if isinstance(inputs, Mapping):
        missing = [name for name in names if name not in inputs]
        unknown = [name for name in inputs if name not in names]
        if missing or unknown:
            raise ExportError(
                f"the example has the inputs {list(inputs)}, but the model takes {list(names)}; "
                f"give one array for each, under its name. --input-name (input_names=) gives them other names."
            )
        return {name: np.asarray(inputs[name]) for name in names}
    arrays = list(inputs) if isinstance(inputs, tuple | list) else [inputs]
    if len(arrays) != len(names):
        raise ExportError(
            f"the example has {len(arrays)} arrays, but the model takes {len(names)} inputs {list(names)}; "
            f"give one array for each."
        )
    return {name: np.asarray(array) for name, array in zip(names, arrays, strict=True)}
