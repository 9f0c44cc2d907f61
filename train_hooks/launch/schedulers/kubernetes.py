"""Kubernetes: a job as manifests, for `kubectl apply`; what they cannot say is listed, never dropped."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import PurePosixPath
from pkgutil import resolve_name
from typing import Any

import yaml

from paritygate.train_hooks.errors import NotRunnable, PlanError, UnknownName
from paritygate.train_hooks.launch.contracts import get_contract
from paritygate.train_hooks.launch.contracts.base import Place
from paritygate.train_hooks.launch.schedulers.base import OnEvent, Scheduler
from paritygate.train_hooks.launch.schedulers.local import job_environment
from paritygate.train_hooks.types import JobResult, JobSpec, Lossy, Plan

Document = dict[str, Any]

KINDS = {
    "job": "paritygate.train_hooks.launch.schedulers.kubernetes:render_job",
    "pytorchjob": "paritygate.train_hooks.launch.schedulers.kubeflow:render_pytorchjob",
    "tfjob": "paritygate.train_hooks.launch.schedulers.kubeflow:render_tfjob",
}
"""Forms of a job on Kubernetes; each is a function from a job (already escaped) to its documents."""

INDEX = "$(JOB_COMPLETION_INDEX)"
"""The kubelet puts the pod's index in its place.

Only in a command: in `env` it would have to be defined further up, and the job controller adds it at the end.
"""
JOB_LABEL = "app.kubernetes.io/instance"
QUEUE_LABEL = "kueue.x-k8s.io/queue-name"


class KubernetesScheduler(Scheduler):
    """Manifests of one job; applied by the user, or by whoever may write to the cluster."""

    def plan(self, job: JobSpec, kind: str | None = None) -> Plan:
        """The documents, and every field of the job that they do not carry."""
        chosen = kind or "job"
        if chosen not in KINDS:
            raise UnknownName("kind", chosen, KINDS)
        if job.image is None:
            raise PlanError(f"job {job.name} has no image; a cluster needs one: image: registry/train:1.")
        documents: tuple[Document, ...] = tuple(resolve_name(KINDS[chosen])(_escaped(job)))
        lossy = tuple(_lossy(job))
        text = "".join(f"# not expressed here: {entry}\n" for entry in lossy) + _dump(documents)
        return Plan(job, "kubernetes", documents=documents, lossy=lossy, runnable=False, text=text)

    def run(self, plan: Plan, on_event: OnEvent) -> JobResult:
        """Nothing is sent to a cluster from here."""
        raise NotRunnable(
            f"job {plan.job.name} is rendered for Kubernetes, not submitted; pipe the output of "
            "paritygate launch JOB --on kubernetes --dry-run into kubectl apply -f -."
        )


def _dump(documents: tuple[Document, ...]) -> str:
    return yaml.safe_dump_all(documents, sort_keys=False, width=110, allow_unicode=True)


def _escaped(job: JobSpec) -> JobSpec:
    """The job with `$(` of the user's own texts doubled, so that the kubelet leaves them alone.

    Source: kubernetes, core/v1 Container.command: `$$(VAR)` becomes `$(VAR)` and is not looked up.
    """

    def escape(text: str) -> str:
        return text.replace("$(", "$$(")

    return replace(
        job,
        script=escape(job.script) if job.script else None,
        command=tuple(map(escape, job.command)),
        args=tuple(map(escape, job.args)),
        env={name: escape(value) for name, value in job.env.items()},
    )


def _lossy(job: JobSpec) -> Iterator[Lossy]:
    """What no kind of manifest carries."""
    if job.environment:
        yield Lossy("$.environment", f"the image {job.image} must bring the framework itself")
    if job.hosts:
        yield Lossy("$.hosts", "the cluster chooses the nodes; the pods have names of their own")
    if job.master_address:
        yield Lossy("$.master_address", "rank 0 is in the first pod, and the manifest names that")
    if job.workdir != "." and not PurePosixPath(job.workdir).is_absolute():
        yield Lossy("$.workdir", f"{job.workdir} is relative to the job file; give the path inside the image")
    if job.timeout_s is not None and job.timeout_s != math.ceil(job.timeout_s):
        yield Lossy("$.timeout_s", f"whole seconds only; rounded up to {math.ceil(job.timeout_s)}")
    if job.stop_grace_s != math.ceil(job.stop_grace_s):
        yield Lossy("$.stop_grace_s", f"whole seconds only; rounded up to {math.ceil(job.stop_grace_s)}")
    if job.export is not None:
        for name in ("repository", "bundle_dir"):
            path = getattr(job.export, name)
            if path is not None and "://" not in path:
                reason = "the variable is set, but no volume is mounted for the path; add one to the pods"
                yield Lossy(f"$.export.{name}", reason)


# Parts that all kinds share.


def metadata(job: JobSpec) -> Document:
    """Name, namespace and Kueue's queue."""
    found: Document = {"name": job.name}
    if job.namespace:
        found["namespace"] = job.namespace
    labels = {JOB_LABEL: job.name, "app.kubernetes.io/managed-by": "paritygate"}
    found["labels"] = {**labels, **({QUEUE_LABEL: job.queue} if job.queue else {})}
    return found


def pod_template(job: JobSpec, container: Document) -> Document:
    """A pod of one container, out of the mesh, with shared memory for data loaders and NCCL."""
    spec: Document = {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": math.ceil(job.stop_grace_s),
        "enableServiceLinks": False,  # or each Service of the namespace adds variables to every rank
        "containers": [container],
        "volumes": [{"name": "shm", "emptyDir": {"medium": "Memory"}}],
    }
    if job.priority:
        spec["priorityClassName"] = job.priority
    no_sidecar = {
        "sidecar.istio.io/inject": "false"
    }  # a sidecar outlives the training and cuts its connections
    labels = {JOB_LABEL: job.name, **no_sidecar}
    return {"metadata": {"labels": labels, "annotations": no_sidecar}, "spec": spec}


def container(
    job: JobSpec, name: str, command: tuple[str, ...], env: Mapping[str, str], port: Document
) -> Document:
    """The one container of a pod."""
    found: Document = {"name": name, "image": job.image, "command": list(command)}
    if PurePosixPath(job.workdir).is_absolute():
        found["workingDir"] = job.workdir
    variables = {**env, **job_environment(job)}
    found["env"] = [{"name": key, "value": variables[key]} for key in sorted(variables)]
    found["ports"] = [port]
    resources = _resources(job)
    if resources:
        found["resources"] = {"requests": resources, "limits": dict(resources)}
    found["volumeMounts"] = [{"name": "shm", "mountPath": "/dev/shm"}]  # noqa: S108 - the place, not a file
    return found


def _resources(job: JobSpec) -> dict[str, str]:
    wanted = job.resources
    found: dict[str, str] = {}
    if wanted.cpus is not None:
        found["cpu"] = str(wanted.cpus)
    if wanted.memory_mib is not None:
        found["memory"] = f"{wanted.memory_mib}Mi"
    if wanted.gpus:
        found["nvidia.com/gpu"] = str(wanted.gpus)
    return found


def deadline(job: JobSpec) -> Document:
    """The limit of the run, where the job has one."""
    return {} if job.timeout_s is None else {"activeDeadlineSeconds": math.ceil(job.timeout_s)}


# batch/v1.


def render_job(job: JobSpec) -> Iterator[Document]:
    """An Indexed Job whose pods find one another through a headless Service.

    Source: kubernetes.io/docs/concepts/workloads/controllers/job, "Completion mode".
    """
    port = job.master_port or get_contract(job.framework).default_port
    if job.nodes > 1:
        yield _service(job, port)
    yield {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata(job), "spec": _job_spec(job, port)}


def _service(job: JobSpec, port: int) -> Document:
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata(replace(job, queue=None)),
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,  # ranks look for one another before any is ready
            "selector": {JOB_LABEL: job.name},
            "ports": [{"name": "rendezvous", "port": port}],
        },
    }


def _job_spec(job: JobSpec, port: int) -> Document:
    template = pod_template(job, _job_container(job, port))
    if job.nodes > 1:
        template["spec"]["subdomain"] = job.name
    return {
        "parallelism": job.nodes,
        "completions": job.nodes,
        "completionMode": "Indexed",
        "backoffLimit": 0,  # a pod that comes back alone cannot join the others
        **deadline(job),
        "template": template,
    }


def _job_container(job: JobSpec, port: int) -> Document:
    contract = get_contract(job.framework)
    hosts = tuple(f"{job.name}-{node}.{job.name}" for node in range(job.nodes))
    index = INDEX if job.nodes > 1 else "0"
    place = Place(hosts, (str(port),) * job.nodes, index, job.python or "python")
    env = contract.environment(job, place)
    by_index = {name: value for name, value in env.items() if INDEX in value}
    fixed = {name: value for name, value in env.items() if name not in by_index}
    prefix = ("env", *(f"{name}={value}" for name, value in by_index.items())) if by_index else ()
    command = (*prefix, *contract.command(job, place))
    return container(job, "main", command, fixed, {"name": "rendezvous", "containerPort": port})
