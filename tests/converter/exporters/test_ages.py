"""Frameworks that are older than what is tested: not refused for it, and told of where the export fails."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paritygate.converter.errors import ExportError, SourceNotFound
from paritygate.converter.exporters import EXPORTERS, export_model
from paritygate.converter.exporters.ages import AGES, too_old
from support.releases import old_release

EXTRAS: dict[str, list[str]] = tomllib.loads(
    (Path(__file__).parents[3] / "pyproject.toml").read_text("utf-8")
)["project"]["optional-dependencies"]


def test_every_exporter_of_a_framework_has_an_age() -> None:
    assert set(AGES) == set(EXPORTERS) - {"onnx", "pmml"}


@pytest.mark.parametrize("exporter", AGES)
def test_the_oldest_release_is_the_one_that_the_extra_asks_for(exporter: str) -> None:
    age = AGES[exporter]
    asked = [
        match.group(2)
        for requirements in EXTRAS.values()
        for requirement in requirements
        if (match := re.match(r"([\w-]+)>=([\d.]+)", requirement)) and match.group(1) in age.distributions
    ]
    assert set(asked) == {age.oldest}


@pytest.mark.parametrize(
    ("version", "old"),
    [
        ("1.13.1", True),
        ("2.8.0", True),
        ("2.8.0+cpu", True),
        ("2.9", False),
        ("2.10.0a1", False),
        ("3", False),
    ],
)
def test_releases_are_compared_by_their_numbers(
    version: str, old: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    old_release(monkeypatch, "torch", version)
    assert (too_old("pytorch") is not None) is old


class Unconvertible:
    """A conversion that meets something which this release does not have yet."""

    def __call__(self, path: Path) -> None:
        raise AttributeError("module 'torch.onnx' has no attribute 'export'")


def exported(tmp_path: Path, **options: Any) -> None:
    import torch

    inputs = {"x": np.ones((2, 3), np.float32)}
    export_model(torch.nn.Linear(3, 2), tmp_path / "out", name="m", inputs=inputs, **options)


def test_an_export_that_fails_on_an_old_release_says_so_and_the_way_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch")
    old_release(monkeypatch, "torch", "1.13.1")
    with pytest.raises(ExportError) as caught:
        exported(tmp_path, after_conversion=Unconvertible())
    said = str(caught.value)
    assert said.startswith("torch 1.13.1 is older than 2.9, the oldest that is tested: save the model here")
    assert "`paritygate export weights.pt --factory MODULE:FUNCTION`" in said
    assert said.endswith("Here it failed: AttributeError: module 'torch.onnx' has no attribute 'export'")
    assert "\n" not in said


def test_an_export_that_works_on_an_old_release_is_not_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch")
    old_release(monkeypatch, "torch", "2.5.0")
    exported(tmp_path)
    assert (tmp_path / "out" / "bundle.json").is_file()


def test_what_is_wrong_with_a_source_is_not_blamed_on_an_old_release(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch")
    old_release(monkeypatch, "torch", "1.13.1")
    with pytest.raises(SourceNotFound):
        export_model(tmp_path / "absent.pt", tmp_path / "out", name="m", framework="pytorch", factory="m:f")


def test_a_fault_on_a_release_that_is_tested_stays_what_it_is(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    with pytest.raises(AttributeError, match=r"torch\.onnx"):
        exported(tmp_path, after_conversion=Unconvertible())
