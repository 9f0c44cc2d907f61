"""How pip is called for an environment: from where, with which options, in which variables."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import re
import shlex
import sys
from pathlib import Path

from paritygate.converter.environments.pins import read_pins
from paritygate.converter.environments.specs import EnvironmentSpec
from paritygate.converter.errors import EnvironmentFailure

PIP_ARGUMENTS_VARIABLE = "PARITYGATE_PIP_ARGS"

# The environment's own Python runs our pip: nothing but the pins is installed there, and no pip of its own costs
# its seconds.
_RUN_PIP = """
import runpy, sys
sys.path.insert(0, sys.argv.pop(1))
sys.argv[0] = "pip"
runpy.run_module("pip", run_name="__main__", alter_sys=True)
"""

_RAW_PROGRESS_SINCE = (24, 1)


def lend_pip(spec: EnvironmentSpec, directory: Path) -> Path:
    """A folder with nothing but a link to our pip: with more on its path, pip would take ours for installed.

    Raises:
        EnvironmentFailure: If this Python has no pip.
    """
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


def pip_command(python: Path, pip_home: Path, *arguments: str) -> list[str | Path]:
    """Run a command of our pip in an environment; what the user adds to every call comes last."""
    added = shlex.split(os.environ.get(PIP_ARGUMENTS_VARIABLE, ""))
    return [python, "-I", "-c", _RUN_PIP, pip_home, *arguments, *added]


def install_arguments(requirements: Path) -> list[str]:
    """Install exactly the pins of a file.

    The file is complete, so pip need not resolve; wheels only, so installing runs nobody's set-up code; and only
    wheels whose bytes are the locked ones.
    """
    locked = any(pin.hashes for pin in read_pins(requirements).values())
    fixed = ["install", "--no-deps", *(["--require-hashes"] if locked else []), "--only-binary=:all:"]
    fixed += ["--no-input", "--disable-pip-version-check", f"--progress-bar={_bar()}"]
    return [*fixed, "-r", str(requirements)]


def _bar() -> str:
    """`raw` prints figures that can be read; older pips cannot."""
    try:
        version = importlib.metadata.version("pip")
    except importlib.metadata.PackageNotFoundError:
        return "off"
    numbers = tuple(int(part) for part in re.findall(r"\d+", version)[:2])
    return "raw" if numbers >= _RAW_PROGRESS_SINCE else "off"


def clean_environment() -> dict[str, str]:
    """Our variables without those that would bring this process's Python or a venv into another; in English."""
    hidden = ("PYTHON", "VIRTUAL_ENV", "PIP_REQUIRE_VIRTUALENV", "PIP_TARGET", "PIP_PREFIX", "PIP_USER")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(hidden)}
    return {**kept, "LC_ALL": "C.UTF-8"}


def pip_environment(temporary: Path) -> dict[str, str]:
    """What pip sees.

    Args:
        temporary: Where it unpacks: beside what it installs, so that a killed pip leaves nothing in `/tmp` and a
            small `/tmp` does not fail a large wheel.
    """
    # The pins are exact; a constraint of the user's own project could only contradict them.
    return {**clean_environment(), "TMPDIR": str(temporary), "PIP_CONSTRAINT": os.devnull}
