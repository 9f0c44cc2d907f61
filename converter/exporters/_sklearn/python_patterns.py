"""Token patterns as Python's own parser reads them."""

from __future__ import annotations

import re
from typing import Any

from paritygate.converter.exporters._sklearn.character_sets import members
from paritygate.converter.exporters._sklearn.expressions import (
    MAX_SETS,
    Bound,
    Chain,
    Chars,
    Choice,
    Repeat,
    TooLarge,
    Untranslatable,
    holds_bound,
    is_nullable,
)

_KINDS = {
    "CATEGORY_DIGIT": r"\d",
    "CATEGORY_NOT_DIGIT": r"\D",
    "CATEGORY_SPACE": r"\s",
    "CATEGORY_NOT_SPACE": r"\S",
    "CATEGORY_WORD": r"\w",
    "CATEGORY_NOT_WORD": r"\W",
}

_REFUSED = {
    "ASSERT": "it looks ahead or behind",
    "ASSERT_NOT": "it looks ahead or behind",
    "GROUPREF": "it refers back to a group",
    "GROUPREF_EXISTS": "it refers back to a group",
    "ATOMIC_GROUP": "it holds an atomic group",
    "POSSESSIVE_REPEAT": "it holds a possessive repeat",
    "AT": r"of the anchors only \b has a form, without (?a)",
}


def parsed(pattern: str) -> Any:
    r"""A pattern as a tree that still holds its `\b`.

    Raises:
        Untranslatable: If it holds what has no form.
        TooLarge: If it has more sets than are looked at.
    """
    # Private, and the only reading of a pattern that is Python's own.
    from re import _parser as parser  # type: ignore[attr-defined]

    read = parser.parse(pattern)
    items = list(read)
    words = [item for item in items if str(item[0]) != "AT"]
    if len(words) == 1 and str(words[0][0]) == "SUBPATTERN":
        # One group around all is the whole match, which is what the tokenizer takes.
        whole = (words[0][0], (None, *words[0][1][1:]))
        items = [whole if item is words[0] else item for item in items]
    return _Reader().chain(items, read.state.flags)


class _Reader:
    """Builds the tree of one pattern, in which equal sets are one."""

    def __init__(self) -> None:
        self._sets: dict[tuple[str, int], Chars] = {}

    def chain(self, items: Any, flags: int) -> Any:
        return Chain(tuple(self._node(str(kind), value, flags) for kind, value in items))

    def _node(self, kind: str, value: Any, flags: int) -> Any:
        if kind in ("LITERAL", "NOT_LITERAL", "ANY", "IN"):
            return self._set(_as_set(kind, value), flags & (re.IGNORECASE | re.ASCII | re.DOTALL))
        if kind == "BRANCH":
            return Choice(tuple(self.chain(items, flags) for items in value[1]))
        if kind in ("MAX_REPEAT", "MIN_REPEAT"):
            return self._repeat(kind, value, flags)
        if kind == "SUBPATTERN":
            group, added, removed, items = value
            if group is not None:
                raise Untranslatable("its group is only a part of the token; write (?:...)")
            return self.chain(items, (flags | added) & ~removed)
        if kind == "AT" and str(value) == "AT_BOUNDARY" and not flags & re.ASCII:
            return Bound()
        raise Untranslatable(_REFUSED.get(kind, f"it holds what is not known here ({kind})"))

    def _set(self, expression: str, flags: int) -> Chars:
        """The set of an expression of one character; one too many is refused before it takes its megabyte."""
        key = expression, flags
        if key not in self._sets:
            if len(self._sets) == MAX_SETS:
                raise TooLarge
            self._sets[key] = Chars(members(expression, flags))
        return self._sets[key]

    def _repeat(self, kind: str, value: Any, flags: int) -> Repeat:
        least, most, items = value
        body = self.chain(items, flags)
        if holds_bound(body):
            raise Untranslatable(r"its \b stands inside a repeat")
        endless = str(most) == "MAXREPEAT"
        if is_nullable(body) and (endless or most > 1):
            raise Untranslatable("it repeats what may be empty")
        return Repeat(body, least, None if endless else most, kind == "MAX_REPEAT")


def _as_set(kind: str, value: Any) -> str:
    """One character's expression in Python's syntax."""
    if kind == "ANY":
        return "."
    if kind == "IN":
        return f"[{''.join(_as_part(str(k), v) for k, v in value)}]"
    return f"[{'^' if kind == 'NOT_LITERAL' else ''}{_escaped(value)}]"


def _as_part(kind: str, value: Any) -> str:
    if kind == "NEGATE":
        return "^"
    if kind == "RANGE":
        return f"{_escaped(value[0])}-{_escaped(value[1])}"
    return _escaped(value) if kind == "LITERAL" else _KINDS[str(value)]


def _escaped(code: int) -> str:
    return f"\\U{code:08x}"
