"""Which dimensions stay open: the source is asked, and whatever the user asked for is kept, noted or refused.

A dimension that cannot vary is demoted: fixed, recorded, and said in a note. One that the user named and that
varies only together with an axis under another name, or under none, is an error instead: naming that axis too
gives the model that was asked for, and a narrower one would look like it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from paritygate.converter.config import ExportConfig
from paritygate.converter.errors import ExportError
from paritygate.converter.exporters.binding import Binding, declared_inputs
from paritygate.converter.exporters.blame import to_blame
from paritygate.converter.exporters.named_source import NamedSource, SourceRejected
from paritygate.converter.exporters.tying import tie_open_sizes
from paritygate.converter.types import DemotedDim

_Axis = tuple[str, int]


def settle_dims(source: NamedSource, binding: Binding, config: ExportConfig) -> Binding:
    """Demote every dimension that the source itself cannot vary (prove or shrink).

    First the sizes to trace with are tried together, then each dimension alone at several other sizes; a
    dimension is demoted when the source refuses all of them, with the source's own reason. Sizes that it takes one
    by one and not together (broadcasting lets a 1 pass beside anything) are sorted out before.

    Raises:
        ExportError: If the source refuses even the user's own example, or ties a dimension that the user named
            to another axis.
    """
    binding = tie_open_sizes(source, binding, _named_by_user(config))
    if not _accepted(source, binding, binding.trace_dims):
        binding = _settle_grown(source, binding, config)
        binding = _settle_together(source, binding, config)
    for dim in list(binding.trace_dims):
        refusal, varies = _try_sizes(source, binding, dim)
        if refusal is None:
            continue
        if varies:  # a tied axis of size 1 may pass by broadcasting, and nothing else would tell
            _refuse_tied(source, binding, config, dim)
            continue
        entry = DemotedDim(dim, binding.trace_dims[dim], f"the source takes no other size: {refusal}")
        binding = demote(source, binding, config, entry)
    return binding


def demote(source: NamedSource, binding: Binding, config: ExportConfig, entry: DemotedDim) -> Binding:
    """Fix a dimension for a reason that will be recorded.

    Raises:
        ExportError: If the user named it, and it would vary together with another axis.
    """
    _refuse_tied(source, binding, config, entry.dim)
    return binding.demote(entry.dim, entry.size, entry.reason)


def check_asked(binding: Binding, config: ExportConfig) -> None:
    """Hold the inputs of the finished model to the open dimensions that the user asked for.

    Raises:
        ExportError: If one is not what was asked and no demotion says why.
    """
    shapes = {spec.name: spec.shape for spec in binding.inputs}
    explained = {entry.dim for entry in binding.demoted}
    for name, axes in (config.dynamic or {}).items():
        for axis, dim in axes.items():
            found = shapes[name][axis]
            if found != dim and dim not in explained:
                raise ExportError(
                    f"axis {axis} of input {name!r} was asked to be open as {dim!r}, but came out as {found!r}; "
                    f"give every axis one name in dynamic=, once."
                )


def _settle_grown(source: NamedSource, binding: Binding, config: ExportConfig) -> Binding:
    """Sort out which of the grown trace sizes the source refuses; those dims keep the example's size."""
    try:
        source.run(binding, binding.example)
    except SourceRejected as error:
        shapes = ", ".join(f"{n} {a.dtype}{list(a.shape)}" for n, a in binding.example.items())
        raise ExportError(
            f"the model refuses {'its own' if source.model.example else 'the made-up'} example inputs "
            f"({shapes}): {str(error).rstrip('.')}. {_hint(source, binding)}"
        ) from error
    for dim, size in list(binding.sizes.items()):
        if binding.trace_dims[dim] == size:
            continue
        try:
            source.run(binding, binding.at({dim: binding.trace_dims[dim]}))
        except SourceRejected as error:
            entry = DemotedDim(dim, size, f"the source takes no other size: {error}")
            binding = demote(source, binding, config, entry)
    return binding


def _settle_together(source: NamedSource, binding: Binding, config: ExportConfig) -> Binding:
    """Put back grown trace sizes that the source takes one by one, and not all at once."""
    while True:
        try:
            source.run(binding, binding.trace_example())
        except SourceRejected as error:
            refusal = str(error)
        else:
            return binding
        grown = {dim: size for dim, size in binding.trace_dims.items() if binding.sizes[dim] != size}
        bound = binding

        def takes(dims: Iterable[str], bound: Binding = bound, grown: Mapping[str, int] = grown) -> bool:
            return _accepted(source, bound, {dim: grown[dim] for dim in dims})

        dim = to_blame(list(grown), takes)
        if dim is None:
            raise ExportError(f"the source refuses inputs that it took before: {refusal}.")
        others = {other: size for other, size in grown.items() if other != dim}
        if takes(others):
            _refuse_tied(source, binding, config, dim, others)
        binding = binding.demote(dim, binding.sizes[dim], f"the source takes no other size: {refusal}")


def _hint(source: NamedSource, binding: Binding) -> str:
    wide = [name for name, array in binding.example.items() if str(array.dtype) == "float64"]
    if source.model.example is None and any(
        isinstance(d, str) for spec in binding.inputs for d in spec.shape
    ):
        specs = " ".join(f"--input '{spec}'".replace(": ", ":").replace(", ", ",") for spec in binding.inputs)
        return (
            f"Say which sizes are equal by one name for them, as in {specs} (inputs= in Python), or give samples "
            "(--samples, inputs=)."
        )
    if wide:
        return (
            f"If the model takes float32, pass {wide[0]}.astype('float32'): numpy gives float64 by default."
        )
    return "Give inputs that it takes."


def _accepted(source: NamedSource, binding: Binding, sizes: Mapping[str, int]) -> bool:
    try:
        source.run(binding, binding.at(sizes))
    except SourceRejected:
        return False
    return True


def _try_sizes(source: NamedSource, binding: Binding, dim: str) -> tuple[str | None, bool]:
    """The source's first refusal of another size of a dimension, if any, and whether it takes at least one."""
    at = binding.trace_dims[dim]
    refusal: str | None = None
    for size in (at + 1, 2 * at, 3 * at, max(1, at - 1), max(1, at // 2)):
        if size == at:
            continue
        try:
            source.run(binding, binding.at({**binding.trace_dims, dim: size}))
        except SourceRejected as error:
            refusal = refusal or str(error)
        else:
            return refusal, True
    return refusal, False


# --- axes that vary only together ---------------------------------------------------------------------------


def _refuse_tied(
    source: NamedSource,
    binding: Binding,
    config: ExportConfig,
    dim: str,
    others: Mapping[str, int] | None = None,
) -> None:
    tied = _tied_axes(source, binding, config, dim, others or {}) if dim in _named_by_user(config) else ()
    if not tied:
        return
    shapes = {spec.name: spec.shape for spec in binding.inputs}
    own = " and ".join(f"{name} axis {axis}" for name, axis in binding.axes_of(dim))
    to = " and ".join(f"{name} axis {axis}, which is {_called(shapes[name][axis])}" for name, axis in tied)
    raise ExportError(
        f"{dim!r} of {own} was asked to be open, but the model ties it to {to}; {_advice(config, dim, tied)}."
    )


def _named_by_user(config: ExportConfig) -> set[str]:
    if config.dynamic is not None:
        return {dim for axes in config.dynamic.values() for dim in axes.values()}
    declared = declared_inputs(config.inputs) or ()
    return {dim for spec in declared for dim in spec.shape if isinstance(dim, str)}


def _called(dim: int | str) -> str:
    return f"fixed at {dim}" if isinstance(dim, int) else f"called {dim!r}"


def _advice(config: ExportConfig, dim: str, tied: tuple[_Axis, ...]) -> str:
    if config.dynamic is None:
        return f"write {dim!r} there too"
    flags = " ".join(f"--dynamic {name}:{axis}={dim}" for name, axis in tied)
    entries = ", ".join(f"{name!r}: {{{axis}: {dim!r}}}" for name, axis in tied)
    return f"add {flags} (in Python, dynamic={{{entries}}})"


def _tied_axes(
    source: NamedSource, binding: Binding, config: ExportConfig, dim: str, others: Mapping[str, int]
) -> tuple[_Axis, ...]:
    """Axes without whose change the source refuses a size of a dimension, and with which it takes it.

    Tried are axes of the example's same size: each alone, then all at the same place, then all of them. `others`
    are sizes of other dimensions beside which it refuses; elsewhere they are the example's.
    """
    candidates = _candidates(source, binding, config, dim)
    places = {axis for _, axis in binding.axes_of(dim)}
    groups: list[tuple[_Axis, ...]] = [(axis,) for axis in candidates]
    groups += [tuple(axis for axis in candidates if axis[1] in places), tuple(candidates)]
    at = binding.sizes[dim]
    refused = [
        size
        for size in sorted({at + 1, 2 * at, 3 * at})
        if not _accepted(source, binding, {**others, dim: size})
    ]
    for group in filter(None, dict.fromkeys(groups)):
        together = _under_one_name(binding, group, dim)
        if any(_accepted(source, together, {dim: size}) for size in refused):
            return group
    return ()


def _candidates(source: NamedSource, binding: Binding, config: ExportConfig, dim: str) -> list[_Axis]:
    """Axes of other names, or of none, with the same size in the example, that the framework leaves open."""
    fixed_by_framework = source.model.dims_are_declared and declared_inputs(config.inputs) is None
    return [
        (spec.name, axis)
        for spec, own in zip(binding.inputs, source.model.inputs, strict=True)
        for axis, found in enumerate(spec.shape)
        if found != dim
        and binding.example[spec.name].shape[axis] == binding.sizes[dim]
        and not (fixed_by_framework and isinstance(own.shape[axis], int))
    ]


def _under_one_name(binding: Binding, axes: tuple[_Axis, ...], dim: str) -> Binding:
    """The binding with some axes, and whatever bears their names, under the name of a dimension."""
    shapes = {spec.name: spec.shape for spec in binding.inputs}
    names = {shapes[name][axis] for name, axis in axes}
    inputs = tuple(
        replace(
            spec,
            shape=tuple(
                dim if (spec.name, axis) in axes or (isinstance(found, str) and found in names) else found
                for axis, found in enumerate(spec.shape)
            ),
        )
        for spec in binding.inputs
    )
    return replace(binding, inputs=inputs)
