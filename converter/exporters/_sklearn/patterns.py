"""Token patterns of scikit-learn as the tokenizer of onnxruntime reads them, or a reason why it cannot.

The tokenizer's expressions are RE2's, with four differences from Python's `re` that this file is about:

- `\\s`, `\\w`, `\\d`, `\\b` know ASCII only and `(?u)` is unknown. Every set of characters is asked of Python
  itself and written as its code points; `\\b` is left out where that changes no token, and refused elsewhere.
- The longest match is taken, whatever Python prefers. A pattern of which both are not the same is refused.
- A group is no token, and there is no looking around.
- Texts are lowered letter by letter, Python's are not: the capital İ becomes an i and a dot. So the graph splits
  texts before it lowers their tokens, with a pattern that takes what lowered texts would be split into.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from paritygate.converter.exporters._sklearn.automata import (
    Automaton,
    Chain,
    Chars,
    Choice,
    Node,
    Repeat,
    TooLarge,
    edge_sets,
    is_nullable,
    sets_of,
)
from paritygate.converter.types import Array

_MAX_RANGES = 8000
"""Ranges of characters in one expression, a repeated set as often as it is repeated: ten times `\\w`.

RE2 compiles some more, and then complains of each text that its tables have no room.
"""

DOTTED_I = "\u0130"
_DOT = "\u0307"
_SIGMA, _FINAL_SIGMA = "\u03c3", "\u03c2"


class Untranslatable(Exception):
    """A pattern that the tokenizer cannot read as Python does; the text says why."""


@dataclass(frozen=True)
class TokenPattern:
    """A token pattern as the tokenizer gets it, on texts that are not lowered yet."""

    expression: str
    """In the syntax of RE2."""
    holds_spaces: bool
    """Whether a token may hold a space, which stands between words in the names of n-grams."""
    is_filtered: bool = False
    """Whether it also takes words that the pattern does not; no other word of the vocabulary may be one."""
    hides_dotted_i: bool = False
    """Whether tokens with İ are taken whole, and are none that a lowered text could spell in another way."""


@lru_cache(maxsize=16)
def translated(pattern: str, *, lowercase: bool, single_words: bool) -> TokenPattern:
    """A token pattern for the tokenizer of onnxruntime.

    Args:
        pattern: As scikit-learn was given it.
        lowercase: Whether texts are lowered before they are split.
        single_words: Whether only words count, and not which ones stand next to each other.

    Raises:
        Untranslatable: If the tokenizer would take other tokens.
    """
    try:
        node, bounded = _without_bounds(_parsed(pattern))
        if is_nullable(node):
            raise Untranslatable("it matches the empty text, which is no token there")
        is_filtered = not _is_exact(node, bounded)
        if is_filtered:
            if not (single_words and _is_whole_word(node, bounded)):
                raise Untranslatable(_why_inexact(node))
            node = Repeat(Chars(_word()), 1, None)
        spaced = any((chars.members & _members(r"[\s]", 0)).any() for chars in sets_of(node))
        if not lowercase:
            return TokenPattern(_written(node), spaced, is_filtered)
        hides = any(chars.members[ord(_DOT)] for chars in sets_of(node))
        return TokenPattern(_written(_before_lowering(node, hides)), spaced, is_filtered, hides)
    except TooLarge:
        raise Untranslatable("it repeats too many or too large sets of characters") from None


def _why_inexact(node: Node) -> str:
    if not Automaton(node).prefers_longest():
        return "it does not always take the longest match, as the tokenizer of onnxruntime does"
    return r"its \b cannot be left out, and RE2's knows ASCII only"


# --- Python's own reading -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Bound:
    r"""A `\b` that is still to be taken out; what else has no form never gets here."""


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


def _parsed(pattern: str) -> Any:
    """A pattern as Python's own parser reads it, as a node that still holds its bounds."""
    # Private, and the only reading of a pattern that is Python's own.
    from re import _parser as parser  # type: ignore[attr-defined]

    read = parser.parse(pattern)
    items = list(read)
    words = [item for item in items if str(item[0]) != "AT"]
    if len(words) == 1 and str(words[0][0]) == "SUBPATTERN":
        # One group around all is the whole match, which is what the tokenizer takes.
        whole = (words[0][0], (None, *words[0][1][1:]))
        items = [whole if item is words[0] else item for item in items]
    return _chain(items, read.state.flags)


def _chain(items: Any, flags: int) -> Any:
    return Chain(tuple(_node(str(kind), value, flags) for kind, value in items))


def _node(kind: str, value: Any, flags: int) -> Any:
    if kind in ("LITERAL", "NOT_LITERAL", "ANY", "IN"):
        return Chars(_members(_as_set(kind, value), flags & (re.IGNORECASE | re.ASCII | re.DOTALL)))
    if kind == "BRANCH":
        return Choice(tuple(_chain(items, flags) for items in value[1]))
    if kind in ("MAX_REPEAT", "MIN_REPEAT"):
        return _repeat(kind, value, flags)
    if kind == "SUBPATTERN":
        group, added, removed, items = value
        if group is not None:
            raise Untranslatable("its group is only a part of the token; write (?:...)")
        return _chain(items, (flags | added) & ~removed)
    if kind == "AT" and str(value) == "AT_BOUNDARY" and not flags & re.ASCII:
        return _Bound()
    raise Untranslatable(_REFUSED.get(kind, f"it holds what is not known here ({kind})"))


def _repeat(kind: str, value: Any, flags: int) -> Repeat:
    least, most, items = value
    body = _chain(items, flags)
    if _holds_bound(body):
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


@lru_cache(maxsize=1)
def _every_character() -> str:
    return "".join(chr(code) for code in range(0x110000) if not 0xD800 <= code < 0xE000)


@lru_cache(maxsize=64)
def _members(expression: str, flags: int) -> Array:
    """bool[0x110000]: the characters that an expression of one character matches, asked of Python."""
    found = "".join(re.findall(expression, _every_character(), flags))
    members = np.zeros(0x110000, np.bool_)
    members[np.frombuffer(found.encode("utf-32-le"), np.uint32)] = True
    return members


def _word() -> Array:
    return _members(r"[\w]", 0)


# --- bounds of words ----------------------------------------------------------------------------------------


def _holds_bound(node: Any) -> bool:
    if isinstance(node, _Bound):
        return True
    inner = (node.body,) if isinstance(node, Repeat) else getattr(node, "items", ())
    return any(_holds_bound(item) for item in inner)


@dataclass
class _Bounds:
    """Which bounds were taken out."""

    any: bool = False
    all_first: bool = False
    all_last: bool = False


def _without_bounds(node: Any) -> tuple[Node, _Bounds]:
    r"""A pattern without the `\b` at its begin and end, and at those of its alternatives."""
    first, before = _stripped(node, last=False)
    bare, after = _stripped(first, last=True)
    if _holds_bound(bare):
        raise Untranslatable(r"its \b stands elsewhere than at the begin or end")
    return bare, _Bounds(before != "none" or after != "none", before == "all", after == "all")


def _stripped(node: Any, *, last: bool) -> tuple[Any, str]:
    """A node without the bounds on one side, and whether "all", "some" or "none" of its alternatives had one."""
    if isinstance(node, Choice):
        found = [_stripped(item, last=last) for item in node.items]
        told = {said for _, said in found}
        return Choice(tuple(item for item, _ in found)), told.pop() if len(told) == 1 else "some"
    if not isinstance(node, Chain) or not node.items:
        return node, "none"
    items, edge = list(node.items), -1 if last else 0
    if isinstance(items[edge], _Bound):
        del items[edge]
        bare, _ = _stripped(Chain(tuple(items)), last=last)
        _check_beside_words(bare, last=last)
        return bare, "all"
    items[edge], said = _stripped(items[edge], last=last)
    return Chain(tuple(items)), said


def _check_beside_words(node: Any, *, last: bool) -> None:
    if _holds_bound(node):
        node, _ = _stripped(node, last=not last)
    if _holds_bound(node):
        raise Untranslatable(r"its \b stands elsewhere than at the begin or end")
    beside = edge_sets(node, last=last)
    if is_nullable(node) or any((chars.members & ~_word()).any() for chars in beside):
        raise Untranslatable(r"its \b stands beside what is no letter of a word (\w)")


def _is_exact(node: Node, bounds: _Bounds) -> bool:
    """Whether the longest matches without bounds are Python's matches with them."""
    read = Automaton(node, [_word()])
    if not read.prefers_longest():
        return False
    return not bounds.any or (read.ends_with_words(_word()) and read.begins_with_words(_word()))


def _is_whole_word(node: Node, bounds: _Bounds) -> bool:
    """Whether each match is a whole word, between two bounds: those that are none are in no vocabulary."""
    within = all(not (chars.members & ~_word()).any() for chars in sets_of(node))
    return bounds.all_first and bounds.all_last and within


# --- splitting before lowering ------------------------------------------------------------------------------


@lru_cache(maxsize=1)
def _lowered() -> Array:
    """int64[0x110000]: the code point that each one is lowered to, letter by letter; itself where that is two."""
    codes = np.arange(0x110000)
    for code in range(0x110000):
        lower = chr(code).lower()
        if len(lower) == 1:
            codes[code] = ord(lower)
    return codes


def _before_lowering(node: Node, hides: bool) -> Node:
    """A pattern of texts that are not lowered, which splits them as the other splits lowered ones."""
    if any(chars.members[ord(_SIGMA)] != chars.members[ord(_FINAL_SIGMA)] for chars in sets_of(node)):
        raise Untranslatable(
            f"it tells {_SIGMA} from {_FINAL_SIGMA}, and which of them a capital becomes hangs on the text"
        )
    if hides:
        _check_dotted(node)
        return _raised(node, hides=True)
    # The dot is in no token, so a token may end with the i of İ, and none holds it elsewhere.
    dotted, plain = _ending_dotted(node), _raised(node, hides=False)
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


def _raised(node: Node, *, hides: bool) -> Node:
    if isinstance(node, Chars):
        return Chars(_raised_set(node.members, hides))
    if isinstance(node, Repeat):
        return Repeat(_raised(node.body, hides=hides), node.least, node.most, node.greedy)
    return type(node)(tuple(_raised(item, hides=hides) for item in node.items))


def _raised_set(members: Array, hides: bool) -> Array:
    raised: Array = members[_lowered()]
    raised[ord(DOTTED_I)] = hides and members[ord("i")]
    return raised


def _ending_dotted(node: Node) -> Node | None:
    """What matches if its last character, an i, is written İ; None where it never ends with one."""
    if isinstance(node, Chars):
        return Chars(_members(f"[{DOTTED_I}]", 0)) if node.members[ord("i")] else None
    if isinstance(node, Choice):
        ends = [end for item in node.items if (end := _ending_dotted(item)) is not None]
        return Choice(tuple(ends)) if ends else None
    if isinstance(node, Repeat):
        end = _ending_dotted(node.body)
        if end is None or node.most == 0:
            return None
        before = _raised(node.body, hides=False)
        most = None if node.most is None else node.most - 1
        return Chain((Repeat(before, max(node.least - 1, 0), most), end))
    return _chain_ending_dotted(node.items)


def _chain_ending_dotted(items: Sequence[Node]) -> Node | None:
    found = []
    for place in range(len(items) - 1, -1, -1):
        end = _ending_dotted(items[place])
        if end is not None:
            before = [_raised(item, hides=False) for item in items[:place]]
            found.append(Chain((*before, end)))
        if not is_nullable(items[place]):
            break
    return Choice(tuple(found)) if found else None


# --- RE2's syntax -------------------------------------------------------------------------------------------


def _written(node: Node) -> str:
    if _num_ranges(node) > _MAX_RANGES:
        raise TooLarge
    return _text(node)


def _num_ranges(node: Node) -> int:
    if isinstance(node, Chars):
        return len(_ranges(node.members))
    if isinstance(node, Repeat):
        copies = max(node.least + 1 if node.most is None else node.most, 1)
        return copies * _num_ranges(node.body)
    return sum(_num_ranges(item) for item in node.items)


def _text(node: Node) -> str:
    if isinstance(node, Chars):
        return _set_text(node.members)
    if isinstance(node, Chain):
        return "".join(_text(item) for item in node.items)
    if isinstance(node, Choice):
        return f"(?:{'|'.join(_text(item) for item in node.items)})"
    most = "" if node.most is None else str(node.most)
    return f"(?:{_text(node.body)}){{{node.least},{most}}}"


def _ranges(members: Array) -> list[tuple[int, int]]:
    """First and last code point of each run of members; the surrogates, which no text holds, join any."""
    held = members.copy()
    held[0xD800:0xE000] = held[0xD7FF] & held[0xE000]
    edges = np.flatnonzero(np.diff(held.astype(np.int8), prepend=0, append=0))
    return list(zip(edges[::2].tolist(), (edges[1::2] - 1).tolist(), strict=True))


def _set_text(members: Array) -> str:
    ranges = _ranges(members)
    if not ranges:
        raise Untranslatable("it holds a set without any character")
    others = _ranges(~members)
    told, sign = (others, "^") if len(others) < len(ranges) else (ranges, "")
    if not told:  # any character: RE2 has no empty set to negate
        told, sign = ranges, ""
    return f"[{sign}{''.join(_range_text(first, last) for first, last in told)}]"


def _range_text(first: int, last: int) -> str:
    return _code_text(first) if first == last else f"{_code_text(first)}-{_code_text(last)}"


def _code_text(code: int) -> str:
    return chr(code) if chr(code).isascii() and chr(code).isalnum() else f"\\x{{{code:x}}}"
