"""A factory's module is looked for before an environment is built, and never imported for it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from paritygate.converter.config import ExportConfig
from paritygate.converter.environments import SPECS, export_source
from paritygate.converter.environments import reach as reach_module
from paritygate.converter.environments.pins import installed
from paritygate.converter.environments.reach import refuse_unreachable
from paritygate.converter.errors import EnvironmentFailure, FactoryError, SourceNotFound
from support.environments import real_environment

_RUNS = "raise AssertionError('it was imported')\n"


@pytest.fixture(autouse=True)
def _nothing_is_built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PARITYGATE_ENV_DIR", str(tmp_path / "none"))
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")


@pytest.fixture
def code() -> None:
    """A module, a package with a module below it, a folder without `__init__`, and a package of its own mind."""
    Path("mynet.py").write_text(_RUNS)
    for folder, text in {"nets": _RUNS, "lazy": f"__path__ = []\n{_RUNS}"}.items():
        Path(folder).mkdir()
        Path(folder, "__init__.py").write_text(text)
    Path("nets", "small.py").write_text(_RUNS)
    Path("plain").mkdir()
    Path("plain", "small.py").write_text(_RUNS)


@pytest.mark.usefixtures("code")
@pytest.mark.parametrize(
    "factory",
    [
        "mynet:build",
        "nets:build",
        "nets.small:Net.build",
        "plain.small:build",
        "lazy.anywhere:build",
        "flax.linen:Dense",
        "jax:jit",
        "orbax.checkpoint:x",
        "google.protobuf:x",
        "functools:partial",
    ],
)
def test_what_a_child_can_find_or_may_find_is_let_through(factory: str) -> None:
    refuse_unreachable(factory, SPECS["jax"])


@pytest.mark.usefixtures("code")
@pytest.mark.parametrize(
    ("factory", "said"),
    [
        ("mynett:build", "there is no module 'mynett' for the factory mynett:build: it is neither in "),
        ("mynett:build", "nor a package of environment 'jax', where it is imported. Did you mean 'mynet'?"),
        ("other:build", "Run in the folder that holds it."),
        ("pytest:main", "It is installed beside paritygate, which an environment does not see"),
        ("mynet.small:build", "there is no module 'mynet.small' for the factory"),
        ("nets.smal:build", "there is no module 'nets.smal' for the factory nets.smal:build; nets is in "),
    ],
)
def test_what_no_child_can_find_is_refused(factory: str, said: str) -> None:
    with pytest.raises(SourceNotFound, match=re.escape(said)):
        refuse_unreachable(factory, SPECS["jax"])


@pytest.mark.usefixtures("code")
@pytest.mark.parametrize("given_as", ["source", "factory"])
def test_an_export_looks_before_it_builds(given_as: str, tmp_path: Path) -> None:
    Path("weights.msgpack").write_bytes(b"\x81\xa1w\x01")

    def export(factory: str) -> None:
        source, code = (factory, None) if given_as == "source" else ("weights.msgpack", factory)
        config = ExportConfig(name="m", factory=code)
        export_source(source, tmp_path / "out", config, framework="jax", isolated=True)

    with pytest.raises(SourceNotFound, match="there is no module 'absent'"):
        export("absent:build")
    with pytest.raises(FactoryError, match=r"'mynet\.py:build' names a file.*Write mynet:build\."):
        export("mynet.py:build")
    Path(tmp_path / "none").touch()
    with pytest.raises(EnvironmentFailure, match="Set PARITYGATE_ENV_DIR to a folder that can"):
        export("mynet:build")


@pytest.mark.real
@pytest.mark.parametrize("name", SPECS)
def test_every_module_that_an_environment_brings_may_be_named_before_it_is_built(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PARITYGATE_ENV_DIR")
    files = [
        file for each in installed(real_environment(name).directory).values() for file in each.files or ()
    ]
    modules = {
        file.parts[0].partition(".")[0]
        for file in files
        if file.suffix in (".py", ".so") and ".." not in file.parts
    }
    monkeypatch.setattr(reach_module, "find", lambda _name: None)
    for module in sorted(each for each in modules if each.isidentifier() and not each.startswith("_")):
        refuse_unreachable(f"{module}:build", SPECS[name])
    assert modules
