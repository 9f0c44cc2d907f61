"""How the sizes of the outputs follow from those of the inputs, as the source showed them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from paritygate.converter.types import Dim, DType, TensorSpec

if TYPE_CHECKING:
    pass


def output_specs(
    values: Sequence[tuple[str, DType, tuple[Dim, ...] | None]],
    seen: Sequence[tuple[Mapping[str, int], Mapping[str, tuple[int, ...]]]],
) -> tuple[TensorSpec, ...]:
    """The declared outputs: names and dtypes of the graph, sizes as the source showed them.

    Args:
        values: Name, dtype and shape of each output as the graph tells them.
        seen: Sizes and output shapes of every case that the source answered.
    """
    return tuple(
        TensorSpec(name, dtype, output_dims(name, shape, [(dims, shapes[name]) for dims, shapes in seen]))
        for name, dtype, shape in values
    )


def output_dims(
    name: str, graph_shape: tuple[Dim, ...] | None, seen: Sequence[tuple[Mapping[str, int], tuple[int, ...]]]
) -> tuple[Dim, ...]:
    """The declared shape of an output, from what the source gave at every size that was tried.

    A size that followed a named dimension in every case carries its name; one that varied otherwise, or that
    the graph says depends on the data, gets a name of its own; one that never moved is fixed.

    Args:
        name: The output's name.
        graph_shape: The converted graph's word, or None where it is silent.
        seen: (named sizes, shape of this output) for each case.
    """
    rank = len(seen[0][1])
    same_rank = [(sizes, shape) for sizes, shape in seen if len(shape) == rank]
    graph = graph_shape if graph_shape is not None and len(graph_shape) == rank else ("",) * rank
    return tuple(_output_dim(name, axis, graph[axis], same_rank) for axis in range(rank))


def _output_dim(
    name: str, axis: int, graph: Dim, seen: Sequence[tuple[Mapping[str, int], tuple[int, ...]]]
) -> Dim:
    sizes = [shape[axis] for _, shape in seen]
    if len(set(sizes)) == 1:
        return sizes[0] if isinstance(graph, int) or graph == "" else _symbol(name, axis, graph, seen)
    for dim in seen[0][0]:
        if all(named[dim] == size for (named, _), size in zip(seen, sizes, strict=True)):
            return dim
    return f"{name}_dim{axis}"


def _symbol(
    name: str, axis: int, graph: Dim, seen: Sequence[tuple[Mapping[str, int], tuple[int, ...]]]
) -> Dim:
    """The graph says that a size may move although no case moved it: it hangs on the data."""
    return graph if isinstance(graph, str) and graph in seen[0][0] else f"{name}_dim{axis}"
