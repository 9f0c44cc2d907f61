"""Fill one directory with a framework environment: a virtual environment, the pinned packages, a trial import."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import shlex
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from paritygate.converter.environments.pins import Pin, canonical, read_pins
from paritygate.converter.environments.processes import Ended, run_supervised
from paritygate.converter.environments.specs import EnvironmentSpec
from paritygate.converter.errors import EnvironmentFailure

PIP_ARGUMENTS_VARIABLE = "PARITYGATE_PIP_ARGS"

# Imports each module once, so that a wheel that does not fit this machine is found here and not in the middle of
# a user's export.
_TRIAL = "import importlib, sys; [importlib.import_module(module) for module in sys.argv[1:]]"

# The environment's own Python runs our pip: nothing but the pins is installed there, and no pip of its own costs
# its seconds.
_RUN_PIP = """
import runpy, sys
sys.path.insert(0, sys.argv.pop(1))
sys.argv[0] = "pip"
runpy.run_module("pip", run_name="__main__", alter_sys=True)
"""

Progress = Callable[[str], None]


@dataclass(frozen=True)
class _Builder:
    """One build: what is built, where, and under which limits."""

    spec: EnvironmentSpec
    directory: Path
    lock_fd: int
    timeout_s: float
    progress: Progress

    def run(self, what: str, command: Sequence[str | Path], advice: str, *, tell: bool = False) -> None:
        """Run one step; anything but success is an EnvironmentFailure with the command's own last word."""
        ended = run_supervised(
            command,
            timeout_s=self.timeout_s,
            environment=_clean_environment(),
            keep_open=(self.lock_fd,),
            on_output=self._tell if tell else None,
        )
        if not ended.ok:
            raise EnvironmentFailure(
                f"environment '{self.spec.name}' cannot be built: {what} {ended.describe()}"
                f"{_last_word(ended)}. {advice}",
                detail=ended.tail,
            )

    def _tell(self, line: bytes) -> None:
        text = line.decode("utf-8", "replace").strip()
        if text.startswith(("Collecting ", "Downloading ", "Installing collected")):
            self.progress(text.split(" (from ")[0].split(": ")[0])


def install(
    spec: EnvironmentSpec, directory: Path, *, lock_fd: int, timeout_s: float, progress: Progress
) -> None:
    """Build `spec` in `directory`, which must not exist.

    Args:
        spec: The environment.
        directory: Where it will stay; a virtual environment cannot be moved.
        lock_fd: The held build lock; it stays held until the last process of the build is gone.
        timeout_s: Limit of each of the three steps.
        progress: Told what goes on, one short line at a time.

    Raises:
        EnvironmentFailure: With one line that names the step, how it ended and its own last word.
    """
    builder = _Builder(spec, directory, lock_fd, timeout_s, progress)
    python = directory / "bin" / "python"
    progress(f"creating a virtual environment in {directory}")
    builder.run(
        "python -m venv",
        [sys.executable, "-I", "-m", "venv", "--without-pip", directory],
        "Check that the folder can be written and that Python's venv module is installed.",
    )
    pip_home = _lend_pip(spec, directory)
    pins = read_pins(spec.requirements)
    progress(f"installing {len(pins)} pinned packages with pip")
    builder.run(
        "pip install",
        [python, "-I", "-c", _RUN_PIP, pip_home, "install", *_pip_arguments(spec)],
        f"Check the network and pip's index settings (pip.conf, PIP_* variables or {PIP_ARGUMENTS_VARIABLE}), "
        f"then run `paritygate env sync {spec.name}`.",
        tell=True,
    )
    shutil.rmtree(pip_home)
    _check_installed(spec, directory, pins)
    progress(f"importing {', '.join(spec.modules)} once")
    builder.run(
        f"importing {', '.join(spec.modules)}",
        [python, "-I", "-c", _TRIAL, *spec.modules],
        f"The pinned packages do not run on this machine; see {spec.requirements}.",
    )


def _lend_pip(spec: EnvironmentSpec, directory: Path) -> Path:
    """A folder with nothing but a link to our pip: with more on its path, pip would take ours for installed."""
    found = importlib.util.find_spec("pip")
    if found is None or found.origin is None:
        raise EnvironmentFailure(
            f"environment '{spec.name}' cannot be built: {sys.executable} has no pip. "
            f"Run `{sys.executable} -m ensurepip`, then `paritygate env sync {spec.name}`."
        )
    home = directory / "pip"
    home.mkdir()
    (home / "pip").symlink_to(Path(found.origin).parent)
    return home


def _check_installed(spec: EnvironmentSpec, directory: Path, pins: Mapping[str, Pin]) -> None:
    """An option in pip.conf can make pip install something else than it was asked to."""
    found = installed(directory)
    wrong = [
        f"{pin.name} {found.get(pin.name, 'not at all')} instead of {pin.version}"
        for pin in pins.values()
        if not pin.is_met_by(found.get(pin.name, ""))
    ]
    if wrong:
        raise EnvironmentFailure(
            f"environment '{spec.name}' cannot be built: pip installed {', '.join(wrong)}. "
            f"Check pip's settings (pip.conf, PIP_* variables or {PIP_ARGUMENTS_VARIABLE})."
        )


def installed(directory: Path) -> dict[str, str]:
    """Version of each distribution that lies in an environment, by its canonical name."""
    packages = [str(folder) for folder in directory.glob("lib/python*/site-packages")]
    return {
        canonical(distribution.metadata["Name"]): distribution.version
        for distribution in importlib.metadata.distributions(path=packages)
    }


def _pip_arguments(spec: EnvironmentSpec) -> list[str]:
    # The file is complete, so pip need not resolve; wheels only, so installing runs nobody's set-up code; and only
    # wheels whose bytes are the locked ones.
    fixed = [
        "--no-deps",
        *(["--require-hashes"] if _is_locked(spec) else []),
        "--only-binary=:all:",
        "--no-input",
        "--disable-pip-version-check",
    ]
    fixed += ["--progress-bar=off", "-r", str(spec.requirements)]
    return [*fixed, *shlex.split(os.environ.get(PIP_ARGUMENTS_VARIABLE, ""))]


def _is_locked(spec: EnvironmentSpec) -> bool:
    return any(pin.hashes for pin in read_pins(spec.requirements).values())


def _clean_environment() -> dict[str, str]:
    """Our variables without those that would bring this process's Python or a venv into the new one."""
    hidden = ("PYTHON", "VIRTUAL_ENV", "PIP_REQUIRE_VIRTUALENV", "PIP_TARGET", "PIP_PREFIX", "PIP_USER")
    return {name: value for name, value in os.environ.items() if not name.startswith(hidden)}


def _last_word(ended: Ended) -> str:
    lines = [line.strip() for line in ended.tail.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("ERROR:")]
    word = (errors or lines or [""])[-1].rstrip(".")
    return f" ({word})" if word else ""
