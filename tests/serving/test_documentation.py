"""docs/gateway.md names every setting, every metric and every code that there is."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest

from paritygate.serving.config import Settings
from paritygate.serving.dataplane import EXTENSIONS
from paritygate.serving.facades.http_errors import STATUS
from paritygate.serving.facades.v2_grpc import CODES

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "gateway.md").read_text()
FLAGS = {"repository": "--repo", "rollouts_dir": "--rollouts", "load_models": "--load-model"}


@pytest.mark.parametrize("name", [field.name for field in dataclasses.fields(Settings)])
def test_setting_is_told(name: str) -> None:
    assert re.search(rf"{FLAGS.get(name, '--' + name.replace('_', '-'))}\b", PAGE)


def test_flags_in_the_page_exist() -> None:
    from typer.main import get_command

    from paritygate.cli import build_app

    told = set(re.findall(r"(--[a-z][a-z-]+)", PAGE))
    (serve,) = [c for name, c in get_command(build_app()).commands.items() if name == "serve"]  # type: ignore[attr-defined]
    known = {option for parameter in serve.params for option in parameter.opts}
    assert told - known == set()


def test_metrics_are_told() -> None:
    source = (ROOT / "serving" / "telemetry.py").read_text()
    names = set(re.findall(r'"((?:nv|paritygate)_[a-z_]+)"', source))
    assert len(names) > 12
    assert {name for name in names if name not in PAGE} == set()


def test_codes_and_extensions_are_told() -> None:
    for kind, status in STATUS.items():
        assert re.search(rf"\| {status} \| {CODES[kind].name} \|", PAGE), kind
    assert all(extension in PAGE for extension in EXTENSIONS)
