"""Framework environments for tests: the real ones, one that is this interpreter, and tiny ones to break."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from pathlib import Path

import pytest

import paritygate
from paritygate.converter.environments import SPECS, Environment, EnvironmentSpec, sync
from paritygate.converter.environments.manager import MARKER_FILE, MARKER_SCHEMA
from paritygate.converter.processes import run_supervised


def real_environment(name: str) -> Environment:
    """The real environment, built from the package registry into the user's cache if it is not there yet."""
    return sync(name, lambda line: print(f"[{name}] {line}", flush=True), timeout_s=1500)


def this_interpreter_as(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> EnvironmentSpec:
    """A complete environment whose interpreter is this one, so that the child's ways can be tried in seconds."""
    monkeypatch.setenv("PARITYGATE_ENV_DIR", str(folder))
    spec = SPECS[name]
    python = spec.directory / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    marker = {"schema": MARKER_SCHEMA, "name": name, "packages": {}, "build_seconds": 0.0}
    (spec.directory / MARKER_FILE).write_text(json.dumps(marker))
    return spec


class TinyIndex:
    """A folder of wheels with one package each test may fill; pip sees nothing else."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        (folder / "wheels").mkdir(parents=True)
        monkeypatch.setenv("PARITYGATE_ENV_DIR", str(folder / "environments"))
        monkeypatch.setenv("PARITYGATE_PIP_ARGS", f"--no-index --find-links {folder / 'wheels'}")
        self._requirements = folder / "tiny.txt"
        monkeypatch.setattr(EnvironmentSpec, "requirements", property(lambda _spec: self._requirements))
        monkeypatch.setitem(SPECS, "tiny", EnvironmentSpec("tiny", ("tiny-exporter",), ("tinyframework",)))
        self.pin("tinyframework==1.0")

    @property
    def spec(self) -> EnvironmentSpec:
        return SPECS["tiny"]

    def build_in_another_process(self, *wrapper: str) -> subprocess.Popen[str]:
        """Start a `sync` of this environment in a process of its own, which `wrapper` may start."""
        script = (
            "import signal, sys; from pathlib import Path\n"
            "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
            "from paritygate.converter.environments import SPECS, EnvironmentSpec, sync\n"
            "from paritygate.converter.errors import EnvironmentFailure\n"
            "EnvironmentSpec.requirements = property(lambda spec: Path(sys.argv[1]))\n"
            "SPECS['tiny'] = EnvironmentSpec('tiny', (), ('tinyframework',))\n"
            "try:\n"
            "    print(sync('tiny', print).directory)\n"
            "except EnvironmentFailure as failure:\n"
            "    sys.exit(f'failure: {failure}')\n"
        )
        command = [*wrapper, sys.executable, "-c", script, str(self._requirements)]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    def pin(self, *lines: str) -> None:
        """Write the requirements file."""
        self._requirements.write_text("# pins\n" + "".join(f"{line}\n" for line in lines))

    def lock(self, wheel: Path) -> None:
        """Write a requirements file that allows the bytes of this wheel and no others."""
        name, version = wheel.name.split("-")[:2]
        self.pin(
            f"{name}=={version} \\", f"    --hash=sha256:{hashlib.sha256(wheel.read_bytes()).hexdigest()}"
        )

    def offer(
        self, version: str = "1.0", body: str = "", name: str = "tinyframework", requires: Sequence[str] = ()
    ) -> Path:
        """Put a wheel of one module into the index; `body` is what importing it runs."""
        info = f"{name}-{version}.dist-info"
        files = {
            f"{name}.py": body,
            f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
            + "".join(f"Requires-Dist: {each}\n" for each in requires),
            f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        }
        record = [f"{path},sha256={_digest(text)},{len(text.encode())}" for path, text in files.items()]
        files[f"{info}/RECORD"] = "\n".join([*record, f"{info}/RECORD,,"]) + "\n"
        path = self.folder / "wheels" / f"{name}-{version}-py3-none-any.whl"
        with zipfile.ZipFile(path, "w") as wheel:
            for file, text in files.items():
                wheel.writestr(file, text)
        return path


def _digest(text: str) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()


def run_in(environment: Environment, script: Path, *arguments: str | Path, folder: Path) -> None:
    """Run a script with an environment's Python; of this checkout it sees the package and `tests/` only."""
    link = folder / "path" / "paritygate"
    if not link.is_symlink():
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(Path(paritygate.__file__).parent)
    start = (
        "import runpy, sys; sys.path[:0] = sys.argv.pop(1).split(':');"
        "sys.argv.pop(0); runpy.run_path(sys.argv[0], run_name='__main__')"
    )
    path = f"{link.parent}:{Path(__file__).parents[1]}"
    ended = run_supervised(
        [environment.python, "-I", "-c", start, path, script, *arguments],
        timeout_s=280,
        environment={**os.environ, **SPECS[environment.name].variables, "KERAS_HOME": str(folder / "keras")},
    )
    assert ended.ok, f"{script.name} {ended.describe()}:\n{ended.tail}"
