"""Where a named source is exported, and what is refused before an environment is built for it."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import joblib
import pytest
from sklearn.datasets import load_iris
from sklearn.tree import DecisionTreeClassifier

from paritygate.converter.config import ExportConfig
from paritygate.converter.environments import Event, export_source
from paritygate.converter.errors import (
    EnvironmentFailure,
    ModuleMissing,
    SourceError,
    SourceNotFound,
    UnsafeSource,
)
from support.releases import old_release


@pytest.fixture(autouse=True)
def _no_environment_can_be_built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "no-folder").touch()
    monkeypatch.setenv("PARITYGATE_ENV_DIR", str(tmp_path / "no-folder"))
    monkeypatch.chdir(tmp_path)


def test_a_framework_that_is_installed_here_exports_here(tmp_path: Path) -> None:
    joblib.dump(DecisionTreeClassifier().fit(*load_iris(return_X_y=True)), "iris.joblib")
    events: list[Event] = []
    config = ExportConfig(name="iris", trust=True)
    bundle = export_source("iris.joblib", tmp_path / "out", config, on_event=events.append)
    assert bundle.name == "iris"
    assert events == []


def test_a_framework_that_is_not_here_goes_to_its_environment(tmp_path: Path) -> None:
    Path("nets.py").touch()
    events: list[str] = []
    with pytest.raises(EnvironmentFailure, match="Set PARITYGATE_ENV_DIR to a folder that can"):
        export_source(
            "nets:build",
            tmp_path / "out",
            ExportConfig(name="m"),
            framework="keras",
            on_event=lambda e: events.append(str(e)),
        )
    assert events[0] == "tensorflow is not installed here: exporting in its own environment"


def test_a_framework_that_is_older_than_what_is_tested_leaves_the_export_to_its_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old_release(monkeypatch, "scikit-learn", "1.1.3")
    joblib.dump(DecisionTreeClassifier().fit(*load_iris(return_X_y=True)), "iris.joblib")
    events: list[str] = []
    with pytest.raises(EnvironmentFailure, match="Set PARITYGATE_ENV_DIR"):
        export_source(
            "iris.joblib",
            tmp_path / "out",
            ExportConfig(name="iris", trust=True),
            on_event=lambda e: events.append(str(e)),
        )
    assert events[0] == (
        "scikit-learn 1.1.3 is older than 1.6, the oldest that is tested: exporting in its own environment"
    )


@pytest.mark.parametrize(
    ("source", "options", "kind", "match"),
    [
        ("absent.keras", {}, SourceNotFound, r"there is no file absent\.keras"),
        ("torn.keras", {}, SourceError, "is not a whole Keras file"),
        ("absent.h5", {}, SourceNotFound, r"there is no file absent\.h5"),
        ("absent.joblib", {"isolated": True}, SourceNotFound, r"there is no file absent\.joblib"),
        ("torn.pkl", {"isolated": True}, UnsafeSource, "it was not opened"),
        ("absent.bin", {}, SourceNotFound, r"there is no file absent\.bin"),
        ("torn.bin", {}, SourceError, r"cannot tell the framework of torn\.bin: it begins with"),
    ],
)
def test_what_needs_no_framework_to_be_refused_is_refused_first(
    source: str, options: dict[str, Any], kind: type[Exception], match: str, tmp_path: Path
) -> None:
    for torn, head in {"torn.keras": b"PK\x03\x04", "torn.pkl": b"\x80\x04\x95", "torn.bin": b"torn"}.items():
        (tmp_path / torn).write_bytes(head)
    with pytest.raises(kind, match=match):
        export_source(source, tmp_path / "out", ExportConfig(name="m"), **options)
    assert not (tmp_path / "out").exists()


def test_a_warning_says_that_it_is_one() -> None:
    assert str(Event("warning", "odd version")) == "warning: odd version"
    assert str(Event("progress", "exporting")) == "exporting"


def test_a_file_that_holds_more_than_its_framework_goes_to_the_environment_that_has_it(
    tmp_path: Path,
) -> None:
    if importlib.util.find_spec("pandas") is not None:
        pytest.skip("pandas is installed here, so nothing is missing")
    Path("frame.pkl").write_bytes(b"cpandas.core.frame\nDataFrame\n.")
    events: list[str] = []
    config = ExportConfig(name="m", trust=True)
    with pytest.raises(EnvironmentFailure, match="Set PARITYGATE_ENV_DIR"):
        export_source(
            "frame.pkl",
            tmp_path / "out",
            config,
            framework="sklearn",
            on_event=lambda e: events.append(str(e)),
        )
    assert events[0] == "pandas is not installed here: exporting in its own environment"
    with pytest.raises(ModuleMissing, match="needs the module 'pandas"):
        export_source("frame.pkl", tmp_path / "out", config, framework="sklearn", isolated=False)


def test_a_module_that_no_environment_has_is_named(tmp_path: Path) -> None:
    Path("own.pkl").write_bytes(b"chouse_rules.steps\nCleaner\n.")
    with pytest.raises(ModuleMissing, match="needs the module 'house_rules'"):
        export_source("own.pkl", tmp_path / "out", ExportConfig(name="m", trust=True), framework="sklearn")


@pytest.mark.parametrize("framework", ["jax", "keras", "mindspore", "paddle"])
def test_a_file_that_is_not_there_is_named_before_anything_is_built(framework: str, tmp_path: Path) -> None:
    with pytest.raises(SourceNotFound, match="there is no file"):
        export_source(
            "absent.bin", tmp_path / "out", ExportConfig(name="m"), framework=framework, isolated=True
        )


@pytest.mark.parametrize("framework", ["jax", "mindspore"])
def test_weights_without_the_code_of_their_network_are_refused_before_anything_is_built(
    framework: str, tmp_path: Path
) -> None:
    Path("weights.bin").write_bytes(b"\x81\xa1w\x01")
    with pytest.raises(SourceError, match="holds weights only; name the code"):
        export_source(
            "weights.bin", tmp_path / "out", ExportConfig(name="m"), framework=framework, isolated=True
        )
