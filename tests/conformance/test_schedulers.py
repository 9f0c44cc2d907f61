"""Every scheduler, in every form it has: plans are pure, and no field of a job is lost in silence."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest

from paritygate.train_hooks.errors import NotRunnable, PlanError, UnknownName
from paritygate.train_hooks.launch import launcher
from paritygate.train_hooks.launch.contracts import CONTRACTS, get_contract
from paritygate.train_hooks.launch.schedulers import SCHEDULERS, get_scheduler
from paritygate.train_hooks.launch.schedulers.kubeflow import operator_environment
from paritygate.train_hooks.launch.schedulers.kubernetes import KINDS
from paritygate.train_hooks.types import ExportSpec, JobSpec, Plan, Resources
from support import crds
from support.golden import check_golden

FORMS = [
    ("local", None, "pytorch"),
    ("local", None, "tensorflow"),
    ("local", None, "jax"),
    ("kubernetes", "job", "pytorch"),
    ("kubernetes", "job", "tensorflow"),
    ("kubernetes", "job", "jax"),
    ("kubernetes", "pytorchjob", "pytorch"),
    ("kubernetes", "tfjob", "tensorflow"),
]
FORM_IDS = ["-".join(filter(None, form)) for form in FORMS]

each_form = pytest.mark.parametrize(("on", "kind", "framework"), FORMS, ids=FORM_IDS)


def base_job(framework: str, **fields: Any) -> JobSpec:
    return JobSpec(
        **{
            "name": "digits",
            "framework": framework,
            "script": "train.py",
            "python": "/opt/python" if fields.pop("python_given", False) else None,
            "nodes": 2,
            "image": "registry/train:1",
            "directory": "/jobs",
            **fields,
        }
    )


def expressed(plan: Plan) -> tuple[Any, ...]:
    """What a plan does, without what it says that it does not do."""
    said = [line for line in plan.text.splitlines() if not line.startswith("# not expressed")]
    return plan.nodes, plan.documents, said


def test_every_scheduler_kind_and_contract_is_in_this_suite() -> None:
    assert {form[0] for form in FORMS} == set(SCHEDULERS)
    assert {form[1] for form in FORMS if form[1]} == set(KINDS)
    assert {form[2] for form in FORMS} == set(CONTRACTS)


CHANGES: dict[str, dict[str, Any]] = {
    "name": {"name": "other"},
    "script": {"script": "other.py"},
    "module": {"script": None, "module": "package.train"},
    "command": {"script": None, "command": ("run-me", "now")},
    "args": {"args": ("--epochs", "3")},
    "python": {"python": "/other/python"},
    "environment": {"environment": "tensorflow"},
    "nodes": {"nodes": 3},
    "processes_per_node": {"processes_per_node": 4},
    "hosts": {"hosts": ("gpu-a", "gpu-b")},
    "master_address": {"master_address": "10.0.0.7"},
    "master_port": {"master_port": 31000},
    "env": {"env": {"SEED": "7"}},
    "workdir": {"workdir": "code"},
    "resources.cpus": {"resources": Resources(cpus=8)},
    "resources.memory_mib": {"resources": Resources(memory_mib=4096)},
    "resources.gpus": {"resources": Resources(gpus=2)},
    "image": {"image": "registry/other:2"},
    "timeout_s": {"timeout_s": 90.5},
    "stop_grace_s": {"stop_grace_s": 3.5},
    "max_restarts": {"nodes": 1, "max_restarts": 2},
    "queue": {"queue": "research"},
    "priority": {"priority": "high"},
    "namespace": {"namespace": "train"},
    "export.name": {"export": ExportSpec("other")},
    "export.repository": {"export": ExportSpec("other", repository="models")},
    "export.bundle_dir": {"export": ExportSpec("other", bundle_dir="out")},
}


def test_every_field_of_a_job_is_in_this_table() -> None:
    fields = {field.name for field in dataclasses.fields(JobSpec)} - {"framework", "directory"}
    assert {name.partition(".")[0] for name in CHANGES} == fields


@each_form
@pytest.mark.parametrize("field", CHANGES)
def test_a_field_is_expressed_or_listed_as_lossy(
    on: str, kind: str | None, framework: str, field: str
) -> None:
    changed = base_job(framework, **CHANGES[field])
    if any(fault.path == f"$.{field}" for fault in get_contract(framework).faults(changed)):
        return  # such a job is refused when its file is read
    before = base_job(framework, nodes=1 if field == "max_restarts" else 2)
    plan, plain = launcher.plan(changed, on, kind=kind), launcher.plan(before, on, kind=kind)
    listed = [entry for entry in plan.lossy if entry.path == f"$.{field}"]
    assert expressed(plan) != expressed(plain) or listed
    for entry in listed:
        assert f"# not expressed here: $.{field}: {entry.reason}" in plan.text


@each_form
def test_a_plan_is_pure(
    on: str, kind: str | None, framework: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    job = base_job(framework, workdir="/no/such/place")
    events: list[str] = []
    active = True

    def watch(event: str, args: tuple[Any, ...]) -> None:
        if active and event in ("subprocess.Popen", "os.fork", "os.mkdir", "socket.bind", "os.exec"):
            events.append(event)

    sys.addaudithook(watch)
    first, second = launcher.plan(job, on, kind=kind), launcher.plan(job, on, kind=kind)
    active = False
    assert first == second
    assert events == []
    assert list(tmp_path.iterdir()) == []


@each_form
def test_a_plan_is_plain_json(on: str, kind: str | None, framework: str) -> None:
    import json

    value = json.loads(json.dumps(launcher.plan(base_job(framework), on, kind=kind).to_json()))
    assert value["job"] == "digits"
    assert value["nodes"] or value["documents"]


@each_form
def test_a_kind_that_is_not_there_is_refused(on: str, kind: str | None, framework: str) -> None:
    with pytest.raises((UnknownName, PlanError), match="nonsense"):
        launcher.plan(base_job(framework), on, kind="nonsense")


def test_an_unknown_scheduler_lists_the_known_ones() -> None:
    with pytest.raises(UnknownName, match="unknown scheduler 'slurmy'; known: kubernetes, local"):
        get_scheduler("slurmy")


def test_an_unknown_framework_lists_the_known_ones() -> None:
    with pytest.raises(UnknownName, match="unknown framework 'caffe'; known: jax, pytorch, tensorflow"):
        get_contract("caffe")


# Kubernetes.

CLUSTER = [form for form in FORMS if form[0] == "kubernetes"]
each_cluster_form = pytest.mark.parametrize(
    ("on", "kind", "framework"), CLUSTER, ids=["-".join(map(str, form[1:])) for form in CLUSTER]
)


def full_job(framework: str) -> JobSpec:
    return base_job(
        framework,
        args=("--note", "$(HOME) is not for the kubelet"),
        processes_per_node=2 if framework == "pytorch" else 1,
        hosts=("gpu-a", "gpu-b"),
        env={"SEED": "7"},
        workdir="/app",
        resources=Resources(cpus=8, memory_mib=16384, gpus=2),
        timeout_s=3600,
        stop_grace_s=30,
        queue="research",
        priority="high",
        namespace="train",
        export=ExportSpec("digits", repository="/models"),
    )


@each_cluster_form
def test_manifests_are_the_golden_ones(on: str, kind: str, framework: str) -> None:
    plan = launcher.plan(full_job(framework), on, kind=kind)
    check_golden(f"kubernetes/{kind}-{framework}.yaml", plan.render())


def builtin_faults(document: Any) -> list[str]:
    try:
        kubernetes_validate.validate(document, kubernetes_validate.latest_version(), strict=True)
    except kubernetes_validate.ValidationError as error:
        return [error.message]
    return []


@pytest.mark.parametrize("framework", sorted(CONTRACTS))
@pytest.mark.parametrize("nodes", [1, 2])
def test_built_in_kinds_pass_the_strict_schemas_of_kubernetes(framework: str, nodes: int) -> None:
    job = dataclasses.replace(full_job(framework), nodes=nodes, hosts=())
    documents = launcher.plan(job, "kubernetes").documents
    assert [document["kind"] for document in documents] == (["Service", "Job"] if nodes > 1 else ["Job"])
    for document in documents:
        assert builtin_faults(document) == []


def test_the_strict_schemas_of_kubernetes_find_a_typo() -> None:
    *_, job = launcher.plan(full_job("pytorch"), "kubernetes").documents
    wrong = {**job, "spec": {**job["spec"], "backofLimit": 0}}
    assert "backofLimit" in builtin_faults(wrong)[0]


@pytest.mark.parametrize(("kind", "framework"), [("pytorchjob", "pytorch"), ("tfjob", "tensorflow")])
def test_kubeflow_kinds_pass_their_strict_custom_schemas(kind: str, framework: str) -> None:
    (document,) = launcher.plan(full_job(framework), "kubernetes", kind=kind).documents
    assert crds.validate(document) == []


def test_the_custom_schema_finds_a_field_in_the_wrong_place() -> None:
    (document,) = launcher.plan(full_job("pytorch"), "kubernetes", kind="pytorchjob").documents
    wrong = {**document, "spec": {**document["spec"], "backoffLimit": 0}}
    assert any("backoffLimit" in fault for fault in crds.validate(wrong))


def test_a_rendered_pytorchjob_gives_every_pod_its_place() -> None:
    (document,) = launcher.plan(full_job("pytorch"), "kubernetes", kind="pytorchjob").documents
    pods = operator_environment(document)
    assert [pod.env["PET_NODE_RANK"] for pod in pods] == ["0", "1"]
    assert {pod.env["PET_NPROC_PER_NODE"] for pod in pods} == {"2"}
    assert {pod.env["PET_MASTER_ADDR"] for pod in pods} == {"digits-master-0"}


def test_a_rendered_tfjob_gives_every_pod_its_place() -> None:
    (document,) = launcher.plan(full_job("tensorflow"), "kubernetes", kind="tfjob").documents
    assert [pod.name for pod in operator_environment(document)] == ["digits-worker-0", "digits-worker-1"]


def main_container(plan: Plan) -> dict[str, Any]:
    spec = plan.documents[-1]["spec"]["template"]["spec"]
    container: dict[str, Any] = spec["containers"][0]
    return container


def expanded(command: list[str], index: int) -> list[str]:
    """A command as the kubelet hands it to the container.

    Source: kubernetes, third_party/forked/golang/expansion: `$$` is an escaped `$`, `$(NAME)` a variable.
    """
    import re

    def replace(match: re.Match[str]) -> str:
        return "$" if match[0] == "$$" else {"JOB_COMPLETION_INDEX": str(index)}[match[1]]

    return [re.sub(r"\$\$|\$\((\w+)\)", replace, word) for word in command]


def test_a_pods_index_becomes_its_node_rank_and_the_users_own_text_stays() -> None:
    command = main_container(launcher.plan(full_job("pytorch"), "kubernetes"))["command"]
    assert "--node-rank=1" in expanded(command, 1)
    assert expanded(command, 1)[-1] == "$(HOME) is not for the kubelet"


def test_a_pods_index_becomes_its_task_in_tf_config() -> None:
    import json

    command = main_container(launcher.plan(full_job("tensorflow"), "kubernetes"))["command"]
    program, variable, *_ = expanded(command, 1)
    assert program == "env"
    config = json.loads(variable.removeprefix("TF_CONFIG="))
    assert config["task"] == {"type": "worker", "index": 1}
    assert config["cluster"]["worker"] == ["digits-0.digits:2222", "digits-1.digits:2222"]


def test_a_job_without_image_cannot_go_to_a_cluster() -> None:
    with pytest.raises(PlanError, match="job digits has no image"):
        launcher.plan(base_job("pytorch", image=None), "kubernetes")


@pytest.mark.parametrize(("kind", "framework"), [("pytorchjob", "tensorflow"), ("tfjob", "pytorch")])
def test_a_kubeflow_kind_refuses_a_job_of_another_framework(kind: str, framework: str) -> None:
    with pytest.raises(PlanError, match=f"job digits is {framework}; use kind job"):
        launcher.plan(base_job(framework), "kubernetes", kind=kind)


def test_a_rendered_job_is_not_run_from_here() -> None:
    plan = launcher.plan(base_job("pytorch"), "kubernetes")
    assert not plan.runnable
    with pytest.raises(NotRunnable, match="kubectl apply -f -"):
        launcher.run(plan)
