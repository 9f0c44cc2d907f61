"""The whole story from an installed wheel, in an empty directory, as a newcomer's machine would run it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]


def _run(command: list[str], **options: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, timeout=280, **options)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel built from the tracked files, unpacked into a directory of its own."""
    scratch = tmp_path_factory.mktemp("wheel")
    source, target = scratch / "source", scratch / "site"
    source.mkdir()
    files = _run(["git", "ls-files", "-z"], cwd=ROOT, check=True).stdout.split("\0")
    for name in filter(None, files):
        path = source / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if (ROOT / name).is_symlink():
            path.symlink_to(os.readlink(ROOT / name))
        elif (ROOT / name).is_file():
            path.write_bytes((ROOT / name).read_bytes())
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    build = _run([*pip, "wheel", ".", "--no-deps", "--no-build-isolation", "-w", str(scratch)], cwd=source)
    assert build.returncode == 0, build.stderr
    (built,) = scratch.glob("paritygate-*.whl")
    install = _run([*pip, "install", "--no-deps", "--target", str(target), str(built)])
    assert install.returncode == 0, install.stderr
    return target


@pytest.fixture(scope="module")
def story(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """The directory and the JSON of one quickstart."""
    empty = tmp_path_factory.mktemp("empty")
    environment = {**os.environ, "PYTHONPATH": str(wheel)}
    where = _run(
        [sys.executable, "-c", "import paritygate; print(paritygate.__file__)"], env=environment, cwd=empty
    )
    assert where.stdout.startswith(str(wheel)), where
    done = _run([sys.executable, "-m", "paritygate", "quickstart", "--json"], env=environment, cwd=empty)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "\n" not in done.stdout.strip(), "--json must print one object and nothing else"
    return empty, json.loads(done.stdout)


def test_the_wheel_drops_one_top_level_name(wheel: Path) -> None:
    names = {path.name for path in wheel.iterdir() if not path.name.endswith(".dist-info")}
    assert names - {"bin"} == {"paritygate"}


def test_two_versions_are_proven_and_published(story: tuple[Path, dict[str, Any]]) -> None:
    published = story[1]["published"]
    assert [entry["version"] for entry in published] == [1, 2]
    for entry in published:
        assert entry["verdict"] == "pass"
        assert entry["framework"] == "pytorch"
        assert 0.0 <= entry["max_abs_diff"] < 1e-4


def test_the_broken_model_is_refused_by_its_numbers(story: tuple[Path, dict[str, Any]]) -> None:
    refused = story[1]["refused"]
    assert refused["output"] == "probabilities"
    assert refused["max_abs_diff"] > 1e-3
    assert "probabilities" in refused["reason"]


def test_the_canary_splits_users_and_keeps_them(story: tuple[Path, dict[str, Any]]) -> None:
    canary = story[1]["canary"]
    assert canary["weight_percent"] == 10
    assert canary["failed"] == 0
    assert canary["users_on_two_versions"] == 0
    # 400 users at 10 %: a fixed set of keys has a fixed share; this is 4.5 deviations of 1.5 points around it.
    assert 3.0 < canary["share_percent"] < 17.0
    assert set(canary["by_version"]) == {"1", "2"}
    assert sum(figures["requests"] for figures in canary["by_version"].values()) == canary["requests"]
    for figures in canary["by_version"].values():
        assert figures["accuracy"] > 0.85
        assert 0 < figures["p50_ms"] <= figures["p99_ms"]


def test_promotion_and_rollback_lose_no_request(story: tuple[Path, dict[str, Any]]) -> None:
    for verb in ("promote", "rollback"):
        assert story[1][verb]["requests"] > 100
        assert story[1][verb]["failed"] == 0


def test_it_says_that_it_went_well_and_how_long_it_took(story: tuple[Path, dict[str, Any]]) -> None:
    assert story[1]["ok"] is True
    assert story[1]["seconds"] > 0


def test_the_repository_and_the_istio_manifests_are_left_to_look_at(
    story: tuple[Path, dict[str, Any]],
) -> None:
    folder = story[0] / "quickstart-output"
    assert Path(story[1]["repository"]) == folder / "model_repo"
    assert (folder / "model_repo" / "digits" / "2" / "evidence" / "certificate.json").is_file()
    kinds = {doc["kind"] for doc in yaml.safe_load_all((folder / "istio.yaml").read_text(encoding="utf-8"))}
    assert "VirtualService" in kinds
