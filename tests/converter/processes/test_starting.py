"""Commands that are spoken with while they run, and those that cannot be started at all."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from paritygate.converter.exporters._onnx.referee import Limits, Referee
from paritygate.converter.processes import run_supervised, start_supervised
from support.processes import assert_gone

_ECHO = (
    "import os, sys; channel = int(os.environ['PARITYGATE_CHANNEL_FD'])\n"
    "for line in sys.stdin: os.write(channel, f'{os.getpid()} {line}'.encode())"
)


def _open_descriptors() -> set[tuple[str, str]]:
    found = set()
    for name in os.listdir("/proc/self/fd"):
        try:
            found.add((name, os.readlink(f"/proc/self/fd/{name}")))
        except FileNotFoundError:  # the one that listed them
            continue
    return found


def test_a_command_answers_on_its_channel_and_is_gone_when_it_is_closed() -> None:
    before = _open_descriptors()
    with start_supervised(
        [sys.executable, "-I", "-c", _ECHO], stdin=subprocess.PIPE, with_channel=True
    ) as started:
        assert started.process.stdin is not None
        assert started.channel_fd is not None
        started.process.stdin.write(b"question\n")
        started.process.stdin.flush()
        pid, said = os.read(started.channel_fd, 1000).split()
        assert said == b"question"
    assert_gone(int(pid))
    assert _open_descriptors() == before


def test_what_a_dead_command_did_not_read_does_not_spoil_the_end() -> None:
    with start_supervised(["true"], stdin=subprocess.PIPE) as started:
        assert started.process.wait() == 0
        assert started.process.stdin is not None
        started.process.stdin.write(b"unread")


def _run(_folder: Path) -> object:
    return run_supervised(["true"], timeout_s=10, on_channel=print)


def _start(_folder: Path) -> object:
    return start_supervised(["true"], stdin=subprocess.PIPE, with_channel=True)


def _ask(folder: Path) -> object:
    return Referee(folder, ("y",), Limits(10.0, 2**30)).check()


@pytest.mark.parametrize("start", [_run, _start, _ask])
def test_a_command_that_cannot_be_started_leaves_no_descriptor_open(
    start: Callable[[Path], object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_arguments: object, **_options: object) -> None:
        raise BlockingIOError("no processes left")

    before = _open_descriptors()
    monkeypatch.setattr(subprocess, "Popen", refuse)
    with pytest.raises(BlockingIOError, match="no processes left"):
        start(tmp_path)
    assert _open_descriptors() == before


def test_what_opens_an_onnx_file_does_not_load_the_environments() -> None:
    script = (
        "import json, sys; import paritygate.converter.exporters._onnx.answering, "
        "paritygate.converter.exporters.onnx_file; print(json.dumps(list(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    loaded = set(json.loads(done.stdout))
    assert "paritygate.converter.processes" in loaded
    assert not {name for name in loaded if name.startswith("paritygate.converter.environments")}
