"""Samples at a model's own branches as probes, cut into cases that are small enough for one fault to show.

A wrong threshold moves the answer to one sample. Among thousands, its share in the root mean square is lost; among
a few hundred it is not.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from paritygate.converter.exporters.binding import Binding
from paritygate.converter.parity.feeds import EDGES
from paritygate.converter.types import Array, Feeds

ROWS = 256
"""Samples in one case."""

FIXED_CASES = 64
"""Cases at most where axis 0 is fixed, so that a case holds as many samples as that size and no more."""


def edge_cases(
    binding: Binding, edges: Mapping[str, Feeds]
) -> Iterator[tuple[str, dict[str, int], dict[str, Array]]]:
    """Name, sizes and feeds of each case.

    Args:
        binding: The settled inputs.
        edges: What `SourceModel.edges` gave, under the source's own names.
    """
    for kind, feeds in edges.items():
        named = {spec.name: feeds[own] for own, spec in zip(binding.own_names, binding.inputs, strict=True)}
        total = len(next(iter(named.values())))
        rows, most = _rows_of_a_case(binding)
        for index, start in enumerate(_starts(total, rows, most)):
            yield _case(binding, f"{EDGES}:{kind}:{index}", named, start, rows, total)


def unasked_note(binding: Binding, edges: Mapping[str, Feeds]) -> list[str]:
    """What to say where a fixed size of axis 0 leaves no room for all samples."""
    if not edges:
        return []
    rows, most = _rows_of_a_case(binding)
    totals = {kind: len(next(iter(feeds.values()))) for kind, feeds in edges.items()}
    return [
        f"Of {total} samples at the model's own decisions ({kind}) {most * rows} are asked: "
        f"axis 0 is fixed at {rows}."
        for kind, total in totals.items()
        if most is not None and total > most * rows
    ]


def _starts(total: int, rows: int, most: int | None) -> list[int]:
    """Where cases begin; where there may not be as many as that takes, evenly spread over all samples."""
    starts = list(range(0, total, rows))
    if most is None or len(starts) <= most:
        return starts
    return [starts[k] for k in np.linspace(0, len(starts) - 1, most).astype(int)]


def _rows_of_a_case(binding: Binding) -> tuple[int, int | None]:
    fixed = [spec.shape[0] for spec in binding.inputs if isinstance(spec.shape[0], int)]
    return (int(fixed[0]), FIXED_CASES) if fixed else (ROWS, None)


def _case(
    binding: Binding, name: str, feeds: Mapping[str, Array], start: int, rows: int, total: int
) -> tuple[str, dict[str, int], dict[str, Array]]:
    """One case; where axis 0 is fixed, the last one begins again at the first sample to have its full size."""
    fixed = any(isinstance(spec.shape[0], int) for spec in binding.inputs)
    chosen = np.arange(start, start + rows) % total if fixed else np.arange(start, min(start + rows, total))
    part = {key: np.ascontiguousarray(array[chosen]) for key, array in feeds.items()}
    sizes = dict(binding.trace_dims)
    for spec in binding.inputs:
        for axis, dim in enumerate(spec.shape):
            if isinstance(dim, str):
                sizes[dim] = int(part[spec.name].shape[axis])
    return name, sizes, part
