"""Sources and places with names that people really have, exported in an environment."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import joblib
import numpy as np
import pytest
from sklearn.tree import DecisionTreeClassifier

from paritygate.converter.bundle import read_bundle
from paritygate.converter.config import ExportConfig
from paritygate.converter.environments import export_source
from paritygate.converter.errors import BundleError


def _save(path: Path) -> None:
    x = np.arange(40, dtype=np.float32).reshape(20, 2)
    path.parent.mkdir(parents=True, exist_ok=True)
    joblib.dump(DecisionTreeClassifier(random_state=0).fit(x, x[:, 0] > 20), path)


@pytest.mark.parametrize(
    ("saved", "given", "output"),
    [
        ("tree.joblib", "tree.joblib", "out"),
        ("models/tree.joblib", "./models/../models/tree.joblib", "deep/er/out"),
        ("my models/decision tree.joblib", "my models/decision tree.joblib", "my bundle"),
        ("modèles/дерево-木.joblib", "modèles/дерево-木.joblib", "bündel-束"),
        ("tree[1].joblib", "tree[1].joblib", "out[1]*"),
        ("-dash.joblib", "./-dash.joblib", "-out"),
    ],
    ids=["relative", "dots", "spaces", "unicode", "brackets", "dashes"],
)
def test_a_source_and_a_place_may_have_any_name(saved: str, given: str, output: str, here: Path) -> None:
    _save(here / saved)
    config = ExportConfig(name="tree", trust=True)
    bundle = export_source(given, output, config, isolated=True)
    assert bundle.path == here / output
    assert sorted(path.name for path in (here / output).parent.iterdir() if path.name.startswith(".")) == []


def test_a_symlink_is_followed_and_stays(here: Path) -> None:
    _save(here / "real" / "tree.joblib")
    (here / "latest.joblib").symlink_to("real/tree.joblib")
    linked = export_source("latest.joblib", "linked", ExportConfig(name="tree", trust=True), isolated=True)
    plain = export_source("real/tree.joblib", "plain", ExportConfig(name="tree", trust=True), isolated=True)
    assert (here / "latest.joblib").is_symlink()
    assert linked.manifest["files"]["model.onnx"] == plain.manifest["files"]["model.onnx"]


def test_an_output_behind_a_symlink_lies_where_the_link_points(here: Path) -> None:
    _save(here / "tree.joblib")
    (here / "elsewhere").mkdir()
    (here / "bundles").symlink_to("elsewhere")
    export_source("tree.joblib", "bundles/tree", ExportConfig(name="tree", trust=True), isolated=True)
    assert read_bundle(here / "elsewhere" / "tree").name == "tree"


def test_a_factory_is_found_in_the_working_directory_with_its_own_helpers(here: Path) -> None:
    _save(here / "tree.joblib")
    (here / "helpers_of_nets.py").write_text("import joblib\n\nload = joblib.load\n")
    (here / "nets.py").write_text(
        "import helpers_of_nets\n\ndef build():\n    return helpers_of_nets.load('tree.joblib')\n"
    )
    bundle = export_source("nets:build", "out", ExportConfig(name="tree"), framework="sklearn", isolated=True)
    assert bundle.manifest["name"] == "tree"


def test_a_dangling_link_in_the_place_of_the_bundle_is_not_overwritten(here: Path) -> None:
    _save(here / "tree.joblib")
    (here / "out").symlink_to("nowhere")
    with pytest.raises(BundleError, match="out exists already; a bundle is never overwritten"):
        export_source("tree.joblib", "out", ExportConfig(name="tree", trust=True), isolated=True)


def _read_only(folder: Path) -> list[str]:
    """A command that starts another one in a mount namespace in which `folder` cannot be written."""
    unshare = shutil.which("unshare")
    if unshare is None:
        pytest.skip("unshare is not installed")
    mount = f'mount --bind "{folder}" "{folder}" && mount -o remount,bind,ro "{folder}"'
    apart = [unshare, "--user", "--map-root-user", "--mount", "sh", "-c"]
    if subprocess.run([*apart, mount], check=False, capture_output=True).returncode != 0:
        pytest.skip("this machine allows no mounts in a namespace of one's own")
    return [*apart, f'{mount} && cd "{folder}" && exec "$@"', "sh"]


def _export_with_the_command_line(folder: Path, output: Path) -> subprocess.CompletedProcess[str]:
    code = (
        "import sys\nfrom paritygate.converter.config import ExportConfig\n"
        "from paritygate.converter.environments import export_source\n"
        "from paritygate.converter.errors import ConverterError\n"
        "try:\n"
        "    config = ExportConfig(name='tree', trust=True)\n"
        "    print(export_source('tree.joblib', sys.argv[1], config, isolated=True).digest)\n"
        "except ConverterError as error:\n"
        "    sys.exit(f'{type(error).__name__}: {error}')\n"
    )
    command = [*_read_only(folder), sys.executable, "-c", code, str(output)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, env=os.environ.copy())


def test_a_working_directory_that_cannot_be_written_is_enough(here: Path, tmp_path: Path) -> None:
    _save(here / "tree.joblib")
    (tmp_path / "bundles").mkdir()
    done = _export_with_the_command_line(here, tmp_path / "bundles" / "tree")
    assert done.returncode == 0, done.stderr
    assert read_bundle(tmp_path / "bundles" / "tree").digest == done.stdout.strip()


def test_an_output_that_cannot_be_written_is_one_line_before_anything_starts(here: Path) -> None:
    _save(here / "tree.joblib")
    done = _export_with_the_command_line(here, here / "out")
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("BundleError: the bundle ")
    assert "cannot be written: Read-only file system" in done.stderr
    assert len(done.stderr.splitlines()) == 1
