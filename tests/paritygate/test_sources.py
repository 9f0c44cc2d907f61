"""What a comment or a page cites can be looked up by whoever has a clone: no reference to texts outside it."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

TITLES = (
    "PARITY",
    "PROTOCOL",
    "REALPARTS",
    "DESIGN",
    "LAUNCH",
    "FRAMEWORKS",
    "COVERAGE",
    "ROLLOUT",
    "STACKS",
    "STYLE",
)
"""Titles of working papers that are no part of the repository."""

CITATION = re.compile(rf"\b(?:{'|'.join(TITLES)})(?:\.md)?,?\s+(?:section\s+|§\s*)?[A-Z]?\d")


def tracked() -> list[Path]:
    try:
        listed = subprocess.run(
            ["git", "ls-files", "-z", "*.py", "*.md"], cwd=ROOT, check=True, capture_output=True, text=True
        ).stdout
    except (FileNotFoundError, subprocess.CalledProcessError):
        pytest.skip("this is no git checkout, so which files are ours cannot be told")
    return [path for name in listed.split("\0") if name and (path := ROOT / name).is_file()]


@pytest.mark.parametrize("title", TITLES)
@pytest.mark.parametrize("form", ["{} 3.4", "{} B4", "{}.md, section 2", "{}\n    1"])
def test_a_citation_is_recognised(title: str, form: str) -> None:
    assert CITATION.search(f"Source: {form.format(title)}.")


@pytest.mark.parametrize("text", ["PROTOCOL = 1", "ROLLOUT --request FILE", "docs/parity.md", "DESIGNED 3"])
def test_other_text_is_not_taken_for_one(text: str) -> None:
    assert not CITATION.search(text)


def test_no_file_cites_what_a_clone_does_not_have() -> None:
    files = tracked()
    assert len(files) > 100
    own = Path(__file__).resolve()
    found = [
        f"{path.relative_to(ROOT)}:{text.count(chr(10), 0, match.start()) + 1}: {match[0]!r}"
        for path in files
        for text in [path.read_text("utf-8")]
        for match in CITATION.finditer(text)
        if path.resolve() != own
    ]
    assert not found, "\n".join(found)
