"""A regular expression as a tree over sets of characters, or the reason why onnxruntime cannot read it.

A set is a megabyte, so whoever builds a tree builds each set once, however often it stands there.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np

from paritygate.converter.types import Array

MAX_SETS = 60
"""Different sets of characters in one expression; what tells more apart is not looked at."""


class Untranslatable(Exception):
    """A pattern that the tokenizer cannot read as Python does; the text says why."""


class TooLarge(Exception):
    """An expression with more repeats or sets than are looked at."""


@dataclass(frozen=True, eq=False)
class Chars:
    """One character out of a set: bool[0x110000], by code point."""

    members: Array

    @cached_property
    def ranges(self) -> list[tuple[int, int]]:
        """First and last code point of each run of members; the surrogates, which no text holds, join any."""
        return _runs(self.members)

    @cached_property
    def gaps(self) -> list[tuple[int, int]]:
        """The same of what is no member."""
        return _runs(~self.members)


@dataclass(frozen=True)
class Chain:
    """One after the other."""

    items: tuple[Node, ...]


@dataclass(frozen=True)
class Choice:
    """One of several, the first ones preferred."""

    items: tuple[Node, ...]


@dataclass(frozen=True)
class Repeat:
    """The same again, `least` to `most` times; None is without end."""

    body: Node
    least: int
    most: int | None
    greedy: bool = True


Node: TypeAlias = "Chars | Chain | Choice | Repeat"


def is_nullable(node: Node) -> bool:
    """Whether it matches the empty text."""
    if isinstance(node, Chars):
        return False
    if isinstance(node, Repeat):
        return node.least == 0 or is_nullable(node.body)
    return (all if isinstance(node, Chain) else any)(is_nullable(item) for item in node.items)


def sets_of(node: Node) -> list[Chars]:
    """Every set of characters in it, from left to right."""
    if isinstance(node, Chars):
        return [node]
    inner = (node.body,) if isinstance(node, Repeat) else node.items
    return [chars for item in inner for chars in sets_of(item)]


def edge_sets(node: Node, *, last: bool) -> list[Chars]:
    """The sets out of which its first characters may be, or its last ones."""
    if isinstance(node, Chars):
        return [node]
    if isinstance(node, Repeat):
        return edge_sets(node.body, last=last)
    found: list[Chars] = []
    for item in reversed(node.items) if last else node.items:
        found += edge_sets(item, last=last)
        if isinstance(node, Chain) and not is_nullable(item):
            break
    return found


@dataclass(frozen=True)
class Bound:
    r"""A `\b` that is still to be taken out; what else has no form is never part of a tree."""


def holds_bound(node: Any) -> bool:
    r"""Whether a tree still holds a `\b`."""
    if isinstance(node, Bound):
        return True
    inner = (node.body,) if isinstance(node, Repeat) else getattr(node, "items", ())
    return any(holds_bound(item) for item in inner)


def _runs(members: Array) -> list[tuple[int, int]]:
    held = members.copy()
    held[0xD800:0xE000] = held[0xD7FF] & held[0xE000]
    edges = np.flatnonzero(np.diff(held.astype(np.int8), prepend=0, append=0))
    return list(zip(edges[::2].tolist(), (edges[1::2] - 1).tolist(), strict=True))
