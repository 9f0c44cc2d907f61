"""Reading the requirements files of framework environments."""

from __future__ import annotations

from pathlib import Path

import pytest

from paritygate.converter.environments import SPECS
from paritygate.converter.environments.pins import Pin, canonical, read_pins
from paritygate.converter.errors import EnvironmentFailure

_A, _B = "a" * 64, "b" * 64


def _file(folder: Path, text: str) -> Path:
    path = folder / "tiny.txt"
    path.write_text(text, "utf-8")
    return path


def test_a_pin_holds_the_hashes_of_the_lines_that_it_goes_on_in(tmp_path: Path) -> None:
    text = (
        "# every package\n\n"
        f"ML_dtypes==0.5.4 \\\n    --hash=sha256:{_A} \\\n    --hash=sha256:{_B}\n"
        "plain==1.0.post1  # not locked\n"
    )
    assert read_pins(_file(tmp_path, text)) == {
        "ml-dtypes": Pin("ml-dtypes", "0.5.4", (_A, _B)),
        "plain": Pin("plain", "1.0.post1", ()),
    }


@pytest.mark.parametrize(
    "line",
    [
        "numpy>=2",
        "numpy",
        "numpy==2.*",
        "numpy==2.4.6 --hash=sha256:short",
        f"numpy==2.4.6 --hash=md5:{_A}",
        "-r other.txt",
        "--extra-index-url https://example.invalid",
        "numpy==2.4.6; python_version < '3.12'",
        "numpy @ https://example.invalid/numpy.whl",
    ],
)
def test_a_line_that_is_no_exact_pin_is_refused(line: str, tmp_path: Path) -> None:
    with pytest.raises(EnvironmentFailure, match=r"tiny\.txt has the line .*; expected name==version"):
        read_pins(_file(tmp_path, f"onnx==1.23.2\n{line}\n"))


def test_a_package_that_is_pinned_twice_is_refused(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentFailure, match=r"pins ml-dtypes twice; expected each package once\."):
        read_pins(_file(tmp_path, "ml_dtypes==0.5.4\nml-dtypes==0.5.4\n"))


def test_a_build_of_the_pinned_version_meets_the_pin() -> None:
    pin = Pin("torch", "2.13.0", ())
    assert pin.is_met_by("2.13.0")
    assert pin.is_met_by("2.13.0+cpu")
    assert not pin.is_met_by("2.13.0.post1")
    assert not pin.is_met_by("")


def test_names_are_compared_in_one_form() -> None:
    assert canonical("ML__dtypes") == canonical("ml-dtypes") == canonical("Ml.Dtypes") == "ml-dtypes"


@pytest.mark.parametrize("name", SPECS)
def test_every_pin_that_is_shipped_is_locked_by_the_hashes_of_its_wheels(name: str) -> None:
    spec = SPECS[name]
    for requirements in (spec.requirements, spec.supplement):
        pins = read_pins(requirements) if requirements.exists() else {}
        assert [pin.name for pin in pins.values() if not pin.hashes] == []
    assert read_pins(spec.requirements)
