"""What docs/launching.md shows is what the code takes."""

from __future__ import annotations

import dataclasses
import re

import yaml

from paritygate.train_hooks.config import build_job, parse_job
from paritygate.train_hooks.launch.contracts import CONTRACTS
from paritygate.train_hooks.launch.schedulers import SCHEDULERS
from paritygate.train_hooks.launch.schedulers.kubernetes import KINDS
from paritygate.train_hooks.types import ExportSpec, JobSpec, Resources
from support.shared import ROOT

TEXT = (ROOT / "docs" / "launching.md").read_text(encoding="utf-8")


def test_the_job_file_shown_is_a_job() -> None:
    (shown,) = re.findall(r"```yaml\n(.*?)```", TEXT, flags=re.DOTALL)
    job = parse_job(shown)
    assert job.world_size == 2


def test_every_field_of_a_job_is_explained() -> None:
    rows = "\n".join(line for line in TEXT.splitlines() if line.startswith("| `"))
    names = {field.name for kind in (JobSpec, Resources, ExportSpec) for field in dataclasses.fields(kind)}
    assert {name for name in names - {"directory"} if f"`{name}`" not in rows} == set()


def test_every_framework_scheduler_and_kind_is_named() -> None:
    assert {name for name in (*CONTRACTS, *SCHEDULERS, *KINDS) if name not in TEXT} == set()


def test_the_faults_shown_are_those_that_are_told() -> None:
    from paritygate.train_hooks.errors import JobFileError

    value = {**yaml.safe_load("{schema: paritygate.job/v1, name: a, framework: jax, script: a.py}")}
    try:
        build_job({**value, "processes_per_node": 0, "nodse": 1}, source="job.yaml")
    except JobFileError as error:
        told = str(error)
    assert " ".join(told.split()) in " ".join(TEXT.split())
