"""Taking the `\b` out of a pattern: RE2's knows ASCII only, Python's all letters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from paritygate.converter.exporters._sklearn.character_sets import word
from paritygate.converter.exporters._sklearn.expressions import (
    Bound,
    Chain,
    Choice,
    Node,
    Untranslatable,
    edge_sets,
    holds_bound,
    is_nullable,
    sets_of,
)


@dataclass
class Bounds:
    """Which bounds were taken out."""

    any: bool = False
    all_first: bool = False
    all_last: bool = False


def without_bounds(node: Any) -> tuple[Node, Bounds]:
    r"""A pattern without the `\b` at its begin and end, and at those of its alternatives."""
    first, before = _stripped(node, last=False)
    bare, after = _stripped(first, last=True)
    if holds_bound(bare):
        raise Untranslatable(r"its \b stands elsewhere than at the begin or end")
    return bare, Bounds(before != "none" or after != "none", before == "all", after == "all")


def _stripped(node: Any, *, last: bool) -> tuple[Any, str]:
    """A node without the bounds on one side, and whether "all", "some" or "none" of its alternatives had one."""
    if isinstance(node, Choice):
        found = [_stripped(item, last=last) for item in node.items]
        told = {said for _, said in found}
        return Choice(tuple(item for item, _ in found)), told.pop() if len(told) == 1 else "some"
    if not isinstance(node, Chain) or not node.items:
        return node, "none"
    items, edge = list(node.items), -1 if last else 0
    if isinstance(items[edge], Bound):
        del items[edge]
        bare, _ = _stripped(Chain(tuple(items)), last=last)
        _check_beside_words(bare, last=last)
        return bare, "all"
    items[edge], said = _stripped(items[edge], last=last)
    return Chain(tuple(items)), said


def _check_beside_words(node: Any, *, last: bool) -> None:
    if holds_bound(node):
        node, _ = _stripped(node, last=not last)
    if holds_bound(node):
        raise Untranslatable(r"its \b stands elsewhere than at the begin or end")
    beside = edge_sets(node, last=last)
    if is_nullable(node) or any((chars.members & ~word()).any() for chars in beside):
        raise Untranslatable(r"its \b stands beside what is no letter of a word (\w)")


def is_whole_word(node: Node, bounds: Bounds) -> bool:
    """Whether each match is a whole word, between two bounds: those that are none are in no vocabulary."""
    within = all(not (chars.members & ~word()).any() for chars in sets_of(node))
    return bounds.all_first and bounds.all_last and within
