"""Splitting texts before they are lowered, as lowered ones would be split.

Texts are lowered letter by letter in a graph; Python's are not: the capital İ becomes an i and a dot above, and
which small letter a capital Σ becomes hangs on what follows.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from paritygate.converter.exporters._sklearn.automata import Automaton
from paritygate.converter.exporters._sklearn.character_sets import members
from paritygate.converter.exporters._sklearn.expressions import (
    Chain,
    Chars,
    Choice,
    Node,
    Repeat,
    Untranslatable,
    is_nullable,
    sets_of,
)
from paritygate.converter.types import Array

DOTTED_I = "\u0130"
_DOT = "\u0307"
_SIGMA, _FINAL_SIGMA = "\u03c3", "\u03c2"


def holds_dot(node: Node) -> bool:
    """Whether a token may hold the dot above that İ leaves behind."""
    return any(chars.members[ord(_DOT)] for chars in sets_of(node))


def before_lowering(node: Node) -> Node:
    """A pattern of texts that are not lowered, which splits them as the other splits lowered ones.

    Raises:
        Untranslatable: If how a text is lowered decides how it is split.
        TooLarge: If it is too large to tell.
    """
    if any(chars.members[ord(_SIGMA)] != chars.members[ord(_FINAL_SIGMA)] for chars in sets_of(node)):
        raise Untranslatable(
            f"it tells {_SIGMA} from {_FINAL_SIGMA}, and which of them a capital becomes hangs on the text"
        )
    if holds_dot(node):
        _check_dotted(node)
        return _Raising(hides=True).raised(node)
    # The dot is in no token, so a token may end with the i of İ, and none holds it elsewhere.
    raising = _Raising(hides=False)
    dotted, plain = raising.ending_dotted(node), raising.raised(node)
    return plain if dotted is None else Choice((dotted, plain))


def _check_dotted(node: Node) -> None:
    """Refuse a pattern that tells İ, which becomes an i and a dot, from an i."""
    read = Automaton(node)
    i, dot = read.letter("i"), read.letter(_DOT)
    for places in [read.start, *read.reachable()]:
        after = read.step(places, i)
        if sorted(read.step(after, dot)) != sorted(after) or (not after and read.step(places, dot)):
            raise Untranslatable(
                f"it tells {DOTTED_I}, which Python lowers to an i and a dot above, from an i"
            )


class _Raising:
    """Turns sets of lowered characters into sets of those that are lowered to them, each set once.

    Args:
        hides: Whether İ stands wherever an i does.
    """

    def __init__(self, *, hides: bool) -> None:
        self._hides = hides
        self._sets: dict[Chars, Chars] = {}
        self._dotted = Chars(members(f"[{DOTTED_I}]", 0))

    def raised(self, node: Node) -> Node:
        """What matches texts that the given node matches when they are lowered."""
        if isinstance(node, Chars):
            return self._set(node)
        if isinstance(node, Repeat):
            return Repeat(self.raised(node.body), node.least, node.most, node.greedy)
        return type(node)(tuple(self.raised(item) for item in node.items))

    def _set(self, chars: Chars) -> Chars:
        if chars not in self._sets:
            raised: Array = chars.members[_lowered()]
            raised[ord(DOTTED_I)] = self._hides and chars.members[ord("i")]
            self._sets[chars] = Chars(raised)
        return self._sets[chars]

    def ending_dotted(self, node: Node) -> Node | None:
        """What matches if its last character, an i, is written İ; None where it never ends with one."""
        if isinstance(node, Chars):
            return self._dotted if node.members[ord("i")] else None
        if isinstance(node, Choice):
            ends = [end for item in node.items if (end := self.ending_dotted(item)) is not None]
            return Choice(tuple(ends)) if ends else None
        if isinstance(node, Repeat):
            end = self.ending_dotted(node.body)
            if end is None or node.most == 0:
                return None
            most = None if node.most is None else node.most - 1
            return Chain((Repeat(self.raised(node.body), max(node.least - 1, 0), most), end))
        return self._chain_ending_dotted(node.items)

    def _chain_ending_dotted(self, items: Sequence[Node]) -> Node | None:
        raised = [self.raised(item) for item in items]
        found = []
        for place in range(len(items) - 1, -1, -1):
            end = self.ending_dotted(items[place])
            if end is not None:
                found.append(Chain((*raised[:place], end)))
            if not is_nullable(items[place]):
                break
        return Choice(tuple(found)) if found else None


@lru_cache(maxsize=1)
def _lowered() -> Array:
    """int64[0x110000]: the code point that each one is lowered to, letter by letter; itself where that is two."""
    codes = np.arange(0x110000)
    for code in range(0x110000):
        lower = chr(code).lower()
        if len(lower) == 1:
            codes[code] = ord(lower)
    return codes
