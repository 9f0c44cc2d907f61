"""What tests of isolated exports share."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.environments import this_interpreter_as


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory in which `sklearn` exports run with this interpreter as the framework's environment."""
    this_interpreter_as("trees", tmp_path / "environments", monkeypatch)
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    return tmp_path / "work"
