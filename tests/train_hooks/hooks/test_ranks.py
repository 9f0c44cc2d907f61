"""Which rank a process is, from the variables of torchrun, of PaddlePaddle and of TensorFlow."""

from __future__ import annotations

import json
from typing import Any

import pytest

from paritygate.train_hooks.errors import RankUnclear
from paritygate.train_hooks.hooks.ranks import (
    rank_from_paddle,
    rank_from_tf_config,
    rank_from_torch,
    rank_of_job,
)
from paritygate.train_hooks.types import Rank


@pytest.mark.parametrize(
    ("environ", "rank"),
    [
        ({}, None),
        ({"RANK": ""}, None),
        ({"RANK": "0"}, Rank(0, 1)),
        ({"RANK": "3", "WORLD_SIZE": "4"}, Rank(3, 4)),
    ],
    ids=["unset", "empty", "alone", "last"],
)
def test_torch_variables_are_read(environ: dict[str, str], rank: Rank | None) -> None:
    assert rank_from_torch(environ) == rank


@pytest.mark.parametrize(
    "environ",
    [
        {"RANK": "one"},
        {"RANK": "-1"},
        {"RANK": "2", "WORLD_SIZE": "2"},
        {"RANK": "1"},
        {"RANK": "0", "WORLD_SIZE": "x"},
    ],
    ids=["word", "negative", "outside", "no-world", "world-word"],
)
def test_torch_variables_that_are_no_rank_are_refused(environ: dict[str, str]) -> None:
    with pytest.raises(RankUnclear, match="do not name a rank; expected 0 <= RANK < WORLD_SIZE"):
        rank_from_torch(environ)


@pytest.mark.parametrize(
    ("environ", "rank"),
    [
        ({}, None),
        ({"PADDLE_TRAINER_ID": ""}, None),
        ({"PADDLE_TRAINER_ID": "0"}, Rank(0, 1)),
        ({"PADDLE_TRAINER_ID": "3", "PADDLE_TRAINERS_NUM": "4"}, Rank(3, 4)),
    ],
    ids=["unset", "empty", "alone", "last"],
)
def test_paddle_variables_are_read(environ: dict[str, str], rank: Rank | None) -> None:
    assert rank_from_paddle(environ) == rank


@pytest.mark.parametrize(
    "environ",
    [
        {"PADDLE_TRAINER_ID": "one"},
        {"PADDLE_TRAINER_ID": "1"},
        {"PADDLE_TRAINER_ID": "2", "PADDLE_TRAINERS_NUM": "2"},
        {"PADDLE_TRAINER_ID": "0", "PADDLE_TRAINERS_NUM": "x"},
    ],
    ids=["word", "no-world", "outside", "world-word"],
)
def test_paddle_variables_that_are_no_rank_are_refused(environ: dict[str, str]) -> None:
    with pytest.raises(RankUnclear, match="do not name a rank; expected 0 <= PADDLE_TRAINER_ID <"):
        rank_from_paddle(environ)


def tf_config(cluster: dict[str, Any], role: str, index: int) -> dict[str, str]:
    return {"TF_CONFIG": json.dumps({"cluster": cluster, "task": {"type": role, "index": index}})}


WORKERS = {"worker": ["a:1", "b:1"]}
ALL_ROLES = {"ps": ["p:1"], "worker": ["a:1", "b:1"], "chief": ["c:1"]}


@pytest.mark.parametrize(
    ("cluster", "role", "index", "rank"),
    [
        (WORKERS, "worker", 0, Rank(0, 2)),
        (WORKERS, "worker", 1, Rank(1, 2)),
        (ALL_ROLES, "chief", 0, Rank(0, 4)),
        (ALL_ROLES, "worker", 0, Rank(1, 4)),
        (ALL_ROLES, "ps", 0, Rank(3, 4)),
        ({"master": ["m:1"], "worker": ["a:1"]}, "master", 0, Rank(0, 2)),
        (WORKERS, "evaluator", 0, Rank(2, 3)),
        ({"ps": ["p:1"]}, "ps", 0, Rank(0, 1)),
        ({"worker": {"0": "a:1", "5": "b:1"}}, "worker", 5, Rank(1, 2)),
    ],
    ids=[
        "worker-0",
        "worker-1",
        "chief",
        "worker-after-chief",
        "ps-last",
        "master",
        "evaluator",
        "ps-only",
        "sparse",
    ],
)
def test_the_chief_or_worker_0_is_first(cluster: dict[str, Any], role: str, index: int, rank: Rank) -> None:
    assert rank_from_tf_config(tf_config(cluster, role, index)) == rank


def test_no_cluster_is_no_rank() -> None:
    assert rank_from_tf_config({}) is None
    assert rank_from_tf_config({"TF_CONFIG": "{}"}) is None


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[]",
        '{"cluster": {"worker": ["a"]}}',
        '{"cluster": {"worker": ["a"]}, "task": {"type": "worker", "index": 3}}',
    ],
    ids=["broken", "list", "no-task", "outside"],
)
def test_a_tf_config_that_names_no_task_is_refused(text: str) -> None:
    with pytest.raises(RankUnclear, match="is not a cluster with a task in it; expected"):
        rank_from_tf_config({"TF_CONFIG": text})


_SECOND_WORKER = json.dumps({"cluster": {"worker": ["a", "b"]}, "task": {"type": "worker", "index": 1}})


@pytest.mark.parametrize(
    ("environ", "rank"),
    [
        ({}, Rank(0, 1)),
        ({"RANK": "1", "WORLD_SIZE": "2"}, Rank(1, 2)),
        ({"PADDLE_TRAINER_ID": "3", "PADDLE_TRAINERS_NUM": "4"}, Rank(3, 4)),
        ({"MS_NODE_ID": "1", "MS_WORKER_NUM": "2"}, Rank(1, 2)),
        ({"TF_CONFIG": _SECOND_WORKER}, Rank(1, 2)),
    ],
    ids=["alone", "torch", "paddle", "msrun", "tensorflow"],
)
def test_the_rank_of_any_starter_is_read(environ: dict[str, str], rank: Rank) -> None:
    assert rank_of_job(environ) == rank


@pytest.mark.parametrize("environ", [{"PADDLE_TRAINER_ID": "x"}, {"MS_NODE_ID": "2", "MS_WORKER_NUM": "2"}])
def test_a_starters_variables_that_are_no_rank_are_refused(environ: dict[str, str]) -> None:
    with pytest.raises(RankUnclear, match="do not name a rank"):
        rank_of_job(environ)
