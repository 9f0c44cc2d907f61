"""Text vectorizers: how skl2onnx has to be asked for them, and which texts ask all that they know.

onnxruntime lowers and splits texts with the locale and the regular expression that stand in the graph. skl2onnx
writes a locale that few containers have, and an expression that knows no letters beyond ASCII; scikit-learn's own
default is `(?u)\\\\b\\\\w\\\\w+\\\\b`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

LOCALE = "C.UTF-8"
"""A locale that knows all letters and is part of glibc since 2.35, and of Debian and Ubuntu before that."""

_SKLEARN_PATTERN = r"(?u)\b\w\w+\b"
_RE2_PATTERN = r"[\p{L}\p{N}_][\p{L}\p{N}_]+"

_WORDS_IN_TEXT = 7


def is_vectorizer(part: Any) -> bool:
    """Whether it counts the words of texts: CountVectorizer, TfidfVectorizer and what derives from them."""
    return any(kind.__name__ == "CountVectorizer" for kind in type(part).__mro__)


def _splits_texts(part: Any) -> bool:
    return is_vectorizer(part) or type(part).__name__ == "HashingVectorizer"


def takes_texts(estimator: Any) -> bool:
    """Whether the first thing that happens to a sample is that its text is split into words."""
    while getattr(estimator, "steps", None) or hasattr(estimator, "best_estimator_"):
        best = getattr(estimator, "best_estimator_", None)
        estimator = best if best is not None else estimator.steps[0][1]
    return _splits_texts(estimator)


def vectorizer_options(part: Any) -> dict[str, Any]:
    """What skl2onnx has to be told of a vectorizer."""
    options: dict[str, Any] = {"locale": LOCALE}
    if part.analyzer == "word" and part.token_pattern == _SKLEARN_PATTERN:
        options["tokenexp"] = _RE2_PATTERN
    return options


def lowering_note(estimator_parts: Iterable[Any]) -> str | None:
    """What to say of the one thing that lowering in the graph does otherwise."""
    if not any(is_vectorizer(part) and part.lowercase for part in estimator_parts):
        return None
    return (
        "Texts are lowered letter by letter: the capitals \u03a3 at the end of a word and \u0130, which Python "
        "lowers by what stands around them or to two characters, come out otherwise than in scikit-learn."
    )


def known_texts(part: Any) -> Iterator[str]:
    """Texts in which each word of a vectorizer's vocabulary stands once; every third word in capitals."""
    words = sorted(part.vocabulary_, key=lambda word: part.vocabulary_[word])
    for start in range(0, len(words), _WORDS_IN_TEXT):
        chosen = words[start : start + _WORDS_IN_TEXT]
        capital = part.lowercase
        yield " ".join(
            w.upper() if capital and k % 3 == 0 and _comes_back(w) else w for k, w in enumerate(chosen)
        )


def _comes_back(word: str) -> bool:
    """Whether capitals of a word lead back to it, letter by letter."""
    return "".join(letter.lower() for letter in word.upper()) == word
