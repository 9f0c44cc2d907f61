"""How a factory is written, and what is said of a file's name in its place."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from paritygate.converter.checkpoints.factories import build, module_of, refuse_file_name
from paritygate.converter.errors import FactoryError


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("mynet.py:build", "Write mynet:build."),
        ("./mynet.py:build", "Write mynet:build."),
        ("nets/mynet.py:Net.build", "Write nets.mynet:Net.build."),
        ("../nets/mynet.py:build", "Run in ../nets and write mynet:build."),
        ("/srv/my-code/mynet.py:build", "Run in /srv/my-code and write mynet:build."),
        ("my-code/mynet.py:build", "Run in my-code and write mynet:build."),
    ],
)
def test_a_file_in_the_place_of_its_module_is_refused_with_what_to_write(written: str, said: str) -> None:
    with pytest.raises(FactoryError, match=re.escape(said)):
        build(written)


def test_a_module_named_py_is_a_module() -> None:
    Path("mynet").mkdir()
    Path("mynet", "py.py").write_text("def build():\n    return 'made'\n")
    assert module_of("mynet.py:build") == "mynet.py"
    assert build("mynet.py:build").model == "made"


@pytest.mark.parametrize("text", ["weights.pt", "train:build", "C:\\nets\\net.py", "net.py", "a.b.c:d.e"])
def test_what_is_no_file_with_a_function_is_let_through(text: str) -> None:
    refuse_file_name(text)
