"""The handed launcher cases: addresses, ranks that nobody set, and Kubeflow manifests."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from paritygate.train_hooks.config import build_job
from paritygate.train_hooks.errors import JobFileError, ManifestError
from paritygate.train_hooks.launch import launcher
from paritygate.train_hooks.launch.schedulers.kubeflow import operator_environment
from paritygate.train_hooks.types import JobState, Plan
from support.shared import shared_dir


def read(*parts: str) -> Any:
    return yaml.safe_load(shared_dir("cases", *parts).read_text())


def plan_of(name: str) -> Plan:
    """A job of case_59, whose short form names the hosts as nodes."""
    short = read("launcher", "case_59_master_address", "jobs.yaml")[name]
    framework = {"torch": "pytorch"}.get(short["framework"], short["framework"])
    value = {
        "schema": "paritygate.job/v1",
        "name": "case",
        "framework": framework,
        "script": "train.py",
        "hosts": short["nodes"],
        "processes_per_node": short["processes_per_node"],
        "env": short["env"],
    }
    return launcher.plan(build_job(value))


def rank_variables(plan: Plan) -> list[dict[str, str]]:
    return [dict(rank.env) for node in plan.nodes for rank in node.ranks]


@pytest.mark.parametrize(
    ("name", "address", "world_size"),
    [
        ("two_nodes_good", "gpu-a", "4"),
        ("one_node_localhost", "localhost", "4"),
        ("v6_address", "fd00::a", "2"),
    ],
)
def test_case_59_every_rank_gets_the_same_address(name: str, address: str, world_size: str) -> None:
    variables = rank_variables(plan_of(name))
    assert {env["MASTER_ADDR"] for env in variables} == {address}
    assert {env["WORLD_SIZE"] for env in variables} == {world_size}
    assert len({env["MASTER_PORT"] for env in variables}) == 1
    assert [env["RANK"] for env in variables] == [str(rank) for rank in range(int(world_size))]


def test_case_59_an_ipv6_endpoint_stands_in_brackets() -> None:
    for node in plan_of("v6_address").nodes:
        assert "--rdzv-endpoint=[fd00::a]:29500" in node.command


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("two_nodes_localhost", ["MASTER_ADDR", "localhost"]),
        ("two_nodes_loopback", ["127.0.1.1"]),
        ("not_a_member", ["gpu-c"]),
    ],
)
def test_case_59_an_address_that_cannot_be_rank_0_is_refused(name: str, words: list[str]) -> None:
    with pytest.raises(JobFileError) as caught:
        plan_of(name)
    assert all(word in str(caught.value) for word in words)


@pytest.mark.parametrize(("name", "host"), [("two_nodes_good", "gpu-a"), ("second_is_master", "gpu-b")])
def test_case_59_rank_0_is_on_the_host_of_the_address(name: str, host: str) -> None:
    plan = plan_of(name)
    (node,) = [node for node in plan.nodes if any(rank.rank == 0 for rank in node.ranks)]
    assert node.host == host
    assert node.ranks[0].env["MASTER_ADDR"] == host
    assert "--node-rank=0" in node.command


def test_case_59_jax_gets_coordinator_count_and_number() -> None:
    variables = rank_variables(plan_of("jax_two_nodes"))
    assert [env["JAX_COORDINATOR_ADDRESS"] for env in variables] == ["gpu-a:29500"] * 2
    assert [env["JAX_NUM_PROCESSES"] for env in variables] == ["2"] * 2
    assert [env["JAX_PROCESS_ID"] for env in variables] == ["0", "1"]


def test_case_59_a_pytorchjob_is_read_as_its_operator_reads_it() -> None:
    pods = operator_environment(read("launcher", "case_59_master_address", "kubernetes-job.yaml"))
    expected = {
        "MASTER_ADDR": "two-nodes-master-0",
        "WORLD_SIZE": "4",
        "PET_NNODES": "2",
        "PET_NPROC_PER_NODE": "2",
    }
    for pod in pods:
        assert expected.items() <= pod.env.items()
    assert {pod.name: pod.env["PET_NODE_RANK"] for pod in pods} == {
        "two-nodes-master-0": "0",
        "two-nodes-worker-0": "1",
    }


def test_case_63_a_job_without_master_is_refused() -> None:
    with pytest.raises(ManifestError, match="PyTorchJob flat has 0 replicas of Master"):
        operator_environment(read("launcher", "case_63_workers_without_master", "workers-only.yaml"))


def test_case_63_a_container_of_another_name_is_refused() -> None:
    with pytest.raises(ManifestError, match=r"no container called pytorch \(it has sidecar, trainer\)"):
        operator_environment(read("launcher", "case_63_workers_without_master", "container-renamed.yaml"))


def test_case_63_a_script_made_for_no_launcher_gets_its_ranks(tmp_path: Path) -> None:
    script = shared_dir("cases", "launcher", "case_63_workers_without_master", "script-without-launcher.py")
    shutil.copy(script, tmp_path / "train.py")
    value = {
        "schema": "paritygate.job/v1",
        "name": "bare",
        "framework": "pytorch",
        "script": "train.py",
        "processes_per_node": 2,
        "workdir": str(tmp_path),
        "timeout_s": 120,
    }
    lines: list[str] = []
    result = launcher.run(launcher.plan(build_job(value)), on_line=lines.append)
    assert result.state is JobState.SUCCEEDED, result.message
    assert {"[rank 0] rank 0 of 2", "[rank 1] rank 1 of 2"} <= set(lines)


def test_a_tfjob_of_every_role_is_read_with_the_tf_config_of_each_pod() -> None:
    pods = operator_environment(read("configs", "kubeflow_tfjob_roles.yaml"))
    configs = {pod.name: json.loads(pod.env["TF_CONFIG"]) for pod in pods}
    assert set(configs) == {
        "ad-click-chief-0",
        *(f"ad-click-worker-{index}" for index in range(4)),
        *(f"ad-click-ps-{index}" for index in range(2)),
        "ad-click-evaluator-0",
    }
    cluster = configs["ad-click-ps-1"]["cluster"]
    assert cluster["chief"] == ["ad-click-chief-0.train.svc:2222"]
    assert cluster["worker"][3] == "ad-click-worker-3.train.svc:2222"
    assert configs["ad-click-ps-1"]["task"] == {"type": "ps", "index": 1}
    assert all(config["cluster"] == cluster for config in configs.values())
