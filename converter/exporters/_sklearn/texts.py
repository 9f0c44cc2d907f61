"""Text vectorizers: which have an ONNX form, how skl2onnx has to be asked for it, and which texts ask it.

onnxruntime lowers and splits texts with the locale and the regular expression that stand in the graph. skl2onnx
writes a locale that few containers have, and an expression that knows no letters beyond ASCII.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any

from paritygate.converter.errors import UnsupportedOperator
from paritygate.converter.exporters._sklearn.expressions import Untranslatable
from paritygate.converter.exporters._sklearn.patterns import TokenPattern, translated
from paritygate.converter.exporters._sklearn.tokenizers import LOCALE

_WORDS_IN_TEXT = 7
_WORDS_IN_ALL_FORMS = 6000
_WORDS_BESIDE_OTHERS = 24

_BETWEEN = (
    *"\u00a0\u3000\t\n\x0b\x0c\r\x1c\x85\u2003\u200b", "\r\n",
    *",.'-_#\u2019\u00b7", *"7\u0665\u00b2\u00e9\u0130\u0307\u093f",
)  # fmt: skip
"""What may part two words, or join them, or be a word of its own: Python and RE2 see much of it otherwise."""

_LOOKALIKES = {"i": "\u0130", "k": "\u212a", "s": "\u017f"}
"""Letters that are lowered to a letter of ASCII, or to it and a dot, or stay what they are."""

_STRAY_SHARE = 0.01
"""Share of the vocabulary that may be words whose capitals onnxruntime lowers otherwise: a note says so of them.
A model of English texts knows a few words of other alphabets; a model of Greek is refused."""

_WAY_OUT = "Lower the texts before they get here, and fit it with lowercase=False."


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


# --- what has a form ----------------------------------------------------------------------------------------


def vectorizer_options(path: str, part: Any) -> dict[str, Any]:
    """What skl2onnx has to be told of a vectorizer.

    Raises:
        UnsupportedOperator: If it has no ONNX form.
    """
    refuse_unlike(path, part)
    return {"locale": LOCALE, "tokenexp": token_pattern(path, part).expression}


def token_pattern(path: str, part: Any) -> TokenPattern:
    """The token pattern of a vectorizer as onnxruntime gets it.

    Raises:
        UnsupportedOperator: If onnxruntime would split texts otherwise.
    """
    single = tuple(part.ngram_range) == (1, 1)
    try:
        return translated(part.token_pattern, lowercase=bool(part.lowercase), single_words=single)
    except Untranslatable as reason:
        raise _refusal(
            path,
            part,
            rf"token_pattern={part.token_pattern!r} cannot be written for onnxruntime's tokenizer: {reason}. Fit "
            r"it with a plain pattern, such as token_pattern=r'\w+' or r'[^\s,]+'.",
        ) from None


def refuse_unlike(path: str, part: Any) -> None:
    """Refuse a vectorizer whose ONNX form would find other words.

    Raises:
        UnsupportedOperator: Naming what is set, and what to set instead.
    """
    if not is_vectorizer(part):
        return
    for name, usual in (
        ("strip_accents", None),
        ("preprocessor", None),
        ("tokenizer", None),
        ("analyzer", "word"),
    ):
        if getattr(part, name) != usual:
            raise _refusal(
                path,
                part,
                f"{name}={getattr(part, name)!r}. Fit it with {name}={usual!r}, and do the rest to the texts "
                "before they get here.",
            )
    pattern = token_pattern(path, part)
    many = tuple(part.ngram_range) != (1, 1)
    stopped = part.get_stop_words() or ()
    if many and stopped:
        raise _refusal(
            path,
            part,
            "n-grams beside stop words: the graph keeps stop words, so that other words stand next to each other. "
            "Fit it with stop_words=None, or ngram_range=(1, 1).",
        )
    if many and pattern.holds_spaces:
        raise _refusal(
            path,
            part,
            f"n-grams of tokens that may hold spaces (token_pattern={part.token_pattern!r}): where one ends is "
            "not in their names. Fit it with ngram_range=(1, 1), or a pattern of tokens without spaces.",
        )
    for word in part.vocabulary_:
        reason = _why_unlike(word, part, pattern, stopped)
        if reason is not None:
            raise _refusal(path, part, reason)
    lowered = _lowered_otherwise(part, pattern)
    if len(lowered) > _STRAY_SHARE * len(part.vocabulary_):
        raise _refusal(path, part, next(iter(lowered.values())))


def lowering_note(path: str, part: Any) -> str | None:
    """What to say of the few words whose capitals the graph does not know."""
    lowered = _lowered_otherwise(part, token_pattern(path, part)) if is_vectorizer(part) else {}
    if not lowered:
        return None
    return (
        f"Words that are not found when they come in capitals, and so are asked in small letters only: "
        f"{len(lowered)} of the {len(part.vocabulary_)} of {path}. For one, {next(iter(lowered.values()))}"
    )


def _lowered_otherwise(part: Any, pattern: TokenPattern) -> dict[str, str]:
    """Words of the vocabulary whose capitals onnxruntime lowers to something else, and why."""
    if not part.lowercase:
        return {}
    reasons = {word: _why_lowered_otherwise(word, pattern) for word in part.vocabulary_}
    return {word: reason for word, reason in reasons.items() if reason is not None}


def _why_lowered_otherwise(word: str, pattern: TokenPattern) -> str | None:
    if _hangs_on_context(word):
        return (
            f"it knows {word!r}, and whether a capital \u03a3 becomes \u03c3 or \u03c2 hangs on what follows, "
            f"which onnxruntime does not look at. {_WAY_OUT}"
        )
    if pattern.hides_dotted_i and "i\u0307" in word:
        return f"it knows {word!r}, and onnxruntime lowers \u0130 to an i without the dot above. {_WAY_OUT}"
    return None


def _why_unlike(word: str, part: Any, pattern: TokenPattern, stopped: Iterable[str]) -> str | None:
    """Why the graph would find a word of the vocabulary in other texts than scikit-learn does."""
    if word in stopped:
        return f"its vocabulary has the stop word {word!r}, which the graph would count. Leave it out."
    if pattern.is_filtered and re.fullmatch(part.token_pattern, word) is None:
        pattern_given = part.token_pattern
        return f"its vocabulary has {word!r}, which its token_pattern {pattern_given!r} never gives. Leave it out."
    return None


def _hangs_on_context(word: str) -> bool:
    """Whether it holds a small sigma that no letter follows: Python writes the last one of a word otherwise."""
    return any(
        letter in "\u03c3\u03c2" and not _is_followed_by_letter(word[place + 1 :])
        for place, letter in enumerate(word)
    )


def _is_followed_by_letter(rest: str) -> bool:
    """Whether a small letter comes next, where Python's own lowering leaves a sigma inside a word as it is."""
    return bool(rest) and unicodedata.category(rest[0]) in ("Ll", "Lu")


def _refusal(path: str, part: Any, reason: str) -> UnsupportedOperator:
    name = type(part).__name__
    return UnsupportedOperator(
        f"{name} in {path} has no ONNX form as it is set: {reason}", operator=name, module=path
    )


# --- what is asked ------------------------------------------------------------------------------------------


def known_texts(part: Any) -> Iterator[str]:
    """Texts with each word of a vectorizer's vocabulary, small, in capitals and with one, and beside anything."""
    words = sorted(part.vocabulary_, key=lambda word: part.vocabulary_[word])
    small = _asked_small(part)
    usual = [word for word in words if word not in small] or words
    yield from _beside_others(usual[:: max(len(usual) // _WORDS_BESIDE_OTHERS, 1)])
    finds = part.build_analyzer()
    for form in range(3 if len(words) <= _WORDS_IN_ALL_FORMS else 1):
        for start in range(0, len(words), _WORDS_IN_TEXT):
            chosen = words[start : start + _WORDS_IN_TEXT]
            text = " ".join(chosen)
            # A pattern that does not split at a space finds none of them in one text.
            texts = [text] if set(chosen) <= set(finds(text)) else chosen
            written = _in_forms(chosen, form, small)
            yield from written if len(texts) > 1 else [" ".join(written)]


def _asked_small(part: Any) -> Collection[str]:
    """Words that are not asked in capitals, see `lowering_note`; none of one that is refused before long."""
    if part.token_pattern is None:  # beside a tokenizer of the user's own
        return ()
    try:
        return _lowered_otherwise(part, token_pattern("", part)).keys()
    except UnsupportedOperator:  # the conversion says so, with the vectorizer's place
        return ()


def _in_forms(words: Sequence[str], form: int, small: Collection[str]) -> list[str]:
    """Each word small, in capitals or with one, those after each other in different forms; some always small."""
    forms = (str, str.upper, str.title)
    found = []
    for place, word in enumerate(words):
        written = word if word in small else forms[(place + form) % 3](word)
        # A word that capitals do not lead back to would never be asked where only one form is.
        found.append(written if form or written.lower() == word else word)
    return found


def _beside_others(words: Sequence[str]) -> Iterator[str]:
    """Words parted by all that may part or join them, and written with letters that look alike."""
    for place, between in enumerate(_BETWEEN):
        first, second = words[place % len(words)], words[(place + 1) % len(words)]
        yield f"{first}{between}{second}"
        yield f"{between}{first.upper()}{between}{between}{second.title()}{between}"
    for word in words:
        yield from (word.replace(small, other) for small, other in _LOOKALIKES.items() if small in word)
        yield f"{word.upper()}\u03a3 {word}"
