"""Every training hook of the registry: it owns the models of its framework, alone, and imports none."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pkgutil import resolve_name

import pytest

from paritygate.converter.exporters import EXPORTERS
from paritygate.train_hooks.errors import ModelRefused
from paritygate.train_hooks.hooks import HOOKS, find_hook
from paritygate.train_hooks.hooks.base import Hook
from support.export_case import Job, ask_hook
from support.export_worker import ExportWorker
from support.exporter_cases import cases_of

WITHOUT_TRAINING = {"onnx", "pmml"}
"""Formats of files: nothing trains in them."""


def _is_here(exporter: str) -> bool:
    return importlib.util.find_spec(cases_of(exporter).module) is not None


def _with_marks(name: str) -> object:
    exporter = str(resolve_name(HOOKS[name]).framework)
    return pytest.param(name, id=name, marks=() if _is_here(exporter) else pytest.mark.real)


def test_every_framework_that_trains_has_a_hook() -> None:
    owned = {resolve_name(target).framework for target in HOOKS.values()}
    assert owned == set(EXPORTERS) - WITHOUT_TRAINING


@pytest.mark.parametrize("name", [_with_marks(name) for name in HOOKS])
def test_hook_alone_owns_a_model_of_its_framework(name: str) -> None:
    exporter = resolve_name(HOOKS[name]).framework
    job = Job(exporter, "hook", "", "")
    if _is_here(exporter):
        said = ask_hook(job)
    else:
        with ExportWorker(cases_of(exporter).environment) as worker:
            said = worker.run(job)
    assert said == {"framework": exporter, "owners": [name], "first": True, "same": True}


@pytest.mark.parametrize("name", HOOKS)
def test_hook_does_not_own_what_is_no_model(name: str) -> None:
    hook: Hook = resolve_name(HOOKS[name])()
    assert not any(hook.owns(thing) for thing in (None, 1, "text", [], {}, object(), print))


def test_what_no_hook_owns_is_refused_with_the_list() -> None:
    with pytest.raises(
        ModelRefused, match=r"no hook for a model of builtins\.object; expected a model of one of"
    ):
        find_hook(object())


def test_looking_for_a_hook_imports_no_framework() -> None:
    script = (
        "import sys\nfrom paritygate.train_hooks.hooks import find_hook\n"
        "from paritygate.train_hooks.errors import ModelRefused\n"
        "try: find_hook(object())\nexcept ModelRefused: pass\n"
        "wanted = 'torch tensorflow keras jax flax mindspore paddle sklearn xgboost lightgbm onnx'.split()\n"
        "print([name for name in wanted if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
