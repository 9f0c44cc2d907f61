"""Texts are split and lowered in the graph as Python does it, or their vectorizer is refused."""

from __future__ import annotations

import contextlib
import random
import re
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import re2
from sklearn.feature_extraction.text import CountVectorizer, TfidfVectorizer
from sklearn.linear_model import Ridge
from sklearn.pipeline import make_pipeline

from paritygate.converter.bundle import Bundle
from paritygate.converter.errors import UnsupportedOperator
from paritygate.converter.exporters import export_model
from paritygate.converter.exporters._sklearn.expressions import Untranslatable
from paritygate.converter.exporters._sklearn.patterns import translated
from paritygate.converter.parity.validate import validate_bundle

_LETTERS = [
    *"aAbBiI\u0130\u0307\u00a0\u3000\x0b\n\t0\u0663_\u00e9'-#,!kK\u212as\u017f\u00dfxc\u0915\u00b2",
    *" " * 8,
]


def _random_texts(count: int, longest: int, without: str = "") -> list[str]:
    generator = random.Random(0)
    letters = [letter for letter in _LETTERS if letter not in without]
    return ["".join(generator.choices(letters, k=generator.randint(1, longest))) for _ in range(count)]


_TEXTS = _random_texts(200, 20, "\u0130\u0307")
_ASKED = [*_random_texts(500, 15), "", "!", " "]


def _model(vectorizer: Any, texts: list[str] | None = None) -> Any:
    texts = _TEXTS if texts is None else texts
    amounts = np.random.default_rng(0).normal(size=len(texts))
    return make_pipeline(vectorizer, Ridge(alpha=0.01)).fit(texts, amounts)


def _export(model: Any, tmp_path: Path, **options: Any) -> Bundle:
    return export_model(model, tmp_path / "bundle", name="texts", **options)


def _tokens(expression: str, text: str) -> list[str]:
    options = re2.Options()
    options.longest_match = True  # as onnxruntime's tokenizer sets it
    return [found.group() for found in re2.compile(expression, options).finditer(text)]


_EXACT = [
    r"(?u)\b\w\w+\b",
    r"\b\w+\b",
    r"\w+",
    r"\S+",
    r"[^\s,]+",
    r"[^\W\d_]+",
    r"\d+",
    r"(?a)\w+",
    r"(?i)[a-k]+",
    r"(?x) [a-z]+ # words",
    r"(\w+)",
    r"\b\w\w+\b|!|,",
    r"\w+(?:'\w+)?",
    r"\b\w[\w'-]*\w\b",
    r"#\w+|\b\w+\b",
    r"[a-zA-Z]{2,3}",
    r".+",
]


@pytest.mark.parametrize("pattern", _EXACT)
def test_a_pattern_takes_the_tokens_that_python_takes(pattern: str) -> None:
    expression = translated(pattern, lowercase=False, single_words=False).expression
    for text in _ASKED:
        assert _tokens(expression, text) == re.findall(pattern, text), ascii(text)


@pytest.mark.parametrize("pattern", _EXACT)
def test_a_text_is_split_before_it_is_lowered_as_after_it(pattern: str) -> None:
    found = translated(pattern, lowercase=True, single_words=False)
    for text in _ASKED:
        tokens = [token.lower() for token in _tokens(found.expression, text)]
        if not found.hides_dotted_i:  # onnxruntime lowers it to an i alone, and the dot is in no token
            tokens = [token.replace("i\u0307", "i") for token in tokens]
        assert tokens == re.findall(pattern, text.lower()), ascii(text)


_WITHOUT_FORM = {
    r"a|ab": "longest match",
    r"\w+?": "longest match",
    r"(?:ab?)(?:bc)?": "longest match",
    r"x(\w+)": r"only a part of the token",
    r"(?!\d)\w+": "looks ahead",
    r"(\w)\w+\1": "refers back|only a part",
    r"^\w+": "of the anchors",
    r"\B\w+": "of the anchors",
    r"\b[a-z]+\b": r"its \\b cannot be left out",
    r"\b\w{2,3}": r"its \\b cannot be left out",
    r"\b#\w+": "beside what is no letter",
    r"\w+\b\W+": "elsewhere than at the begin or end",
    r"(?:\b\w+)+": r"\\b stands inside a repeat",
    r"\w*": "empty text",
    r"(?:a?b?)+": "may be empty|empty text",
    r"\w{3,40}": "too many or too large",
    r"\S{2,}": "tells \u0130",
    r"[\u03b1-\u03c1\u03c3-\u03c9]+": "tells \u03c3 from \u03c2",
}


@pytest.mark.parametrize("pattern", _WITHOUT_FORM)
def test_a_pattern_that_would_take_other_tokens_is_refused(pattern: str) -> None:
    with pytest.raises(Untranslatable, match=_WITHOUT_FORM[pattern]):
        translated(pattern, lowercase=True, single_words=False)


_OF_MANY_SETS = "".join(map(chr, range(0x4E00, 0x4E00 + 2000)))


@pytest.mark.parametrize("pattern", [_OF_MANY_SETS, f"(?i){_OF_MANY_SETS}", "xi?" + "i?" * 50], ids=len)
def test_a_long_pattern_is_read_in_little_memory(pattern: str) -> None:
    """A set is a megabyte, and two thousand of them were built before the pattern was refused."""
    tracemalloc.start()
    with contextlib.suppress(Untranslatable):
        translated(pattern, lowercase=True, single_words=False)
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak_bytes < 200e6


def test_a_pattern_of_too_many_sets_is_refused_in_one_line() -> None:
    with pytest.raises(Untranslatable, match=r"^it repeats too many or too large sets of characters$"):
        translated(_OF_MANY_SETS, lowercase=True, single_words=False)


_VECTORIZERS: dict[str, Callable[[], Any]] = {
    "usual": TfidfVectorizer,
    "capitals": lambda: CountVectorizer(lowercase=False),
    "pairs": lambda: CountVectorizer(ngram_range=(1, 2)),
    "pairs-alone": lambda: CountVectorizer(ngram_range=(2, 2), token_pattern=r"(?u)\b\w+\b"),
    "whether": lambda: CountVectorizer(binary=True, token_pattern=r"[^\s,]+"),
    "beside-space": lambda: CountVectorizer(token_pattern=r"\S+"),
    "pairs-beside-space": lambda: CountVectorizer(token_pattern=r"\S+", ngram_range=(1, 2)),
    "whole-words-of-letters": lambda: CountVectorizer(token_pattern=r"\b[a-z]+\b"),
    "stop-words": lambda: CountVectorizer(token_pattern=r"\w+", stop_words=["a", "b", "x"]),
    "lines": lambda: CountVectorizer(token_pattern=r".+"),
}


@pytest.mark.parametrize("name", _VECTORIZERS)
def test_any_text_gets_the_answer_of_scikit_learn(name: str, tmp_path: Path) -> None:
    model = _model(_VECTORIZERS[name]())
    bundle = _export(model, tmp_path)
    certificate = validate_bundle(bundle)
    assert certificate.verdict == "pass", certificate.reason
    session = onnxruntime.InferenceSession(bundle.model_bytes())
    asked = np.array(_ASKED, dtype=object)[:, None]
    (given,) = session.run(None, {"text": asked})
    np.testing.assert_allclose(given, model.predict(_ASKED), atol=1e-3)
    (alone,) = session.run(None, {"text": np.array([["!"]], dtype=object)})
    np.testing.assert_allclose(alone, model.predict(["!"]), atol=1e-3)


@pytest.mark.parametrize(
    ("vectorizer", "texts", "asked"),
    [
        (CountVectorizer(), ["trip to \u0130stanbul", "trip to Paris"], "\u0130STANBUL"),
        (
            CountVectorizer(token_pattern=r"\S+"),
            ["good film", "bad film", "it is"],
            "bad\u3000F\u0130LM \u0130s it",
        ),
        (
            CountVectorizer(),
            ["\u03b4\u03c1\u03cc\u03bc\u03bf \u03c3\u03b1", "b"],
            "\u03a3\u0391 \u0391\u03a3",
        ),
    ],
    ids=["dotted", "dotted-in-words", "sigma-within"],
)
def test_capitals_that_python_lowers_by_what_stands_around_them(
    vectorizer: Any, texts: list[str], asked: str, tmp_path: Path
) -> None:
    model = _model(vectorizer, texts * 4)
    bundle = _export(model, tmp_path)
    assert validate_bundle(bundle).verdict == "pass"
    session = onnxruntime.InferenceSession(bundle.model_bytes())
    (given,) = session.run(None, {"text": np.array([[asked]], dtype=object)})
    np.testing.assert_allclose(given, model.predict([asked]), atol=1e-5)


def test_a_stray_word_with_a_final_sigma_is_noted_and_asked_small(tmp_path: Path) -> None:
    words = [f"word{k}" for k in range(150)]
    texts = [" ".join(words), "\u03bf\u03b4\u03bf\u03c2 word1"]
    model = _model(CountVectorizer(), texts * 3)
    bundle = _export(model, tmp_path)
    (note,) = [note for note in bundle.manifest["notes"] if "small letters only" in note]
    assert "1 of the 151" in note
    assert "'\u03bf\u03b4\u03bf\u03c2'" in note
    assert validate_bundle(bundle).verdict == "pass"
    session = onnxruntime.InferenceSession(bundle.model_bytes())
    asked = ["\u03bf\u03b4\u03bf\u03c2 WORD1", "Word7 word8"]
    (given,) = session.run(None, {"text": np.array([asked], dtype=object).T})
    np.testing.assert_allclose(given, model.predict(asked), atol=1e-5)


_REFUSED: dict[str, tuple[Callable[[], Any], list[str], str]] = {
    "final-sigma": (
        TfidfVectorizer,
        ["\u039f\u0394\u039f\u03a3"],
        "it knows '\u03bf\u03b4\u03bf\u03c2'.*lowercase=False",
    ),
    "sigma-alone": (
        lambda: CountVectorizer(token_pattern=r"\w+"),
        ["3 \u03c3"],
        "it knows '\u03c3'.*lowercase=False",
    ),
    "dotted": (
        lambda: CountVectorizer(token_pattern=r"\S+"),
        ["\u0130zmir"],
        "lowers \u0130 to an i.*lowercase=False",
    ),
    "pattern": (
        lambda: CountVectorizer(token_pattern=r"\b(?!\d)\w+\b"),
        ["ab"],
        r"token_pattern='.*looks ahead or behind\. Fit it with a plain pattern",
    ),
    "pairs-of-letters": (
        lambda: CountVectorizer(token_pattern=r"\b[a-z]+\b", ngram_range=(1, 2)),
        ["ab cd"],
        r"its \\b cannot be left out",
    ),
    "never-given": (
        lambda: CountVectorizer(token_pattern=r"\b[a-z]+\b", vocabulary=["ab", "a1"]),
        ["ab"],
        "has 'a1', which its token_pattern .* never gives",
    ),
    "pairs-without-stop-words": (
        lambda: TfidfVectorizer(stop_words=["to"], ngram_range=(1, 2)),
        ["trip to Paris"],
        "n-grams beside stop words.*stop_words=None",
    ),
    "known-stop-word": (
        lambda: CountVectorizer(stop_words=["to"], vocabulary=["to", "trip"]),
        ["trip to Paris"],
        "has the stop word 'to'",
    ),
    "pairs-with-spaces": (
        lambda: CountVectorizer(token_pattern=r"[^,]+", ngram_range=(2, 2)),
        ["a b,c"],
        "tokens that may hold spaces",
    ),
    "accents": (
        lambda: CountVectorizer(strip_accents="unicode"),
        ["\u00e9t\u00e9"],
        "strip_accents='unicode'.*None",
    ),
    "char_wb": (lambda: CountVectorizer(analyzer="char_wb"), ["ab"], "analyzer='char_wb'.*analyzer='word'"),
    "analyzer": (lambda: CountVectorizer(analyzer=str.split), ["ab"], "analyzer=.*analyzer='word'"),
    "tokenizer": (
        lambda: CountVectorizer(tokenizer=str.split, token_pattern=None),
        ["ab"],
        "tokenizer=.*tokenizer=None",
    ),
    "preprocessor": (
        lambda: CountVectorizer(preprocessor=str.upper),
        ["ab"],
        "preprocessor=.*preprocessor=None",
    ),
}


@pytest.mark.parametrize("name", _REFUSED)
def test_a_vectorizer_without_an_exact_form_is_refused(name: str, tmp_path: Path) -> None:
    build, texts, told = _REFUSED[name]
    with pytest.raises(UnsupportedOperator, match=told) as raised:
        _export(_model(build(), texts * 4), tmp_path)
    assert "\n" not in str(raised.value)
    assert raised.value.module == type(build()).__name__.lower()


@pytest.mark.parametrize(
    ("pattern", "written"),
    [
        (r"(?u)\b\w\w+\b", r"\w\w+"),
        (r"(?u)\b\w\w+\b", r"[\p{L}\p{N}_][\p{L}\p{N}_]+"),
        (r"\S+", r"\S+"),
        (r"[^\s,]+", r"[^\s,]+"),
        (r"\d+", r"[0-9]+"),
        (r"[^\W\d]+", r"[^\W\d]+"),
    ],
)
def test_a_pattern_that_onnxruntime_reads_otherwise_fails_parity(
    pattern: str, written: str, tmp_path: Path
) -> None:
    def write(path: Path) -> None:
        model = onnx.load(path)
        node = next(node for node in model.graph.node if node.op_type == "Tokenizer")
        next(a for a in node.attribute if a.name == "tokenexp").s = written.encode()
        onnx.save(model, path)

    model = _model(
        CountVectorizer(token_pattern=pattern), ["good film 12", "bad film 7 3", "its a naive film"] * 4
    )
    assert validate_bundle(_export(model, tmp_path)).verdict == "pass"
    certificate = validate_bundle(export_model(model, tmp_path / "off", name="off", after_conversion=write))
    assert certificate.verdict == "fail"
    assert "case 'edges:known" in str(certificate.reason)


def test_words_that_are_not_lowered_fail_parity(tmp_path: Path) -> None:
    def keep(path: Path) -> None:
        model = onnx.load(path)
        node = next(node for node in model.graph.node if node.op_type == "StringNormalizer")
        next(a for a in node.attribute if a.name == "case_change_action").s = b"NONE"
        onnx.save(model, path)

    certificate = validate_bundle(_export(_model(CountVectorizer()), tmp_path, after_conversion=keep))
    assert certificate.verdict == "fail"
