"""How many rows the embeddings have that integer inputs index."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from paritygate.converter.exporters._mindspore.mindir import Program
from paritygate.converter.types import Array

_THROUGH = {
    "Reshape",
    "Load",
    "Depend",
    "Cast",
    "ExpandDims",
    "Squeeze",
    "Transpose",
    "Flatten",
    "View",
    "Concat",
    "Identity",
}
"""Primitives that keep the values of what they are given."""

_LOOKUPS = {"Gather": (0, 1), "Embedding": (1, 0), "EmbeddingLookup": (0, 1)}
"""Primitive -> the places of its table and of its indices."""


def row_ranges(
    program: Program, inputs: Sequence[str], weights: Mapping[str, Array]
) -> dict[str, tuple[int, int]]:
    """Smallest and largest row that each input may name, for those that index a weight along its first axis.

    Args:
        program: What MindSpore compiled.
        inputs: The source's own names of the inputs, in the program's order.
        weights: Weights by their own names.
    """
    own = {full: name for (full, _), name in zip(program.main.inputs, inputs, strict=True)}
    rows: dict[str, int] = {}
    for node in program.main.nodes.values():
        if not node.primitive or node.called not in _LOOKUPS:
            continue
        table, indices = (_origin(program, node.inputs[k]) for k in _LOOKUPS[node.called])
        weight = weights.get(program.parameters.get(table, ""))
        if weight is not None and indices in own:
            name = own[indices]
            rows[name] = min(rows.get(name, weight.shape[0]), weight.shape[0])
    return {name: (0, count - 1) for name, count in rows.items()}


def _origin(program: Program, name: str) -> str:
    """The input or weight whose values a value has."""
    while name in program.main.nodes and program.main.nodes[name].called in _THROUGH:
        name = program.main.nodes[name].inputs[0]
    return name
