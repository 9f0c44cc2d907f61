"""Fill one directory with a framework environment: a virtual environment, the pinned packages, a trial import."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from paritygate.converter.environments.pins import Pin, installed, needed_by, read_pins
from paritygate.converter.environments.pip_command import (
    PIP_ARGUMENTS_VARIABLE,
    clean_environment,
    install_arguments,
    lend_pip,
    pip_command,
    pip_environment,
)
from paritygate.converter.environments.pip_output import PipOutput, explain
from paritygate.converter.environments.progress import Progress
from paritygate.converter.environments.specs import EnvironmentSpec
from paritygate.converter.errors import EnvironmentFailure
from paritygate.converter.processes import run_supervised

# Imports each module once, so that a wheel that does not fit this machine is found here and not in the middle of
# a user's export.
TRIAL = "import importlib, sys; [importlib.import_module(module) for module in sys.argv[1:]]"


def install(
    spec: EnvironmentSpec, directory: Path, *, lock_fd: int, timeout_s: float, progress: Progress
) -> None:
    """Build `spec` in `directory`, which must not exist.

    Args:
        spec: The environment.
        directory: Where it will stay; a virtual environment cannot be moved.
        lock_fd: The held build lock; it stays held until the last process of the build is gone.
        timeout_s: Limit of each of the three steps.
        progress: Told what goes on.

    Raises:
        EnvironmentFailure: With one line that names the step, why it failed and what to do.
    """
    builder = _Builder(spec, directory, lock_fd, timeout_s)
    progress.say(f"creating a virtual environment in {directory}")
    builder.run("python -m venv", [sys.executable, "-I", "-m", "venv", "--without-pip", directory])
    _install_pins(builder, progress)
    progress.say(f"importing {', '.join(spec.modules)} once")
    builder.run(
        f"importing {', '.join(spec.modules)}",
        [builder.python, "-I", "-c", TRIAL, *spec.modules],
        advice=f"The pinned packages do not run on this machine; see {spec.requirements}.",
    )


@dataclass(frozen=True)
class _Builder:
    """One build: what is built, where, and under which limits."""

    spec: EnvironmentSpec
    directory: Path
    lock_fd: int
    timeout_s: float

    @property
    def python(self) -> Path:
        return self.directory / "bin" / "python"

    def run(
        self,
        what: str,
        command: Sequence[str | Path],
        output: PipOutput | None = None,
        *,
        environment: Mapping[str, str] | None = None,
        advice: str = "",
    ) -> None:
        """Run one step; anything but success is an EnvironmentFailure."""
        ended = run_supervised(
            command,
            timeout_s=self.timeout_s,
            environment=clean_environment() if environment is None else environment,
            keep_open=(self.lock_fd,),
            on_output=output.hear if output else None,
            on_tick=output.look if output else None,
        )
        if not ended.ok:
            said = list(output.said) if output else ended.tail.splitlines()
            reason, what_to_do = explain(self.spec, self.directory, what, ended, said)
            raise EnvironmentFailure(
                f"environment '{self.spec.name}' cannot be built: {reason} {advice or what_to_do}",
                detail="\n".join(said[-40:]),
            )


def _install_pins(builder: _Builder, progress: Progress) -> None:
    spec, directory = builder.spec, builder.directory
    pip_home, temporary = lend_pip(spec, directory), directory / "tmp"
    temporary.mkdir()

    def install_all(requirements: Path) -> list[Pin]:
        pins = list(read_pins(requirements).values())
        progress.say(f"installing {len(pins)} pinned packages with pip")
        builder.run(
            "pip install",
            pip_command(builder.python, pip_home, *install_arguments(requirements)),
            PipOutput(spec, directory, len(pins), progress),
            environment=pip_environment(temporary),
        )
        return pins

    pins = install_all(spec.requirements)
    if needs_supplement(spec, directory):
        pins += install_all(spec.supplement)
    shutil.rmtree(pip_home)
    shutil.rmtree(temporary)
    _check_installed(spec, directory, pins)


def needs_supplement(spec: EnvironmentSpec, directory: Path) -> bool:
    """Whether a build was installed that declares something of the supplement."""
    return spec.supplement.exists() and any(needed_by(directory, name) for name in read_pins(spec.supplement))


def pins_in(spec: EnvironmentSpec, directory: Path) -> dict[str, Pin]:
    """Every pin that an installed environment must meet."""
    supplement = read_pins(spec.supplement) if needs_supplement(spec, directory) else {}
    return {**read_pins(spec.requirements), **supplement}


def _check_installed(spec: EnvironmentSpec, directory: Path, pins: Sequence[Pin]) -> None:
    """An option in pip.conf can make pip install something else than it was asked to."""
    found = {name: distribution.version for name, distribution in installed(directory).items()}
    wrong = [
        f"{pin.name} {found.get(pin.name, 'not at all')} instead of {pin.version}"
        for pin in pins
        if not pin.is_met_by(found.get(pin.name, ""))
    ]
    if wrong:
        raise EnvironmentFailure(
            f"environment '{spec.name}' cannot be built: pip installed {', '.join(wrong)}. "
            f"Check pip's settings (pip.conf, PIP_* variables or {PIP_ARGUMENTS_VARIABLE})."
        )
