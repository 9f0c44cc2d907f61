"""Regular expressions as a mesh reads them: RE2, the whole value, time linear in the value's length.

Python's own `re` backtracks, so that one request with a chosen header could hold a worker for hours. RE2 is the
engine of Envoy and Istio: it has no back-references and no look-around (both are refused when a rollout is read),
cannot backtrack, and is bounded in memory here. The same expression therefore means the same in the gateway and
in the mesh.

Values are bytes: Envoy compiles its expressions so (seen with 1.40: `.` fits one byte, and "ü" is two).

Source: Istio, StringMatch.regex ("RE2 style regex-based match"), rendered as Envoy's safe_regex, a full match.
"""

from __future__ import annotations

from typing import Any

MAX_PATTERN_LENGTH = 1024
"""Longest expression; Istio's own admission refuses longer ones by default (re2.max_program_size)."""

MAX_PROGRAM_BYTES = 1 << 20
"""Memory that one compiled expression may take; `(a{1000}){1000}` is refused instead of compiled."""


class Pattern:
    """A compiled expression that must fit a whole value.

    Attributes:
        text: The expression as written.
    """

    __slots__ = ("_compiled", "text")

    def __init__(self, text: str) -> None:
        self.text = text
        self._compiled = _compile(text)

    def fits(self, value: bytes) -> bool:
        """Whether the expression fits all of `value`."""
        return self._compiled.fullmatch(value) is not None


def _compile(text: str) -> Any:
    """Compile with RE2.

    Raises:
        ValueError: If the expression is too long, too large, or not RE2; says which.
    """
    import re2  # deferred: only rollouts with a regex need the engine

    if len(text) > MAX_PATTERN_LENGTH:
        raise ValueError(f"is longer than {MAX_PATTERN_LENGTH} characters")
    options = re2.Options()
    options.encoding = re2.Options.Encoding.LATIN1  # one character is one byte, in expression and value
    options.max_mem = MAX_PROGRAM_BYTES
    options.log_errors = False
    try:
        return re2.compile(text.encode("utf-8"), options)
    except re2.error as error:
        raise ValueError(_reason(error)) from error


def _reason(error: Exception) -> str:
    detail = error.args[0] if error.args else str(error)
    text = detail.decode("utf-8", "replace") if isinstance(detail, bytes) else str(detail)
    return f"is not an RE2 expression ({text}); look-around and back-references are not part of RE2"
