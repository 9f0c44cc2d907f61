"""Kubeflow's training operator (v1): PyTorchJob and TFJob, written, and read back as the operator reads them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from paritygate.train_hooks.errors import ManifestError, PlanError
from paritygate.train_hooks.launch.contracts.base import Place, rank_command
from paritygate.train_hooks.launch.contracts.pytorch import TorchrunContract
from paritygate.train_hooks.launch.schedulers.kubernetes import (
    Document,
    container,
    deadline,
    metadata,
    pod_template,
)
from paritygate.train_hooks.types import JobSpec

API_VERSION = "kubeflow.org/v1"
PYTORCH_PORT = 23456
TENSORFLOW_PORT = 2222


def render_pytorchjob(job: JobSpec) -> Iterator[Document]:
    """A PyTorchJob whose pods run torchrun, which takes its flags from the PET_ variables of the operator.

    The operator's RANK counts pods; torchrun overwrites it with the rank of each process.

    Source: kubeflow/trainer, branch release-1.9, pkg/apis/kubeflow.org/v1/pytorch_types.go.
    """
    _need_framework(job, "pytorch", "pytorchjob")
    replicas: Document = {"Master": _replica(job, 1, _pytorch_container(job))}
    if job.nodes > 1:
        replicas["Worker"] = _replica(job, job.nodes - 1, _pytorch_container(job))
    yield {
        "apiVersion": API_VERSION,
        "kind": "PyTorchJob",
        "metadata": metadata(job),
        "spec": {
            "nprocPerNode": str(job.processes_per_node),
            "runPolicy": _run_policy(job),
            "pytorchReplicaSpecs": replicas,
        },
    }


def _pytorch_container(job: JobSpec) -> Document:
    contract = TorchrunContract()
    place = Place((), (), "", job.python or "python")
    restarts = f"--max-restarts={job.max_restarts}"
    command = (*contract.agent(place), restarts, *contract.program(job, place))
    port = {"name": "pytorchjob-port", "containerPort": job.master_port or PYTORCH_PORT}
    return container(job, "pytorch", command, contract.environment(job, place), port)


def render_tfjob(job: JobSpec) -> Iterator[Document]:
    """A TFJob of workers only, whose TF_CONFIG the operator computes; worker 0 is the chief.

    Source: kubeflow/trainer, branch release-1.9, pkg/apis/kubeflow.org/v1/tensorflow_types.go.
    """
    _need_framework(job, "tensorflow", "tfjob")
    port = {"name": "tfjob-port", "containerPort": job.master_port or TENSORFLOW_PORT}
    command = rank_command(job, Place((), (), "", job.python or "python"))
    worker = _replica(job, job.nodes, container(job, "tensorflow", command, {}, port))
    yield {
        "apiVersion": API_VERSION,
        "kind": "TFJob",
        "metadata": metadata(job),
        "spec": {
            "runPolicy": _run_policy(job),
            "successPolicy": "AllWorkers",
            "tfReplicaSpecs": {"Worker": worker},
        },
    }


def _need_framework(job: JobSpec, framework: str, kind: str) -> None:
    if job.framework != framework:
        raise PlanError(
            f"kind {kind} runs {framework} jobs, job {job.name} is {job.framework}; use kind job."
        )


def _replica(job: JobSpec, count: int, main: Document) -> Document:
    return {"replicas": count, "restartPolicy": "Never", "template": pod_template(job, main)}


def _run_policy(job: JobSpec) -> Document:
    return {"backoffLimit": 0, "cleanPodPolicy": "Running", **deadline(job)}


# Reading: what the operator will tell each pod.


@dataclass(frozen=True)
class PodEnvironment:
    """One pod of a job and the rendezvous variables that the operator adds to its main container."""

    name: str
    env: Mapping[str, str]


def operator_environment(document: Mapping[str, Any]) -> tuple[PodEnvironment, ...]:
    """The pods of a PyTorchJob or TFJob, that of rank 0 first, with the variables that the operator injects.

    Raises:
        ManifestError: If it is another kind, or a job in which the operator would leave ranks without them.
    """
    readers = {"PyTorchJob": _read_pytorchjob, "TFJob": _read_tfjob}
    kind = document.get("kind")
    if document.get("apiVersion") != API_VERSION or kind not in readers:
        raise ManifestError(
            f"{document.get('apiVersion')} {kind} is not read; expected {API_VERSION} {' or '.join(readers)}."
        )
    return tuple(readers[kind](document))


def _read_pytorchjob(document: Mapping[str, Any]) -> Iterator[PodEnvironment]:
    name, spec = _name_and_spec(document)
    roles = _roles(name, spec, "pytorchReplicaSpecs", ("Master", "Worker"))
    for role, replica in roles.items():
        _main_container(name, role, replica, "pytorch")
    if _count(roles.get("Master")) != 1:
        raise ManifestError(
            f"PyTorchJob {name} has {_count(roles.get('Master'))} replicas of Master, and needs exactly 1: "
            "without it the operator sets neither MASTER_ADDR nor RANK. "
            "Add a Master, and take one replica off Worker."
        )
    nodes = 1 + _count(roles.get("Worker"))
    port = _port(roles["Master"], "pytorch", "pytorchjob-port", PYTORCH_PORT)
    pods = [f"{name}-master-0", *(f"{name}-worker-{index}" for index in range(nodes - 1))]
    for rank, pod in enumerate(pods):
        yield PodEnvironment(pod, _pytorch_variables(pods[0], port, spec.get("nprocPerNode"), nodes, rank))


def _pytorch_variables(master: str, port: int, processes: Any, nodes: int, rank: int) -> dict[str, str]:
    """What the operator injects; RANK counts pods, and a number of processes that is no number counts as one.

    Source: kubeflow/trainer, branch release-1.9, pkg/controller.v1/pytorch/envvar.go.
    """
    text = str(processes) if processes is not None else "auto"
    world_size = nodes * (int(text) if text.isdecimal() else 1)
    return {
        "MASTER_ADDR": master,
        "MASTER_PORT": str(port),
        "WORLD_SIZE": str(world_size),
        "RANK": str(rank),
        "PET_MASTER_ADDR": master,
        "PET_MASTER_PORT": str(port),
        "PET_NNODES": str(nodes),
        "PET_NODE_RANK": str(rank),
        "PET_NPROC_PER_NODE": text,
    }


def _read_tfjob(document: Mapping[str, Any]) -> Iterator[PodEnvironment]:
    name, spec = _name_and_spec(document)
    if spec.get("enableDynamicWorker"):
        raise ManifestError(
            f"TFJob {name}: spec.enableDynamicWorker gives workers a sparse TF_CONFIG, which is not read here; "
            "set it to false."
        )
    roles = _roles(name, spec, "tfReplicaSpecs", ("Chief", "Master", "Worker", "PS", "Evaluator"))
    namespace = document["metadata"].get("namespace", "default")
    cluster = {role.lower(): _addresses(name, namespace, role, replica) for role, replica in roles.items()}
    several = sum(map(len, cluster.values())) > 1
    for role, addresses in cluster.items():
        for index in range(len(addresses)):
            value = {"cluster": cluster, "task": {"type": role, "index": index}, "environment": "cloud"}
            env = {"TF_CONFIG": json.dumps(value)} if several else {}
            yield PodEnvironment(f"{name}-{role}-{index}", env)


def _addresses(name: str, namespace: str, role: str, replica: Mapping[str, Any]) -> list[str]:
    _main_container(name, role, replica, "tensorflow")
    port = _port(replica, "tensorflow", "tfjob-port", TENSORFLOW_PORT)
    return [f"{name}-{role.lower()}-{index}.{namespace}.svc:{port}" for index in range(_count(replica))]


def _name_and_spec(document: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]]:
    metadata_part, spec = document.get("metadata"), document.get("spec")
    if (
        not isinstance(metadata_part, Mapping)
        or not metadata_part.get("name")
        or not isinstance(spec, Mapping)
    ):
        raise ManifestError(f"{document.get('kind')} has no metadata.name or no spec; expected both.")
    return str(metadata_part["name"]), spec


def _roles(
    name: str, spec: Mapping[str, Any], field: str, known: tuple[str, ...]
) -> dict[str, Mapping[str, Any]]:
    """The roles of a job, in the operator's own order."""
    given = spec.get(field)
    if not isinstance(given, Mapping) or not given:
        raise ManifestError(f"job {name}: spec.{field} is missing; expected roles of {', '.join(known)}.")
    unknown = sorted(set(given) - set(known))
    if unknown:
        raise ManifestError(
            f"job {name}: spec.{field}.{unknown[0]} is no role; expected one of {', '.join(known)}."
        )
    return {role: given[role] for role in known if role in given}


def _count(replica: Mapping[str, Any] | None) -> int:
    if replica is None:
        return 0
    value = replica.get("replicas", 1)
    return int(value) if value is not None else 1


def _main_container(name: str, role: str, replica: Mapping[str, Any], wanted: str) -> Mapping[str, Any]:
    """The container that the operator adds its variables to; it knows it by its name alone.

    Raises:
        ManifestError: If there is none of that name.
    """
    try:
        containers = replica["template"]["spec"]["containers"]
        found = [str(entry["name"]) for entry in containers]
    except (KeyError, TypeError) as error:
        raise ManifestError(f"job {name}: {role} has no template.spec.containers with names.") from error
    if wanted not in found:
        raise ManifestError(
            f"job {name}: {role} has no container called {wanted} (it has {', '.join(found)}); "
            f"the operator sets the rank variables only there. Rename the container that trains to {wanted}."
        )
    main: Mapping[str, Any] = containers[found.index(wanted)]
    return main


def _port(replica: Mapping[str, Any], main: str, name: str, default: int) -> int:
    ports = _main_container("", "", replica, main).get("ports") or []
    return next((int(port["containerPort"]) for port in ports if port.get("name") == name), default)
