"""Errors say what a file holds, and send no terminal what it would obey."""

from __future__ import annotations

import pytest

from paritygate.converter.errors import ExportError, printable


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("weight 'ä' is missing", "weight 'ä' is missing"),
        ("two\nlines", "two\nlines"),
        ("\x1b[31mred", "\\x1b[31mred"),
        ("half \ud800", "half \\ud800"),
        ("x" * 5000 + " is no name", "x" * 499 + "… is no name"),
        ("zero\0 and \u202e", "zero\\x00 and \\u202e"),
    ],
)
def test_what_no_terminal_should_be_sent_is_escaped(given: str, said: str) -> None:
    assert printable(given) == said
    assert str(ExportError(given)) == said
    str(ExportError(given)).encode()
