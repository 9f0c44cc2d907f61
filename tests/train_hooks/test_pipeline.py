"""The call after training: who exports, what is published, and what is kept when that fails."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from paritygate.converter.bundle import read_bundle  # noqa: E402
from paritygate.train_hooks import (  # noqa: E402
    CoreUnavailable,
    ExportFailed,
    HookError,
    HookResult,
    ModelRefused,
    PublishFailed,
    RankUnclear,
    after_training,
    begin,
    check_core_environment,
)


@pytest.fixture(autouse=True)
def no_job(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No variable of a launcher, and a working directory of its own."""
    for name in list(os.environ):
        if name.startswith("PARITYGATE_") or name in ("RANK", "WORLD_SIZE", "TF_CONFIG"):
            monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)


def small_model() -> Any:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU(), torch.nn.Linear(4, 2))


def export(**options: Any) -> HookResult | None:
    names: dict[str, Any] = {"input_names": ["x"], "output_names": ["y"], "dynamic": {"x": {0: "batch"}}}
    return after_training(small_model(), torch.ones(2, 3), **{"name": "small", **names, **options})


def test_without_a_repository_the_result_is_a_bundle(tmp_path: Path) -> None:
    result = export(bundle_dir=tmp_path / "bundle")
    assert result is not None
    bundle = read_bundle(Path(str(result.bundle)))
    assert bundle.path == tmp_path / "bundle"
    assert (bundle.name, bundle.digest, result.framework) == ("small", result.bundle_digest, "pytorch")
    assert result.version is None


def test_a_place_for_the_bundle_is_found_where_none_is_given(tmp_path: Path) -> None:
    result = export()
    assert result is not None
    assert Path(str(result.bundle)).parent == tmp_path / "paritygate-bundles"


def test_a_model_is_proven_and_published_by_a_child_and_the_scratch_bundle_goes(tmp_path: Path) -> None:
    result = export(repository="models")
    assert result is not None
    assert (result.version, result.created, result.verdict) == (1, True, "pass")
    assert result.repository == str(tmp_path / "models")
    assert result.bundle is None
    assert not (tmp_path / "paritygate-bundles").exists()
    published = read_bundle(Path(str(result.path)))
    assert published.digest == result.bundle_digest
    certificate = published.certificate()
    assert certificate is not None
    assert certificate.max_abs_diff == result.max_abs_diff
    assert certificate.share == result.share_of_allowed
    assert f", {100 * certificate.share:.2g} % of what is allowed)" in str(result)


def test_a_bundle_whose_place_was_chosen_is_kept_after_publishing(tmp_path: Path) -> None:
    result = export(repository="models", bundle_dir="bundle")
    assert result is not None
    assert read_bundle(tmp_path / "bundle").digest == result.bundle_digest


def test_the_job_files_export_section_is_the_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PARITYGATE_EXPORT_NAME", "from-the-job")
    monkeypatch.setenv("PARITYGATE_BUNDLE_DIR", str(tmp_path / "there"))
    result = export(name=None)
    assert result is not None
    assert (result.name, result.bundle) == ("from-the-job", str(tmp_path / "there"))


def test_the_result_is_added_to_the_launchers_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PARITYGATE_RESULT_FILE", str(tmp_path / "results"))
    first, second = export(bundle_dir="a"), export(bundle_dir="b")
    lines = (tmp_path / "results").read_text().splitlines()
    assert [HookResult.from_json(json.loads(line)) for line in lines] == [first, second]


@pytest.mark.parametrize("variables", [{"RANK": "1", "WORLD_SIZE": "2"}], ids=["rank-1"])
def test_another_rank_returns_at_once_and_writes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variables: dict[str, str]
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert export(repository="models") is None
    assert begin() is None
    assert list(tmp_path.iterdir()) == []


def test_a_rank_that_cannot_be_read_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "first")
    with pytest.raises(RankUnclear, match="RANK='first'"):
        export()


def test_a_model_without_a_name_is_refused() -> None:
    with pytest.raises(HookError, match="the model has no name; call after_training"):
        export(name=None)


def test_a_model_of_no_framework_is_refused() -> None:
    with pytest.raises(ModelRefused, match=r"no hook for a model of builtins\.str"):
        after_training("model.onnx", torch.ones(1, 3), name="small")


def test_a_model_that_cannot_be_exported_is_named_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(ExportFailed, match=r"small was trained, but not exported: .*") as caught:
        after_training(small_model(), torch.ones(2, 7), name="small", bundle_dir="bundle")
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "bundle").exists()


def test_when_publishing_fails_the_bundle_is_kept_and_the_printed_command_publishes_it(
    tmp_path: Path,
) -> None:
    (tmp_path / "models").write_text("a file stands where the repository should be")
    with pytest.raises(PublishFailed, match=r"not published into .*/models: ") as caught:
        export(repository="models")
    error = caught.value
    assert "\n" not in str(error)
    assert str(error).endswith(f"The bundle is kept in {error.bundle}; publish it with: {error.command}")
    assert read_bundle(error.bundle).name == "small"
    (tmp_path / "models").unlink()
    subprocess.run(shlex.split(error.command), check=True, capture_output=True, cwd="/")
    assert (tmp_path / "models" / "small" / "1" / "model.onnx").is_file()


def test_without_a_core_environment_the_bundle_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PARITYGATE_CORE_PYTHON", "/no/such/python")
    with pytest.raises(PublishFailed, match="/no/such/python") as caught:
        export(repository="models")
    assert read_bundle(caught.value.bundle).name == "small"


# The core environment, looked at before the training.


def test_this_interpreter_is_a_core_environment() -> None:
    import paritygate

    core = check_core_environment()
    assert (core.python, core.version) == (Path(sys.executable), paritygate.__version__)
    assert begin() == core


def test_a_core_interpreter_that_does_not_run_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PARITYGATE_CORE_PYTHON", "/no/such/python")
    what = r"/no/such/python \(PARITYGATE_CORE_PYTHON\) cannot be run: No such file.*; set PARITYGATE_CORE_PYTHON"
    with pytest.raises(CoreUnavailable, match=what):
        begin()


def test_a_core_interpreter_without_our_packages_is_told_what_it_lacks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bare = tmp_path / "bare"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(bare)], check=True)
    monkeypatch.setenv("PARITYGATE_CORE_PYTHON", str(bare / "bin" / "python"))
    with pytest.raises(CoreUnavailable, match=r"lacks paritygate\.cli, onnxruntime, tritonclient; set"):
        begin()


def test_a_core_interpreter_that_is_no_python_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PARITYGATE_CORE_PYTHON", "/bin/false")
    with pytest.raises(CoreUnavailable, match=r"/bin/false .* ended with code 1: no output"):
        begin()


# The training environment stays the user's.


def test_the_hook_needs_nothing_but_numpy_onnx_and_the_framework(tmp_path: Path) -> None:
    script = """
import importlib.machinery
import sys

ABSENT = {
    "yaml", "typer", "rich", "fastapi", "grpc", "onnxruntime", "tritonclient", "pydantic", "uvicorn", "xxhash",
    "jsonschema", "prometheus_client", "httpx", "sklearn",
}

class OnlyTraining(importlib.machinery.PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return None if name.split(".")[0] in ABSENT else super().find_spec(name, path, target)

sys.meta_path[sys.meta_path.index(importlib.machinery.PathFinder)] = OnlyTraining
from paritygate.train_hooks import after_training
assert not {"onnx", "torch", "numpy"} & set(sys.modules), "importing the hook must import no framework"
import torch
result = after_training(torch.nn.Linear(3, 2), torch.ones(2, 3), name="small", bundle_dir="bundle")
assert not ABSENT & set(sys.modules)
print(result.bundle_digest)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == read_bundle(tmp_path / "bundle").digest
