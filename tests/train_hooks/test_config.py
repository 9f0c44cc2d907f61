"""job.yaml: what is read, and that every fault is told at once with its path."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from paritygate.converter.environments import SPECS
from paritygate.train_hooks.config import MAX_FILE_BYTES, build_job, is_loopback, load_job, parse_job
from paritygate.train_hooks.errors import JobFileError
from paritygate.train_hooks.types import ExportSpec, Resources

BASE: dict[str, Any] = {
    "schema": "paritygate.job/v1",
    "name": "digits",
    "framework": "pytorch",
    "script": "train.py",
}


def faults_of(**fields: Any) -> dict[str, str]:
    with pytest.raises(JobFileError) as caught:
        build_job({name: value for name, value in {**BASE, **fields}.items() if value is not ...})
    return {fault.path: fault.problem for fault in caught.value.faults}


def test_a_full_job_is_read_field_by_field() -> None:
    job = parse_job(
        """
schema: paritygate.job/v1
name: digits
framework: pytorch
script: train.py
args: [--epochs, 3, --rate, 0.5]
python: /opt/python
nodes: 2
processes_per_node: 4
hosts: [gpu-a, "fd00::b"]
master_port: 29999
env: {NCCL_DEBUG: INFO, SEED: 7}
workdir: code
resources: {cpus: 8, memory_mib: 4096, gpus: 2}
image: registry/train:1
timeout_s: 90.5
stop_grace_s: 3
queue: research
priority: high
namespace: train
export: {name: digits, repository: s3://models, bundle_dir: out}
"""
    )
    assert job.args == ("--epochs", "3", "--rate", "0.5")
    assert job.world_size == 8
    assert job.hosts == ("gpu-a", "fd00::b")
    assert job.env == {"NCCL_DEBUG": "INFO", "SEED": "7"}
    assert job.resources == Resources(8, 4096, 2)
    assert job.export == ExportSpec("digits", "s3://models", "out")
    assert (job.timeout_s, job.stop_grace_s, job.master_port) == (90.5, 3.0, 29999)


def test_nodes_follow_from_hosts() -> None:
    assert build_job({**BASE, "hosts": ["a", "b", "c"]}).nodes == 3


def test_relative_paths_start_at_the_job_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "job.yaml").write_text(
        "schema: paritygate.job/v1\nname: digits\nframework: pytorch\nscript: train.py\nworkdir: code\n"
    )
    monkeypatch.chdir("/")
    job = load_job(tmp_path / "job.yaml")
    assert job.local_path(job.workdir) == str(tmp_path / "code")
    assert job.local_path("../models") == str(tmp_path.parent / "models")
    assert job.local_path("s3://models") == "s3://models"


def test_all_faults_come_at_once_each_with_its_path() -> None:
    faults = faults_of(
        name="Not A Label",
        framework="caffe",
        nodes="two",
        processes_per_node=0,
        timeout_s=-1,
        resources={"cpus": 1.5, "memory": 3},
        export={"repository": 5},
        env={"A-B": "x", "FLAG": True},
    )
    assert faults == {
        "$.name": "name must be at most 50 lower-case letters, digits and dashes, beginning with a letter, "
        "got 'Not A Label'",
        "$.framework": "framework must be one of jax, pytorch, tensorflow, got 'caffe'",
        "$.nodes": "nodes must be a whole number of at least 1, got 'two'",
        "$.processes_per_node": "processes_per_node must be a whole number of at least 1, got 0",
        "$.timeout_s": "timeout_s must be a number of seconds above 0, got -1",
        "$.resources.cpus": "cpus must be a whole number of at least 1, got 1.5",
        "$.resources.memory": "unknown key 'memory'; did you mean 'memory_mib'?",
        "$.export.name": "name is missing",
        "$.export.repository": "repository must be a text, got 5",
        "$.env.A-B": "'A-B' is not a variable name; expected letters, digits and underscores",
        "$.env.FLAG": "FLAG must be a text or a number; quote True to pass it as written",
    }


@pytest.mark.parametrize(
    ("given", "near"),
    [
        ("proceses_per_node", "processes_per_node"),
        ("nodse", "nodes"),
        ("timeout", "timeout_s"),
        ("argz", "args"),
    ],
)
def test_an_unknown_key_names_the_nearest(given: str, near: str) -> None:
    assert faults_of(**{given: 1}) == {f"$.{given}": f"unknown key {given!r}; did you mean {near!r}?"}


def test_faults_between_fields_come_with_those_of_single_ones() -> None:
    faults = faults_of(script=..., nodes=0, hosts=["a", "a"], env={"RANK": 1}, timeout_s="soon")
    assert list(faults) == ["$.nodes", "$.timeout_s", "$.script", "$.env.RANK"]


def test_a_faulty_field_brings_no_faults_that_only_follow_from_it() -> None:
    assert list(faults_of(script=5)) == ["$.script"]
    assert list(faults_of(framework="caffe", env={"RANK": 1})) == ["$.framework"]


def test_an_unknown_key_like_no_other_lists_the_known_ones() -> None:
    assert "known: args, command, env, environment" in faults_of(zzzz=1)["$.zzzz"]


@pytest.mark.parametrize(
    ("fields", "path", "problem"),
    [
        ({"schema": ...}, "$.schema", "schema is missing"),
        ({"schema": "paritygate.job/v2"}, "$.schema", "must be one of paritygate.job/v1"),
        ({"script": ...}, "$.script", "give one of script, module and command, got none"),
        ({"module": "pkg.train"}, "$.module", "got script and module"),
        ({"command": ["a"]}, "$.command", "got script and command"),
        ({"script": ..., "module": "pkg/train.py"}, "$.module", "a module name such as package.train"),
        ({"python": "/p", "environment": "tensorflow"}, "$.environment", "one of python and environment"),
        (
            {"script": ..., "command": ["x"], "python": "/p"},
            "$.command",
            "only where the command says {python}",
        ),
        (
            {"environment": "tensrflow"},
            "$.environment",
            f"environment must be one of {', '.join(sorted(SPECS))}",
        ),
        ({"nodes": 3, "hosts": ["a", "b"]}, "$.hosts", "must name each of the 3 nodes, got 2"),
        ({"hosts": ["a", "a"]}, "$.hosts", "must name each node once, got a, a"),
        ({"hosts": ["a; rm -rf /", "b"]}, "$.hosts", "each entry is a host name or an IP address"),
        ({"env": {"RANK": 3}}, "$.env.RANK", "RANK is set by the launcher"),
        ({"env": {"MASTER_PORT": "http"}}, "$.env.MASTER_PORT", "a port from 1 to 65535, got 'http'"),
        ({"env": {"MASTER_ADDR": "a b"}}, "$.env.MASTER_ADDR", "a host name or an IP address, got 'a b'"),
        ({"env": {"PARITYGATE_JOB_ID": "x"}}, "$.env.PARITYGATE_JOB_ID", "is set by the launcher"),
        ({"args": ["--fast", True]}, "$.args", "a list in which each entry is a text or a number"),
        ({"args": "--fast"}, "$.args", "args must be a list, got '--fast'"),
        ({"timeout_s": float("inf")}, "$.timeout_s", "a number of seconds above 0"),
        ({"nodes": True}, "$.nodes", "a whole number of at least 1, got True"),
        ({"env": ["A=1"]}, "$.env", "expected a mapping of fields, got ['A=1']"),
        ({"max_restarts": 1, "nodes": 2}, "$.max_restarts", "restarts over 2 nodes move rank 0"),
        (
            {"framework": "tensorflow", "processes_per_node": 2},
            "$.processes_per_node",
            "runs one process a node, got 2; write nodes: 2 and processes_per_node: 1",
        ),
        ({"framework": "tensorflow", "max_restarts": 1}, "$.max_restarts", "no agent that restarts ranks"),
        (
            {"framework": "tensorflow", "env": {"TF_CONFIG": "{}"}},
            "$.env.TF_CONFIG",
            "is set by the launcher",
        ),
        (
            {"framework": "jax", "processes_per_node": 2},
            "$.processes_per_node",
            "jax runs one process a node",
        ),
        (
            {"master_address": "a", "hosts": ["a", "b"], "env": {"MASTER_ADDR": "b"}},
            "$.master_address",
            "master_address a and env MASTER_ADDR b differ",
        ),
    ],
)
def test_one_fault_is_told_with_its_path(fields: dict[str, Any], path: str, problem: str) -> None:
    faults = faults_of(**fields)
    assert list(faults) == [path]
    assert problem in faults[path]


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("", "expected a mapping of fields, got None"),
        ("{}", "the job is empty; expected schema: paritygate.job/v1"),
        ("- a", "expected a mapping of fields"),
        ("a: [", "not YAML in line 1"),
        ("name: a\nname: b", "key 'name' is given twice"),
        ("a: !!python/object/apply:os.system [true]", "not YAML"),
        ("a: " + "[" * 5000, "nested too deeply|not YAML"),
    ],
    ids=["empty", "no-fields", "list", "broken", "double-key", "code", "deep"],
)
def test_what_is_no_job_is_refused_in_one_line(text: str, match: str) -> None:
    with pytest.raises(JobFileError, match=match) as caught:
        parse_job(text)
    assert "\n" not in str(caught.value)


def test_a_missing_file_a_folder_and_a_huge_file_are_refused(tmp_path: Path) -> None:
    with pytest.raises(JobFileError, match=r"no\.yaml: the job file cannot be read: No such file"):
        load_job(tmp_path / "no.yaml")
    with pytest.raises(JobFileError, match="cannot be read: Is a directory"):
        load_job(tmp_path)
    (tmp_path / "bytes.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(JobFileError, match="it is not UTF-8 text"):
        load_job(tmp_path / "bytes.yaml")
    (tmp_path / "huge.yaml").write_text("#" * (MAX_FILE_BYTES + 1))
    with pytest.raises(JobFileError, match="a job has at most 1048576"):
        load_job(tmp_path / "huge.yaml")


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("localhost", True), ("LOCALHOST", True), ("localhost.localdomain", True), ("127.0.0.1", True),
        ("127.0.1.1", True), ("::1", True), ("0.0.0.0", True), ("gpu-a", False), ("10.0.0.1", False),
        ("fd00::a", False), ("localhosts", False),
    ],
)  # fmt: skip
def test_loopback_addresses_are_known(address: str, expected: bool) -> None:
    assert is_loopback(address) is expected
