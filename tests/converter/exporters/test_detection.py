"""Which exporter a source belongs to, and what is said where that cannot be told."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from paritygate.converter.errors import FactoryError, FrameworkMissing, SourceError, SourceNotFound
from paritygate.converter.exporters import EXPORTERS, detect, export_model
from paritygate.converter.exporters.detection import taken_for_another
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


def test_a_part_of_a_model_is_told_as_that(tmp_path: Path) -> None:
    saved, fetched = tmp_path / "saved", tmp_path / "bert"
    saved.mkdir()
    (saved / "saved_model.pb").write_bytes(b"\x08\x01")
    with pytest.raises(SourceError, match=r"one file of a SavedModel; give its directory, .*saved\."):
        detect(saved / "saved_model.pb")
    fetched.mkdir()
    (fetched / "config.json").write_text('{"model_type": "bert"}')
    with pytest.raises(SourceError, match="no weights beside it"):
        detect(fetched)


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


# --- a factory that needs another framework than its source was taken for --------------------------------------


@pytest.fixture
def weights() -> dict[str, Path]:
    """A file of each kind that two exporters read, and one that only PyTorch does."""
    from safetensors.torch import save_file

    save_file({"weight": torch.zeros(1, 2)}, "net.safetensors")
    torch.save({"weight": torch.zeros(1, 2)}, "net.pt")
    return {name: Path(name) for name in ("net.safetensors", "net.pt")}


def _without_mindspore(name: str, *, inside: bool) -> str:
    module = f"absent_{name}_{inside}"
    lines = (
        ["def build():", "    import mindspore.nn"]
        if inside
        else ["import mindspore.nn", "def build(): return 1"]
    )
    Path(f"{module}.py").write_text("\n".join(lines) + "\n")
    return f"{module}:build"


@pytest.mark.parametrize("inside", [False, True], ids=["module", "function"])
def test_file_that_two_frameworks_write_says_what_it_was_taken_for(
    inside: bool, weights: dict[str, Path], tmp_path: Path
) -> None:
    said = (
        "No module named 'mindspore.*net.safetensors is a safetensors file and was taken for one of framework "
        r"'pytorch'; if its model is one of mindspore, give --framework mindspore \(framework='mindspore'\)"
    )
    with pytest.raises(FactoryError, match=said) as caught:
        export_model(
            weights["net.safetensors"], tmp_path / "out", name="m", inputs="x:float32[2,2]",
            factory=_without_mindspore("safe", inside=inside),
        )  # fmt: skip
    assert "\n" not in str(caught.value)


def test_file_of_one_framework_says_that_the_factory_is_of_another(
    weights: dict[str, Path], tmp_path: Path
) -> None:
    said = (
        "is a PyTorch checkpoint .*mindspore exporter does not read that.*model in pytorch, without mindspore"
    )
    with pytest.raises(FactoryError, match=said):
        export_model(
            weights["net.pt"], tmp_path / "out", name="m", inputs="x:float32[2,2]",
            factory=_without_mindspore("zip", inside=False),
        )  # fmt: skip


def test_factory_under_the_wrong_framework_says_which_to_name(tmp_path: Path) -> None:
    factory = _without_mindspore("named", inside=True)
    said = f"{factory} was taken for one of framework 'pytorch'; .*give --framework mindspore"
    with pytest.raises(FactoryError, match=said):
        export_model(factory, tmp_path / "out", name="m", framework="pytorch", inputs="x:float32[2,2]")


@pytest.mark.parametrize(
    ("missing", "exporter"),
    [("torch", "pytorch"), ("paddle", "paddle"), ("no_such_package_here", "pytorch")],
)
def test_factory_that_misses_its_own_framework_or_another_package_is_left_as_it_is(
    missing: str, exporter: str
) -> None:
    error = FactoryError("factory m:build raised ModuleNotFoundError")
    error.__cause__ = ModuleNotFoundError(name=missing)
    assert taken_for_another(error, "m:build", exporter) is None
    assert taken_for_another(FactoryError("gave nothing"), "m:build", exporter) is None


# --- programs of PaddlePaddle -------------------------------------------------------------------------------


def _write_paddle_program(*suffixes: str) -> None:
    for suffix in suffixes:
        content = b'{"base_code":{"magic":"pir","version":1}}' if suffix == ".json" else b"\0" * 40
        Path(f"inf{suffix}").write_bytes(content)


def test_weights_of_a_program_point_to_the_program() -> None:
    _write_paddle_program(".json", ".pdiparams")
    with pytest.raises(
        SourceError, match=r"holds the weights of a program.*Give the program itself: inf\.json"
    ):
        detect("inf.pdiparams")


def test_weights_of_a_program_that_is_not_there_say_what_to_look_for() -> None:
    _write_paddle_program(".pdiparams")
    with pytest.raises(SourceError, match=r"Give the program itself, the \.json or \.pdmodel"):
        detect("inf.pdiparams")


def test_common_prefix_of_a_program_points_to_the_program(tmp_path: Path) -> None:
    _write_paddle_program(".json", ".pdiparams")
    said = r"inf is the common prefix of .*Give the program itself: inf\.json"
    with pytest.raises(SourceError, match=said):
        detect("inf")
    with pytest.raises(SourceError, match=said):
        export_model("inf", tmp_path / "out", name="m", framework="paddle")


def test_other_files_of_that_name_are_no_program() -> None:
    Path("inf.json").write_text('{"a": 1}')
    with pytest.raises(SourceNotFound, match="there is no file inf"):
        detect("inf")


def test_what_training_code_imports_leads_to_registered_exporters() -> None:
    assert set(FRAMEWORK_MODULES.values()) <= set(EXPORTERS)
