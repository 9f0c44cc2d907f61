"""What is special about torchrun as the starter of ranks."""

from __future__ import annotations

from pathlib import Path

import pytest

from paritygate.train_hooks.launch import launcher
from paritygate.train_hooks.types import JobResult, JobSpec, JobState
from support.jobs import job_of

pytest.importorskip("torch", reason="torch is not installed")


def run(job: JobSpec) -> tuple[JobResult, list[str]]:
    lines: list[str] = []
    return launcher.run(launcher.plan(job), on_line=lines.append), lines


def torch_job(folder: Path, text: str, **fields: object) -> JobSpec:
    return job_of(folder, text, **{"framework": "pytorch", "nodes": 1, "processes_per_node": 2, **fields})


def test_the_first_rank_that_fails_is_named_though_torchrun_reports_only_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PARITYGATE_RANK", "9")  # as in a rank of an outer job
    script = (
        "import os, sys, time\nif os.environ['RANK'] == '1': print('no data'); sys.exit(7)\ntime.sleep(60)"
    )
    result, lines = run(torch_job(tmp_path, script))
    assert result.state is JobState.FAILED
    assert result.message == "job small failed: rank 1 exited with code 7; its last line: no data"
    assert "[rank 1] no data" in lines
    assert {end.source: (end.exit_code, end.signal) for end in result.ends}["rank 0"] == (None, "SIGTERM")


def test_ranks_are_started_again_as_often_as_the_job_says(tmp_path: Path) -> None:
    script = """
import os, sys
print("try", os.environ["TORCHELASTIC_RESTART_COUNT"])
sys.exit(0 if os.environ["TORCHELASTIC_RESTART_COUNT"] == "1" else 5)
"""
    result, lines = run(torch_job(tmp_path, script, processes_per_node=1, max_restarts=1))
    assert result.state is JobState.SUCCEEDED, result.message
    assert [line for line in lines if "try" in line] == ["[rank 0] try 0", "[rank 0] try 1"]


def test_two_nodes_are_played_on_this_machine_by_two_agents(tmp_path: Path) -> None:
    script = """
import os
import torch.distributed as dist
import torch
dist.init_process_group("gloo")
total = torch.tensor([float(dist.get_rank())])
dist.all_reduce(total)
print("node", os.environ["GROUP_RANK"], "rank", dist.get_rank(), "of", dist.get_world_size(), "sum", total.item())
dist.destroy_process_group()
"""
    result, lines = run(torch_job(tmp_path, script, nodes=2, processes_per_node=1))
    assert result.state is JobState.SUCCEEDED, (result.message, lines)
    assert [line for line in sorted(lines) if line.startswith("[rank")] == [
        "[rank 0] node 0 rank 0 of 2 sum 1.0",
        "[rank 1] node 1 rank 1 of 2 sum 1.0",
    ]


def test_a_command_runs_under_torchrun_with_the_jobs_interpreter(tmp_path: Path) -> None:
    command = ["{python}", "-c", "import os; print('command', os.environ['RANK'])"]
    _, lines = run(torch_job(tmp_path, "", script=None, command=command, processes_per_node=1))
    assert "[rank 0] command 0" in lines


def test_a_module_runs_as_python_m_does(tmp_path: Path) -> None:
    (tmp_path / "inside").mkdir()
    (tmp_path / "inside" / "work.py").write_text("print(__spec__.name)")
    _, lines = run(job_of(tmp_path, "", script=None, module="inside.work", nodes=1))
    assert "[rank 0] inside.work" in lines


def test_an_interpreter_without_torch_is_told_by_its_own_last_line(tmp_path: Path) -> None:
    import subprocess
    import sys

    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "bare")], check=True)
    result, _ = run(torch_job(tmp_path, "pass", python=str(tmp_path / "bare" / "bin" / "python")))
    assert result.state is JobState.FAILED
    assert "node 0 exited with code 1; its last line: " in result.message
    assert "No module named 'torch'" in result.message
