"""Builds and exports that are interrupted or killed at any moment: nothing half done is left or used."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from paritygate.converter.environments import list_environments, sync
from support.environments import TinyIndex
from support.processes import assert_gone, wait_for


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TinyIndex:
    return TinyIndex(tmp_path, monkeypatch)


def _begun(directory: Path) -> bool:
    return directory.is_dir()


def _has_python(directory: Path) -> bool:
    return (directory / "bin" / "python").exists()


def _pip_is_lent(directory: Path) -> bool:
    return (directory / "pip").is_dir()


def _something_is_installed(directory: Path) -> bool:
    return any(directory.glob("lib/python*/site-packages/tinyframework*"))


def _is_tried(directory: Path) -> bool:
    return (directory.parents[1] / "tried").exists()


@pytest.mark.parametrize("moment", [_begun, _has_python, _pip_is_lent, _something_is_installed, _is_tried])
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM], ids=["kill", "term"])
def test_a_builder_that_is_killed_at_any_moment_leaves_nothing_that_is_used(
    moment: Callable[[Path], bool], number: int, index: TinyIndex
) -> None:
    tried = index.folder / "tried"
    first_time = f"import os, time\nif not os.path.exists({str(tried)!r}):\n"
    index.offer(body=f"{first_time}    open({str(tried)!r}, 'w').close()\n    time.sleep(600)\n")
    builder = index.build_in_another_process()
    wait_for(lambda: moment(index.spec.directory))
    builder.send_signal(number)
    builder.communicate(timeout=60)
    states = [status.state for status in list_environments() if status.directory == index.spec.directory]
    assert states == ["partial"]
    tried.touch()
    assert sync("tiny", timeout_s=60).packages == {"tinyframework": "1.0"}


def test_ctrl_c_in_a_build_leaves_nothing(index: TinyIndex) -> None:
    pid = index.folder / "pid"
    index.offer(body=f"import os, time\nopen({str(pid)!r}, 'w').write(str(os.getpid()))\ntime.sleep(600)\n")
    builder = index.build_in_another_process()
    wait_for(lambda: pid.exists() and pid.read_text() != "")
    builder.send_signal(signal.SIGINT)
    assert "KeyboardInterrupt" in builder.communicate(timeout=60)[0]
    assert_gone(int(pid.read_text()))
    assert not index.spec.directory.exists()


def test_ctrl_c_in_an_isolated_export_leaves_nothing(here: Path) -> None:
    (here / "slow.py").write_text(
        "import os, time\n\ndef build():\n    open('pid', 'w').write(str(os.getpid()))\n    time.sleep(600)\n"
    )
    code = (
        "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "from paritygate.converter.environments.specs import SPECS\n"
        "object.__setattr__(SPECS['trees'], 'always_isolated', True)\n"
        "from paritygate.cli import main\n"
        "main(['export', 'slow:build', '-o', 'out', '--framework', 'sklearn'])\n"
    )
    export = subprocess.Popen([sys.executable, "-c", code], cwd=here, stderr=subprocess.PIPE, text=True)
    pid = here / "pid"
    wait_for(lambda: pid.exists() and pid.read_text() != "")
    export.send_signal(signal.SIGINT)
    said = export.communicate(timeout=60)[1]
    assert export.returncode == 130
    assert "Traceback" not in said
    assert_gone(int(pid.read_text()))
    assert set(os.listdir(here)) <= {"slow.py", "pid", "__pycache__"}
