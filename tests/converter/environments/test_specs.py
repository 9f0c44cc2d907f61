"""The registry of environments and the pins that are shipped."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from paritygate.converter.environments import SPECS, environments_dir
from paritygate.converter.environments.pins import read_pins
from paritygate.converter.environments.specs import NEED_NONE, REQUIREMENTS_DIR, find_spec
from paritygate.converter.errors import EnvironmentFailure
from paritygate.converter.exporters import EXPORTERS

_COMES_WITH_EVERY_ENVIRONMENT = {"numpy": (1, 3), "onnx": (1, 2), "ml-dtypes": (0, 1), "protobuf": (6, 8)}
"""What the exporter half of paritygate imports, and from which to before which major version."""


@pytest.mark.parametrize("name", SPECS)
def test_the_parts_that_meet_paritygate_have_versions_that_fit_it(name: str) -> None:
    pins = read_pins(SPECS[name].requirements)
    for package, (oldest, beyond) in _COMES_WITH_EVERY_ENVIRONMENT.items():
        assert oldest <= int(pins[package].version.split(".")[0]) < beyond, pins[package]


def test_every_requirements_file_has_an_environment_and_every_exporter_of_one_exists() -> None:
    assert {path.stem for path in REQUIREMENTS_DIR.glob("*.txt")} == set(SPECS)
    served = [exporter for spec in SPECS.values() for exporter in spec.exporters]
    assert len(served) == len(set(served))
    assert set(served) <= set(EXPORTERS)


def test_an_environment_is_found_by_its_name_and_by_an_exporter() -> None:
    assert find_spec("tensorflow") is find_spec("keras")


def test_an_unknown_name_lists_the_known_ones() -> None:
    known = ", ".join(f"'{name}'" for name in sorted(SPECS))
    with pytest.raises(
        EnvironmentFailure, match=re.escape(f"no framework environment 'mxnet' (known: {known})")
    ):
        find_spec("mxnet")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("torch", "Did you mean 'pytorch'?"),
        ("scikit-learn", "Did you mean 'sklearn'?"),
        ("tres", "Did you mean 'trees'?"),
        ("onnx", "ONNX files are exported without one: `paritygate export FILE`."),
    ],
)
def test_a_name_that_is_near_is_told(name: str, said: str) -> None:
    with pytest.raises(EnvironmentFailure, match=re.escape(said)):
        find_spec(name)


def test_every_exporter_has_an_environment_or_needs_none() -> None:
    served = {name for spec in SPECS.values() for name in spec.exporters}
    assert served.isdisjoint(NEED_NONE)
    assert served | set(NEED_NONE) == set(EXPORTERS)


def test_other_pins_are_another_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PARITYGATE_ENV_DIR", str(tmp_path))
    spec = SPECS["trees"]
    before = spec.directory
    assert re.fullmatch(r"trees-[0-9a-f]{12}", before.name)
    assert before.parent == tmp_path == environments_dir()
    other = tmp_path / "trees.txt"
    other.write_bytes(spec.requirements.read_bytes() + b"\n")
    monkeypatch.setattr("paritygate.converter.environments.specs.REQUIREMENTS_DIR", tmp_path)
    assert spec.directory != before
