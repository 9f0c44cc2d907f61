"""What does not fit between a checkpoint's names and a network's, in the words that a person needs."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence

SHOWN = 5
"""Names that a message spells out; it says how many more there are."""

COMPARED = 5000
"""Names that are compared with a missing one; comparing takes a hundred thousandth of a second each."""


def misfit(
    found: Mapping[str, Sequence[int]],
    expected: Mapping[str, Sequence[int]],
    *,
    owner: str = "the network",
    types: Sequence[str] = (),
) -> str | None:
    """Missing names with the nearest unexpected ones, unexpected names, shapes that differ; None if all fit.

    Args:
        found: Shapes in the checkpoint, by name.
        expected: Shapes that the network has, by name.
        owner: What the network is called.
        types: Sentences on values of a type that does not fit.
    """
    missing = sorted(expected.keys() - found.keys())
    unexpected = sorted(found.keys() - expected.keys())
    shapes = [
        f"{name} is {list(found[name])}, {owner} has {list(expected[name])}"
        for name in sorted(found.keys() & expected.keys())
        if list(found[name]) != list(expected[name])
    ]
    parts = [
        f"missing {_some_nearest(missing, unexpected)}" if missing else "",
        f"unexpected {some(unexpected)}" if unexpected else "",
        f"other shapes: {some(shapes)}" if shapes else "",
        f"other types: {some(types)}" if types else "",
    ]
    return "; ".join(filter(None, parts)) or None


def _some_nearest(missing: Sequence[str], unexpected: Sequence[str]) -> str:
    """As `some`; the nearest name is sought only for those that are shown, and not among millions."""
    shown = [with_nearest(name, unexpected[:COMPARED]) for name in missing[:SHOWN]]
    return some([*shown, *missing[SHOWN:]])


def with_nearest(name: str, others: Sequence[str]) -> str:
    """A name, and the most alike of others behind it if one is alike."""
    near = difflib.get_close_matches(name, others, n=1, cutoff=0.5)
    return f"{name} (nearest: {near[0]})" if near else name


def some(names: Iterable[str]) -> str:
    """The first few names, and how many more there are."""
    listed = list(names)
    more = f" and {len(listed) - SHOWN} more" if len(listed) > SHOWN else ""
    return ", ".join(listed[:SHOWN]) + more
