"""The examples as real jobs: two processes train together, rank 0 alone exports, a child publishes."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path

import pytest

from paritygate.converter.bundle import read_bundle
from paritygate.train_hooks.config import load_job
from paritygate.train_hooks.errors import CoreUnavailable
from paritygate.train_hooks.launch import launcher
from paritygate.train_hooks.types import ExportSpec, JobResult, JobSpec, JobState
from support.shared import ROOT


def example(name: str, folder: Path) -> JobSpec:
    """An example's job in a folder of its own, with its repository line in force."""
    shutil.copytree(ROOT / "examples" / name, folder / name)
    job = load_job(folder / name / "job.yaml")
    assert job.export is not None
    return dataclasses.replace(job, export=ExportSpec(job.export.name, repository="../models"))


def run(job: JobSpec) -> tuple[JobResult, list[str]]:
    lines: list[str] = []
    return launcher.run(launcher.plan(job), on_line=lines.append), lines


def check_published(result: JobResult, lines: list[str], repository: Path, model: str) -> None:
    """One proven version, made by rank 0 alone, and the same facts in the job's result."""
    assert result.state is JobState.SUCCEEDED, (result.message, lines)
    (hook,) = result.hooks
    assert (hook.name, hook.version, hook.created, hook.verdict) == (model, 1, True, "pass")
    assert result.result == hook.to_json()
    assert sorted(path.name for path in (repository / model).iterdir()) == ["1", "config.pbtxt"]
    bundle = read_bundle(repository / model / "1")
    assert bundle.digest == hook.bundle_digest
    assert bundle.signature.inputs[0].shape[0] == "batch"
    assert [line for line in lines if "published as version" in line] == [f"[rank 0] {hook}"]


def test_a_ddp_job_of_two_processes_publishes_one_proven_version(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    result, lines = run(example("torch_ddp", tmp_path))
    check_published(result, lines, tmp_path / "models", "digits")
    accuracies = {line.partition("] ")[2] for line in lines if "accuracy" in line}
    assert len(accuracies) == 1  # DDP kept both ranks' weights equal
    assert float(accuracies.pop().split()[1]) > 0.7
    assert {end.source for end in result.ends} == {"rank 0", "rank 1", "node 0"}


def test_a_missing_core_environment_is_told_before_any_rank_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PARITYGATE_CORE_PYTHON", "/no/such/python")
    with pytest.raises(CoreUnavailable, match="/no/such/python"):
        run(example("torch_ddp", tmp_path))


@pytest.mark.real
def test_a_tensorflow_job_of_two_workers_publishes_one_proven_version(tmp_path: Path) -> None:
    result, lines = run(example("tensorflow_mwms", tmp_path))
    check_published(result, lines, tmp_path / "models", "bars")
    losses = [
        [line.partition("] ")[2] for line in lines if line.startswith(f"[rank {rank}] epoch")]
        for rank in (0, 1)
    ]
    assert losses[0] == losses[1]  # one model over both workers
    assert len(losses[0]) == 3


@pytest.mark.real
def test_a_tensorflow_worker_that_dies_ends_the_job(tmp_path: Path) -> None:
    job = example("tensorflow_mwms", tmp_path)
    script = tmp_path / "tensorflow_mwms" / "train.py"
    dying = """
    import os, signal
    if '"index":1' in os.environ["TF_CONFIG"]:
        os.kill(os.getpid(), signal.SIGKILL)
"""
    script.write_text(script.read_text().replace("    images, upright = bars(1024, seed=5)\n", dying, 1))
    result, _ = run(job)
    assert result.state is JobState.FAILED
    assert result.failure is not None
    assert (result.failure.rank, result.failure.signal) == (1, "SIGKILL")
    assert "rank 1 was killed by SIGKILL" in result.message
