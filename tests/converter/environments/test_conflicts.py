"""A user's requirements against an environment's pins, resolved by the real pip from a folder of tiny wheels."""

from __future__ import annotations

from pathlib import Path

import pytest

from paritygate.converter.environments import find_conflicts, sync
from paritygate.converter.environments.conflicts import Requirement, read_requirements
from paritygate.converter.errors import EnvironmentFailure
from support.environments import TinyIndex


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TinyIndex:
    """`tinyframework` 1.0 is pinned and needs `tinybase`, pinned at 2.0; there are other versions of both."""
    tiny = TinyIndex(tmp_path, monkeypatch)
    tiny.offer("1.0", requires=["tinybase>=2", "tinyextra ; extra == 'more'"])
    tiny.offer("3.0")
    for version in ("1.5", "2.0"):
        tiny.offer(version, name="tinybase")
    tiny.offer("1.0", name="olduser", requires=["tinybase<2"])
    tiny.offer("1.0", name="newuser", requires=["tinybase>=1"])
    tiny.pin("tinyframework==1.0", "tinybase==2.0")
    return tiny


def _conflicts(index: TinyIndex, text: str) -> list[str]:
    asked = index.folder / "requirements.txt"
    asked.write_text(text)
    return [str(conflict) for conflict in find_conflicts(index.spec, asked)]


def test_requirements_that_fit_the_pins_are_no_conflict(index: TinyIndex) -> None:
    assert _conflicts(index, "newuser\ntinyframework<2  # what we train with\n") == []


def test_a_requirement_that_contradicts_a_pin_names_the_pin(index: TinyIndex) -> None:
    assert _conflicts(index, "newuser\n\ntinyframework>=3  # the new one\n") == [
        "tinyframework>=3 (requirements.txt:3): environment 'tiny' pins tinyframework 1.0"
    ]


def test_who_needs_the_pin_is_told_once_the_environment_is_built(index: TinyIndex) -> None:
    sync("tiny")
    assert _conflicts(index, "tinybase<2\n") == [
        "tinybase<2 (requirements.txt:1): environment 'tiny' pins tinybase 2.0 for tinyframework"
    ]


def test_what_a_requirement_draws_in_may_contradict_a_pin(index: TinyIndex) -> None:
    assert _conflicts(index, "newuser\nolduser\n") == [
        "olduser (requirements.txt:2): olduser 1.0 depends on tinybase<2; environment 'tiny' pins tinybase 2.0"
    ]


def test_every_conflict_is_named_and_not_the_first_alone(index: TinyIndex) -> None:
    found = _conflicts(index, "tinyframework>=3\nnewuser\nolduser\nnosuchpackage\n")
    assert [text.split(" ")[0] for text in found] == ["tinyframework>=3", "olduser", "nosuchpackage"]
    assert found[2].endswith("pip's index has no wheel of it for this Python and machine")


def test_requirements_that_contradict_each_other_are_both_named(index: TinyIndex) -> None:
    index.offer("1.0", name="other")
    index.offer("2.0", name="other")
    index.offer("1.0", name="wantsone", requires=["other<2"])
    index.offer("1.0", name="wantstwo", requires=["other>=2"])
    (found,) = _conflicts(index, "wantsone\nwantstwo\n")
    assert found.startswith("wantsone (requirements.txt:1) and wantstwo (requirements.txt:2): ")
    assert "wantsone 1.0 depends on other<2" in found
    assert "wantstwo 1.0 depends on other>=2" in found


def test_two_packages_that_write_one_folder_are_a_conflict_that_pip_does_not_see(index: TinyIndex) -> None:
    index.offer(name="onnxruntime")
    index.offer(name="onnxruntime_gpu")
    (found,) = _conflicts(index, "onnxruntime\nonnxruntime-gpu\n")
    assert found == (
        "onnxruntime (requirements.txt:1) and onnxruntime-gpu (requirements.txt:2): onnxruntime-gpu overwrites "
        "the files of onnxruntime; pip does not object, so take only one of them"
    )


def test_a_drawn_in_rival_of_a_pin_is_named(index: TinyIndex) -> None:
    index.offer(name="onnxruntime")
    index.offer(name="onnxruntime_gpu")
    index.offer(name="fastserver", requires=["onnxruntime-gpu"])
    index.pin("tinyframework==1.0", "tinybase==2.0", "onnxruntime==1.0")
    (found,) = _conflicts(index, "fastserver\n")
    assert "onnxruntime-gpu overwrites the files of onnxruntime, which environment 'tiny' pins;" in found


def test_nothing_is_concluded_where_pip_could_not_look(
    index: TinyIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PARITYGATE_PIP_ARGS", "--no-such-option")
    with pytest.raises(
        EnvironmentFailure, match=r"could not be resolved: pip's resolver ended with exit code 2"
    ):
        _conflicts(index, "newuser\n")


def test_a_requirements_file_is_read_as_pip_reads_it(tmp_path: Path) -> None:
    file = tmp_path / "all.txt"
    file.write_text(
        "# top\n--no-index\n\nNumpy[more] >=2 ; python_version > '3'  # why\n"
        "torch==2.13.0 \\\n   --hash=sha256:00 \\\n   --hash=sha256:11\nlast"
    )
    assert read_requirements(file) == (
        [
            Requirement("Numpy[more] >=2 ; python_version > '3'", "all.txt:4"),
            Requirement("torch==2.13.0", "all.txt:7"),
            Requirement("last", "all.txt:8"),
        ],
        ["--no-index"],
    )
    assert Requirement("Num_py[more] >=2", "").name == "num-py"


@pytest.mark.parametrize(
    ("content", "match"), [(b"\xff\xfe", "cannot be read"), (b"# only\n", "asks for nothing")]
)
def test_a_file_that_is_no_requirements_file_is_told(content: bytes, match: str, tmp_path: Path) -> None:
    (tmp_path / "odd.txt").write_bytes(content)
    with pytest.raises(EnvironmentFailure, match=match):
        read_requirements(tmp_path / "odd.txt")
    with pytest.raises(EnvironmentFailure, match=r"absent\.txt cannot be read"):
        read_requirements(tmp_path / "absent.txt")
