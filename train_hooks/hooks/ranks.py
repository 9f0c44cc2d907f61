"""Which rank this process is, as the environment says it; no framework is needed to read it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from paritygate.train_hooks.errors import RankUnclear
from paritygate.train_hooks.types import Rank

ALONE = Rank(0, 1)


def rank_of_job(environ: Mapping[str, str]) -> Rank:
    """The rank by any starter's variables, for code that knows no framework; `ALONE` where none are set.

    Raises:
        RankUnclear: If a starter's variables name no rank.
    """
    readers = (rank_from_torch, rank_from_tf_config, rank_from_paddle, rank_from_msrun)
    return next((rank for rank in (read(environ) for read in readers) if rank is not None), ALONE)


def rank_from_torch(environ: Mapping[str, str]) -> Rank | None:
    """The rank that torchrun, or any starter with its contract, has set; None where RANK is not set.

    Raises:
        RankUnclear: If RANK and WORLD_SIZE are not a rank of a world.
    """
    if not environ.get("RANK"):
        return None
    rank, world_size = environ["RANK"], environ.get("WORLD_SIZE") or "1"
    if not (rank.isdecimal() and world_size.isdecimal() and int(rank) < int(world_size)):
        raise RankUnclear(
            f"RANK={rank!r} and WORLD_SIZE={world_size!r} do not name a rank; expected 0 <= RANK < WORLD_SIZE. "
            "Start the script with torchrun or paritygate launch, or unset both."
        )
    return Rank(int(rank), int(world_size))


def rank_from_paddle(environ: Mapping[str, str]) -> Rank | None:
    """The rank that paddle.distributed.launch has set; None where PADDLE_TRAINER_ID is not set.

    Raises:
        RankUnclear: If PADDLE_TRAINER_ID and PADDLE_TRAINERS_NUM are not a rank of a world.
    """
    if not environ.get("PADDLE_TRAINER_ID"):
        return None
    rank, world_size = environ["PADDLE_TRAINER_ID"], environ.get("PADDLE_TRAINERS_NUM") or "1"
    if not (rank.isdecimal() and world_size.isdecimal() and int(rank) < int(world_size)):
        raise RankUnclear(
            f"PADDLE_TRAINER_ID={rank!r} and PADDLE_TRAINERS_NUM={world_size!r} do not name a rank; expected "
            "0 <= PADDLE_TRAINER_ID < PADDLE_TRAINERS_NUM. Start the script with python -m "
            "paddle.distributed.launch, or unset both."
        )
    return Rank(int(rank), int(world_size))


def rank_from_msrun(environ: Mapping[str, str]) -> Rank | None:
    """What `msrun` has set for a worker; None where it has not.

    Raises:
        RankUnclear: If it is no rank of a world.
    """
    rank, world_size = environ.get("MS_NODE_ID"), environ.get("MS_WORKER_NUM")
    if not rank or not world_size:
        return None
    if not (rank.isdecimal() and world_size.isdecimal() and int(rank) < int(world_size)):
        raise RankUnclear(
            f"MS_NODE_ID={rank!r} and MS_WORKER_NUM={world_size!r} do not name a rank; expected 0 <= MS_NODE_ID < "
            "MS_WORKER_NUM. Start the script with msrun or paritygate launch, or unset both."
        )
    return Rank(int(rank), int(world_size))


def rank_from_tf_config(environ: Mapping[str, str]) -> Rank | None:
    """The rank that TF_CONFIG means; None where it is not set.

    The chief is first; without a chief, worker 0 is. Every other task (parameter server, evaluator) comes after
    the workers, so that it never exports.

    Raises:
        RankUnclear: If TF_CONFIG is no cluster with a task in it.
    """
    text = environ.get("TF_CONFIG")
    if not text:
        return None
    try:
        value = json.loads(text)
        return _rank_of_task(value.get("cluster") or {}, value.get("task") or {})
    except (ValueError, TypeError, AttributeError, KeyError) as error:
        raise RankUnclear(
            f"TF_CONFIG={text[:80]!r} is not a cluster with a task in it; expected "
            '{"cluster": {"worker": [...]}, "task": {"type": "worker", "index": 0}}.'
        ) from error


def _rank_of_task(cluster: Mapping[str, Any], task: Mapping[str, Any]) -> Rank | None:
    if not cluster:
        return None
    first = [(role, index) for role in ("chief", "master", "worker") for index in _indices(cluster.get(role))]
    rest = [
        (role, i)
        for role in sorted(set(cluster) - {"chief", "master", "worker"})
        for i in _indices(cluster[role])
    ]
    tasks = first + rest
    own = (str(task["type"]), int(task["index"]))
    if own not in tasks:
        if own[0] == "evaluator":  # usually left out of the cluster
            return Rank(len(tasks), len(tasks) + 1)
        raise ValueError(f"task {own} is not in the cluster")
    return Rank(tasks.index(own), len(tasks))


def _indices(addresses: Any) -> list[int]:
    """Task numbers of a role: its addresses are a list, or a sparse map of number to address."""
    if addresses is None:
        return []
    return (
        [int(index) for index in addresses] if isinstance(addresses, Mapping) else list(range(len(addresses)))
    )
