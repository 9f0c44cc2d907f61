"""One process for each framework environment, which exports the conformance cases one after another."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Any

from paritygate.converter.environments import SPECS
from support.environments import real_environment
from support.export_case import Job, encode
from support.shared import ROOT


class ExportWorker:
    """A worker in the environment of a framework, or in this interpreter; started on its first job."""

    def __init__(self, environment: str | None) -> None:
        self._environment = environment
        self._folder = tempfile.TemporaryDirectory(prefix="paritygate-worker-")
        self._process: subprocess.Popen[str] | None = None
        self._answers: Any = None

    def __enter__(self) -> ExportWorker:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop()
        self._folder.cleanup()

    def run(self, job: Job) -> dict[str, Any]:
        """The worker's answer; one that dies is started anew for the next job."""
        if self._process is None:
            self._start()
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.write(encode(job))
        self._process.stdin.flush()
        line = self._answers.readline()
        if line:
            answer: dict[str, Any] = json.loads(line)
            return answer
        code = self._process.wait()
        lines = Path(self._folder.name, "stderr").read_text("utf-8", errors="replace").splitlines()
        self._stop()
        return {"error": ["WorkerDied"], "said": f"the worker ended with {code}: {' | '.join(lines[-30:])}"}

    def _start(self) -> None:
        folder = Path(self._folder.name)
        link = folder / "path" / "paritygate"
        if not link.is_symlink():
            link.parent.mkdir()
            link.symlink_to(ROOT / "paritygate")
        python = sys.executable if self._environment is None else real_environment(self._environment).python
        own = {} if self._environment is None else SPECS[self._environment].variables
        reading, writing = os.pipe()
        with (folder / "stderr").open("ab") as log:
            self._process = subprocess.Popen(
                [python, "-m", "support.export_case", str(writing)],
                stdin=subprocess.PIPE, stdout=log, stderr=log, text=True, pass_fds=(writing,), cwd=folder,
                env={**os.environ, **own, "PYTHONPATH": f"{link.parent}{os.pathsep}{ROOT / 'tests'}",
                     "KERAS_HOME": str(folder / "keras"), "CUDA_VISIBLE_DEVICES": ""},
            )  # fmt: skip
        os.close(writing)
        self._answers = open(reading, encoding="utf-8")  # noqa: SIM115 - open as long as the process

    def _stop(self) -> None:
        if self._process is None:
            return
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._answers.close()
        self._process = None
