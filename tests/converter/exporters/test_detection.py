"""Which exporter a source belongs to, and what is said where that cannot be told."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from paritygate.converter.errors import FactoryError, FrameworkMissing, SourceError, SourceNotFound
from paritygate.converter.exporters import EXPORTERS, detect, export_model
from paritygate.converter.names import FRAMEWORK_MODULES


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_file_is_told_by_its_content_whatever_its_name() -> None:
    torch.save({"w": torch.zeros(2)}, "weights.json")
    assert detect("weights.json") == "pytorch"


def test_factory_is_told_by_what_it_gives(tmp_path: Path) -> None:
    (tmp_path / "made_of_torch.py").write_text("import torch\ndef build(): return torch.nn.Linear(2, 1)\n")
    assert detect("made_of_torch:build") == "pytorch"


def test_factory_of_a_framework_that_is_not_here_names_its_environment(tmp_path: Path) -> None:
    (tmp_path / "made_elsewhere.py").write_text("import paddle.nn\ndef build(): return 1\n")
    with pytest.raises(FrameworkMissing, match="needs paddle, which is not installed here") as caught:
        detect("made_elsewhere:build")
    assert caught.value.exporter == "paddle"


def test_factory_that_misses_something_else_is_told_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "made_of_nothing.py").write_text("import no_such_package_here\ndef build(): return 1\n")
    with pytest.raises(FactoryError, match="no_such_package_here") as caught:
        detect("made_of_nothing:build")
    assert not isinstance(caught.value, FrameworkMissing)


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("empty.bin", b"", "it is empty"),
        ("notes.bin", b"hello world", r"it begins with b'hello wo'"),
    ],
)
def test_file_of_no_known_form_is_described(name: str, content: bytes, said: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(SourceError, match=said):
        detect(name)


def test_folder_of_no_known_form_is_described(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    with pytest.raises(SourceError, match="it is an empty folder"):
        detect("run")
    (tmp_path / "run" / "log.txt").touch()
    with pytest.raises(SourceError, match=r"it is a folder with log\.txt"):
        detect("run")


def test_absent_file_is_said_to_be_absent() -> None:
    with pytest.raises(SourceNotFound, match="there is no file nothing"):
        detect("nothing")


def test_form_that_nobody_reads_says_what_to_do() -> None:
    np.savez("x.npz", x=np.zeros(2))
    with pytest.raises(SourceError, match="Pass it as --samples"):
        detect("x.npz")


def test_object_of_no_framework_is_refused() -> None:
    with pytest.raises(SourceError, match=r"a builtins\.object: no exporter knows it.*--framework"):
        detect(object())


def test_wrong_framework_is_told_what_the_file_is(tmp_path: Path) -> None:
    torch.save({"w": torch.zeros(2)}, "net.pt")
    with pytest.raises(
        SourceError, match="is a PyTorch checkpoint, and the keras exporter does not read that"
    ):
        export_model("net.pt", tmp_path / "out", name="m", framework="keras")


def test_what_training_code_imports_leads_to_registered_exporters() -> None:
    assert set(FRAMEWORK_MODULES.values()) <= set(EXPORTERS)
