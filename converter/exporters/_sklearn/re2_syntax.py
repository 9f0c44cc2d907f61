"""Expressions in the syntax of RE2, every set of characters written as its code points."""

from __future__ import annotations

from paritygate.converter.exporters._sklearn.expressions import (
    Chain,
    Chars,
    Choice,
    Node,
    Repeat,
    TooLarge,
    Untranslatable,
)

_MAX_RANGES = 8000
"""Ranges of characters in one expression, a repeated set as often as it is repeated: ten times `\\w`.

RE2 compiles some more, and then complains of each text that its tables have no room.
"""


def written(node: Node) -> str:
    """An expression as RE2 reads it, without groups and names of sets.

    Raises:
        Untranslatable: If it holds an empty set.
        TooLarge: If RE2 has no room for it.
    """
    if _num_ranges(node) > _MAX_RANGES:
        raise TooLarge
    return _text(node)


def _num_ranges(node: Node) -> int:
    if isinstance(node, Chars):
        return len(node.ranges)
    if isinstance(node, Repeat):
        copies = max(node.least + 1 if node.most is None else node.most, 1)
        return copies * _num_ranges(node.body)
    return sum(_num_ranges(item) for item in node.items)


def _text(node: Node) -> str:
    if isinstance(node, Chars):
        return _set_text(node)
    if isinstance(node, Chain):
        return "".join(_text(item) for item in node.items)
    if isinstance(node, Choice):
        return f"(?:{'|'.join(_text(item) for item in node.items)})"
    most = "" if node.most is None else str(node.most)
    return f"(?:{_text(node.body)}){{{node.least},{most}}}"


def _set_text(chars: Chars) -> str:
    ranges = chars.ranges
    if not ranges:
        raise Untranslatable("it holds a set without any character")
    told, sign = (chars.gaps, "^") if len(chars.gaps) < len(ranges) else (ranges, "")
    if not told:  # any character: RE2 has no empty set to negate
        told, sign = ranges, ""
    return f"[{sign}{''.join(_range_text(first, last) for first, last in told)}]"


def _range_text(first: int, last: int) -> str:
    return _code_text(first) if first == last else f"{_code_text(first)}-{_code_text(last)}"


def _code_text(code: int) -> str:
    return chr(code) if chr(code).isascii() and chr(code).isalnum() else f"\\x{{{code:x}}}"
