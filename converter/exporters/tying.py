"""Open sizes that go together: axes whose sizes the source takes only if they are equal get one name.

A framework says of two inputs that their second axis is open, and not that both are the length of one sequence.
Only sizes are looked at that nobody named, and only those that the source refuses to vary alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from paritygate.converter.exporters.binding import Binding, trace_sizes
from paritygate.converter.exporters.named_source import NamedSource, SourceRejected


def tie_open_sizes(source: NamedSource, binding: Binding, named: Iterable[str]) -> Binding:
    """The binding with one name for open sizes at the same axis of several inputs that vary together only.

    Args:
        source: Is asked at a few sizes.
        binding: Nothing of it is settled yet.
        named: Sizes that the user named; they stay as they are.
    """
    for axis, dims in _by_axis(binding, set(named)).items():
        for tied in _tied(source, binding, dims):
            binding = _under_one_name(binding, tied, axis)
    return binding


def _by_axis(binding: Binding, named: set[str]) -> dict[int, list[str]]:
    """By axis, the sizes that only this axis of one input bears; those of which there are several."""
    found: dict[int, list[str]] = {}
    for spec in binding.inputs:
        for axis, dim in enumerate(spec.shape):
            if isinstance(dim, str) and dim not in named and len(binding.axes_of(dim)) == 1:
                found.setdefault(axis, []).append(dim)
    return {axis: dims for axis, dims in found.items() if len(dims) > 1}


def _tied(source: NamedSource, binding: Binding, dims: list[str]) -> list[list[str]]:
    """Groups of sizes of which none varies alone and all vary together."""
    size = max(binding.trace_dims[dim] for dim in dims)
    equal = dict.fromkeys(dims, size)

    def takes(moved: Iterable[str]) -> bool:
        return _takes(source, binding, {**equal, **dict.fromkeys(moved, size + 1)})

    if not takes(()):
        return []
    held = [dim for dim in dims if not takes([dim])]
    groups: list[list[str]] = []
    while held:
        first, *others = held
        group = [first, *(dim for dim in others if takes([first, dim]))]
        if len(group) == 1 and others and takes(held):
            group = held
        groups.append(group)
        held = [dim for dim in held if dim not in group]
    return [group for group in groups if len(group) > 1]


def _takes(source: NamedSource, binding: Binding, sizes: Mapping[str, int]) -> bool:
    try:
        source.run(binding, binding.at({**binding.trace_dims, **sizes}))
    except SourceRejected:
        return False
    return True


def _under_one_name(binding: Binding, dims: list[str], axis: int) -> Binding:
    taken = {dim for spec in binding.inputs for dim in spec.shape if dim not in dims}
    name = next(name for name in (f"dim{axis}", "_".join(dims)) if name not in taken)
    size = max(binding.sizes[dim] for dim in dims)
    inputs = tuple(
        replace(spec, shape=tuple(name if dim in dims else dim for dim in spec.shape))
        for spec in binding.inputs
    )
    sizes = {name if dim in dims else dim: size if dim in dims else n for dim, n in binding.sizes.items()}
    trace = {dim: n for dim, n in binding.trace_dims.items() if dim not in dims}
    places = " and ".join(
        f"{spec.name} axis {axis}" for spec in binding.inputs if set(spec.shape) & set(dims)
    )
    return replace(
        binding,
        inputs=inputs,
        example=binding.at(dict.fromkeys(dims, size)),
        sizes=sizes,
        trace_dims={dim: trace.get(dim, n) for dim, n in trace_sizes(sizes).items()},
        notes=(*binding.notes, f"{places} vary together only; their size is called {name!r}."),
    )
