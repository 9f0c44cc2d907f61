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

from dataclasses import dataclass
from functools import lru_cache

from paritygate.converter.exporters._sklearn.automata import Automaton
from paritygate.converter.exporters._sklearn.character_sets import members, word
from paritygate.converter.exporters._sklearn.expressions import (
    Chars,
    Node,
    Repeat,
    TooLarge,
    Untranslatable,
    is_nullable,
    sets_of,
)
from paritygate.converter.exporters._sklearn.lowering import before_lowering, holds_dot
from paritygate.converter.exporters._sklearn.python_patterns import parsed
from paritygate.converter.exporters._sklearn.re2_syntax import written
from paritygate.converter.exporters._sklearn.word_bounds import Bounds, is_whole_word, without_bounds


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
        node, bounded = without_bounds(parsed(pattern))
        if is_nullable(node):
            raise Untranslatable("it matches the empty text, which is no token there")
        is_filtered = not _is_exact(node, bounded)
        if is_filtered:
            if not (single_words and is_whole_word(node, bounded)):
                raise Untranslatable(_why_inexact(node))
            node = Repeat(Chars(word()), 1, None)
        spaced = any((chars.members & members(r"[\s]", 0)).any() for chars in sets_of(node))
        if not lowercase:
            return TokenPattern(written(node), spaced, is_filtered)
        return TokenPattern(written(before_lowering(node)), spaced, is_filtered, holds_dot(node))
    except TooLarge:
        raise Untranslatable("it repeats too many or too large sets of characters") from None


def _why_inexact(node: Node) -> str:
    if not Automaton(node).prefers_longest():
        return "it does not always take the longest match, as the tokenizer of onnxruntime does"
    return r"its \b cannot be left out, and RE2's knows ASCII only"


def _is_exact(node: Node, bounds: Bounds) -> bool:
    """Whether the longest matches without bounds are Python's matches with them."""
    read = Automaton(node, [word()])
    if not read.prefers_longest():
        return False
    return not bounds.any or (read.ends_with_words(word()) and read.begins_with_words(word()))
