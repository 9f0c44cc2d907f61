from __future__ import annotations

import time

import pytest

from paritygate.mesh.patterns import Pattern


@pytest.mark.parametrize(
    ("pattern", "value", "fits"),
    [
        ("a", b"a", True),
        ("a", b"ab", False),
        ("a|ab", b"ab", True),
        (".*", b"", True),
        ("^(.*?;)?( )?(group=insider)(;.*)?$", b"a=1; group=insider; b=2", True),
        ("^(.*?;)?( )?(group=insider)(;.*)?$", b"group=insiders", False),
        ("(?i)team-a", b"Team-A", True),
        ("(\u00fc)+", "\u00fc\u00fc".encode(), True),
        ("\u00fc+", "\u00fc\u00fc".encode(), False),
        (".{2}", "\u00fc".encode(), True),
        (".*", b"\xff\x00", True),
        ("a.b", b"a\nb", False),
    ],
)
def test_a_pattern_must_fit_the_whole_value(pattern: str, value: bytes, fits: bool) -> None:
    assert Pattern(pattern).fits(value) is fits


@pytest.mark.parametrize(
    "pattern",
    [
        "(?=a)b",
        "(?<!a)b",
        r"(a)\1",
        "(?P=x)",
        "(?>a)",
        "[",
        "*",
        "a{1001}",
        "((a{100}){100}){100}",
        "a" * 1025,
    ],
    ids=lambda p: p[:20],
)
def test_what_is_not_re2_is_refused_with_a_reason(pattern: str) -> None:
    with pytest.raises(ValueError, match=r"is not an RE2 expression|is longer than 1024"):
        Pattern(pattern)


@pytest.mark.parametrize("pattern", ["(a+)+", "(a|a)*", "(a|aa)+", "(.*)(.*)(.*)(.*)(.*)x", "(a?){60}a{60}"])
def test_hostile_values_take_linear_time(pattern: str) -> None:
    start = time.monotonic()
    assert Pattern(pattern).fits(b"a" * 60_000 + b"!") is False
    assert time.monotonic() - start < 2
