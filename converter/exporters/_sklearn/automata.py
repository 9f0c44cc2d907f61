"""Whether two ways of reading one regular expression take the same part of every text.

Python takes the match that its alternatives and repeats prefer; the tokenizer of onnxruntime takes the longest
one, and its `\\b` knows ASCII only. Both questions are decided for all texts at once: characters that no set of
the expression tells apart are one letter, and the sets of places where a match may stand are finite.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np

from paritygate.converter.exporters._sklearn.expressions import (
    MAX_SETS,
    Chain,
    Chars,
    Choice,
    Node,
    Repeat,
    TooLarge,
    sets_of,
)
from paritygate.converter.types import Array

_MAX_STATES = 2000
_MAX_STEPS = 400

_Places: TypeAlias = "tuple[int, ...]"
_END = -1


@dataclass
class Automaton:
    """An expression as steps in Python's order of preference, over letters that stand for characters told apart.

    Raises:
        TooLarge: If it has more steps, sets or states than are looked at.
    """

    node: Node
    others: Sequence[Array] = ()
    """Further sets, bool[0x110000], that shall be told apart too."""
    letters: Array = field(init=False)
    """int64[0x110000], the letter of each code point."""

    def __post_init__(self) -> None:
        self._steps: list[tuple[int, ...] | Chars] = []
        self._after: list[int] = []
        sets = {id(c.members): c.members for c in [*sets_of(self.node), *map(Chars, self.others)]}
        if len(sets) > MAX_SETS:
            raise TooLarge
        code = np.zeros(0x110000, np.int64)
        for place, members in enumerate(sets.values()):
            code |= members.astype(np.int64) << place
        kinds, self.letters = np.unique(code, return_inverse=True)
        self.num_letters = len(kinds)
        self._accepts = {
            key: frozenset(np.flatnonzero(kinds >> place & 1).tolist()) for place, key in enumerate(sets)
        }
        self.start = self._closed([self._build(self.node, _END)])

    def letters_in(self, members: Array) -> frozenset[int]:
        """The letters of a set that is told apart."""
        return self._accepts[id(members)]

    def letter(self, character: str) -> int:
        return int(self.letters[ord(character)])

    def step(self, places: _Places, letter: int) -> _Places:
        """Where matches may stand after one more letter, in order of preference."""
        return self._closed(
            self._after[place]
            for place in places
            if place != _END and letter in self._accepts[id(self._set_at(place))]
        )

    def reachable(self) -> list[_Places]:
        """All that `step` leads to from the start, the order of preference forgotten."""
        seen = {self.start: None}
        for places in (queue := [self.start]):
            for letter in range(self.num_letters):
                after = tuple(sorted(self.step(places, letter)))
                if after not in seen:
                    seen[after] = None
                    queue.append(after)
                    _check(len(queue), _MAX_STATES)
        return queue

    def prefers_longest(self) -> bool:
        """Whether Python's match is the longest one in every text.

        Python gives up all that it prefers less than a match; nothing given up may be a match later on, where
        what is left is none.
        """
        first = (_cut(self.start), tuple(sorted(self.start)))
        seen = {first}
        for kept, every in (queue := [first]):
            if accepts(every) and not accepts(kept):
                return False
            for letter in range(self.num_letters):
                after = _cut(self.step(kept, letter)), tuple(sorted(self.step(every, letter)))
                if after not in seen:
                    seen.add(after)
                    queue.append(after)
                    _check(len(queue), _MAX_STATES)
        return True

    def ends_with_words(self, word: Array) -> bool:
        """Whether a match that ends in a word always goes on to its last letter."""
        letters = self.letters_in(word)
        ends = {self.step(places, letter) for places in self.reachable() for letter in letters}
        return all(accepts(self.step(end, letter)) for end in ends if accepts(end) for letter in letters)

    def begins_with_words(self, word: Array) -> bool:
        """Whether what matches from within a word also matches from one letter before."""
        letters = self.letters_in(word)
        first = [self.step(self.start, letter) for letter in letters]
        queue = [
            (here, self.step(before, letter))
            for here, letter in zip(first, letters, strict=True)
            for before in first
            if not accepts(before)
        ]
        seen = set(queue)
        for here, before in queue:
            if accepts(before):
                continue
            if accepts(here):
                return False
            for letter in range(self.num_letters):
                after = self.step(here, letter), self.step(before, letter)
                if after not in seen and after[0]:
                    seen.add(after)
                    queue.append(after)
                    _check(len(queue), _MAX_STATES)
        return True

    def _set_at(self, place: int) -> Array:
        step = self._steps[place]
        assert isinstance(step, Chars)
        return step.members

    def _closed(self, places: Iterable[int]) -> _Places:
        """Places that wait for a letter, or the end, in order of preference."""
        found: dict[int, None] = {}
        seen: set[int] = set()
        stack = list(places)[::-1]
        while stack:
            place = stack.pop()
            if place in seen:
                continue
            seen.add(place)
            step = self._steps[place] if place != _END else None
            if isinstance(step, tuple):
                stack += step[::-1]
            else:
                found[place] = None
        return tuple(found)

    def _add(self, step: tuple[int, ...] | Chars, after: int = _END) -> int:
        _check(len(self._steps), _MAX_STEPS)
        self._steps.append(step)
        self._after.append(after)
        return len(self._steps) - 1

    def _build(self, node: Node, after: int) -> int:
        """The place where an expression begins whose end leads to `after`."""
        if isinstance(node, Chars):
            return self._add(node, after)
        if isinstance(node, Chain):
            for item in reversed(node.items):
                after = self._build(item, after)
            return after
        if isinstance(node, Choice):
            return self._add(tuple(self._build(item, after) for item in node.items))
        return self._build_repeat(node, after)

    def _build_repeat(self, node: Repeat, after: int) -> int:
        if node.most is None:
            loop = self._add(())
            body = self._build(node.body, loop)
            self._steps[loop] = (body, after) if node.greedy else (after, body)
            after = loop
        else:
            end = after
            for _ in range(node.most - node.least):
                body = self._build(node.body, after)
                after = self._add((body, end) if node.greedy else (end, body))
        for _ in range(node.least):
            after = self._build(node.body, after)
        return after


def accepts(places: _Places) -> bool:
    """Whether what was read so far is a match."""
    return _END in places


def _cut(places: _Places) -> _Places:
    """What is preferred to a match, and the match."""
    return places[: places.index(_END) + 1] if _END in places else places


def _check(count: int, limit: int) -> None:
    if count > limit:
        raise TooLarge
