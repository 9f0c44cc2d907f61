"""Change the version list inside a config.pbtxt and leave every other byte as its owner wrote it."""

from __future__ import annotations

import re
from collections.abc import Sequence

_POLICY = re.compile(r"\bversion_policy\s*:?\s*\{")


def render_version_policy(versions: Sequence[int]) -> str:
    """The one line that makes versions live: `version_policy { specific { versions: [ 1, 2 ] } }`."""
    return f"version_policy {{ specific {{ versions: [ {', '.join(map(str, versions))} ] }} }}"


def replace_version_list(text: str, versions: Sequence[int]) -> str | None:
    """The text with another version list, or None where no single top-level policy block is found.

    The caller proves the result by parsing it; this function only has to be right on text that people write.
    """
    masked = _mask_comments_and_strings(text)
    blocks = [m for m in _POLICY.finditer(masked) if _depth(masked, m.start()) == 0]
    if len(blocks) != 1:
        return None
    end = _closing_brace(masked, blocks[0].end())
    if end is None:
        return None
    return text[: blocks[0].start()] + render_version_policy(versions) + text[end:]


def _mask_comments_and_strings(text: str) -> str:
    """The same length of text with comments and quoted strings blanked, so that their braces do not count."""
    pattern = re.compile(r"""#[^\n]*|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'""")
    return pattern.sub(lambda match: " " * len(match.group()), text)


def _depth(masked: str, position: int) -> int:
    before = masked[:position]
    return sum(map(before.count, "{<")) - sum(map(before.count, "}>"))


def _closing_brace(masked: str, start: int) -> int | None:
    """The position after the brace that closes the block opened just before `start`."""
    depth = 1
    for position in range(start, len(masked)):
        depth += {"{": 1, "}": -1}.get(masked[position], 0)
        if depth == 0:
            return position + 1
    return None
