"""What is wrong with this machine and its framework environments: read everything, change nothing."""

from __future__ import annotations

import base64
import hashlib
import importlib.metadata
import importlib.util
import platform
import shutil
import sys
import tempfile
import venv
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from paritygate.converter.environments.conflicts import SAME_FOLDER, both_present
from paritygate.converter.environments.installer import TRIAL, pins_in
from paritygate.converter.environments.manager import Environment, find, in_use, list_environments
from paritygate.converter.environments.pins import installed, read_pins
from paritygate.converter.environments.pip_command import (
    clean_environment,
    lend_pip,
    pip_command,
    pip_environment,
)
from paritygate.converter.environments.pip_output import explain
from paritygate.converter.environments.processes import run_supervised
from paritygate.converter.environments.specs import SPECS, EnvironmentSpec, environments_dir, find_spec
from paritygate.converter.errors import EnvironmentFailure

_OLDEST_PYTHON = (3, 11)
_ROOM_BYTES = 4 * 2**30  # the largest environment, and what pip unpacks on its way
_IMPORT_TIMEOUT_S = 300.0
_INDEX_TIMEOUT_S = 60.0
_NAMED_FILES = 3


@dataclass(frozen=True)
class Finding:
    """What one check found.

    Attributes:
        subject: `machine`, or an environment.
        state: `ok`, `fault`, or `absent` where there is nothing to check.
        message: What is, and for a fault what to do.
    """

    subject: str
    state: str
    message: str


def examine(framework: str | None = None) -> Iterator[Finding]:
    """Check this machine and one environment, or all; the findings come as they are made.

    Raises:
        EnvironmentFailure: If there is no such environment.
    """
    specs = list(SPECS.values()) if framework is None else [find_spec(framework)]
    yield _python()
    yield from _overwritten()
    yield _room()
    yield _index(specs[0])
    for spec in specs:
        yield from _examine(spec)


def _python() -> Finding:
    version = platform.python_version()
    if sys.version_info[:2] < _OLDEST_PYTHON:
        return Finding("machine", "fault", f"Python {version} is too old; expected 3.11 or newer.")
    if importlib.util.find_spec("pip") is None:
        return Finding(
            "machine", "fault", f"Python {version} has no pip. Run `{sys.executable} -m ensurepip`."
        )
    return Finding("machine", "ok", f"Python {version}, pip {_version('pip')}")


def _overwritten() -> Iterator[Finding]:
    for rivals in SAME_FOLDER:
        there = sorted(name for name in rivals if _version(name))
        if len(there) > 1:
            text = f"{both_present(there[0], there[1])}. Run `{sys.executable} -m pip uninstall {' '.join(there)}`"
            yield Finding("machine", "fault", f"{text} and install the one that you want.")


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return ""


def _room() -> Finding:
    folder = environments_dir()
    there = next(parent for parent in (folder, *folder.parents) if parent.is_dir())
    free = shutil.disk_usage(there).free
    text = f"{free / 2**30:,.1f} GiB free for environments in {folder}"
    if free < _ROOM_BYTES:
        return Finding(
            "machine",
            "fault",
            f"{text}; building one takes up to {_ROOM_BYTES / 2**30:.0f}. Free some, or set PARITYGATE_ENV_DIR.",
        )
    return Finding("machine", "ok", text)


def _index(spec: EnvironmentSpec) -> Finding:
    """Ask pip for the smallest thing that shows that its index answers: one pinned package, not installed."""
    pin = next(iter(read_pins(spec.requirements).values()))
    with tempfile.TemporaryDirectory(prefix="paritygate-doctor-") as name:
        folder = Path(name)
        venv.create(folder / "empty", with_pip=False)
        (folder / "tmp").mkdir()
        arguments = [
            "install",
            "--dry-run",
            "--no-deps",
            "--no-input",
            "--only-binary=:all:",
            "--retries",
            "1",
        ]
        said: list[str] = []
        try:
            pip = lend_pip(spec, folder)
        except EnvironmentFailure as failure:
            return Finding("machine", "fault", str(failure))
        ended = run_supervised(
            pip_command(folder / "empty" / "bin" / "python", pip, *arguments, f"{pin.name}=={pin.version}"),
            timeout_s=_INDEX_TIMEOUT_S,
            environment=pip_environment(folder / "tmp"),
            on_output=lambda line: said.append(line.decode("utf-8", "replace")),
        )
    if ended.ok:
        return Finding("machine", "ok", f"pip's index answers and has {pin.name} {pin.version}")
    return Finding("machine", "fault", " ".join(explain(spec, folder, "asking pip's index", ended, said)))


def _examine(spec: EnvironmentSpec) -> Iterator[Finding]:
    environment = find(spec.name)
    again = f"Run `paritygate env sync {spec.name}`"
    if environment is None:
        states = [status.state for status in list_environments() if status.directory == spec.directory]
        if states == ["partial"]:
            yield Finding(spec.name, "fault", f"a build died in {spec.directory}, or is going on. {again}.")
        else:
            yield Finding(
                spec.name, "absent", f"not built; the first export that needs it builds it, or {again}."
            )
        return
    with in_use(environment):
        faults = list(_faults(spec, environment))
    for fault in faults:
        anew = f"`paritygate env remove {spec.name}`, then `paritygate env sync {spec.name}`"
        yield Finding(spec.name, "fault", f"{fault}. Run {anew}.")
    if not faults:
        count = len(environment.packages)
        imported = ", ".join(spec.modules)
        yield Finding(
            spec.name,
            "ok",
            f"{count} packages as they are pinned, every file as installed, imports {imported}",
        )


def _faults(spec: EnvironmentSpec, environment: Environment) -> Iterator[str]:
    distributions = installed(environment.directory)
    pins = pins_in(spec, environment.directory)
    for pin in pins.values():
        found = distributions.get(pin.name)
        if found is None:
            yield f"{pin.name} {pin.version} is missing"
        elif not pin.is_met_by(found.version):
            yield f"{pin.name} is {found.version} instead of {pin.version}"
    if foreign := sorted(set(distributions) - set(pins)):
        yield f"{', '.join(foreign)} was put there by somebody else"
    for name, distribution in distributions.items():
        changed = _changed_files(distribution)
        if changed:
            shown = ", ".join(changed[:_NAMED_FILES]) + (" and others" if len(changed) > _NAMED_FILES else "")
            yield f"{len(changed)} files of {name} are not as they were installed: {shown}"
    ended = run_supervised(
        [environment.python, "-I", "-c", TRIAL, *spec.modules],
        timeout_s=_IMPORT_TIMEOUT_S,
        environment={**clean_environment(), **spec.variables},
    )
    if not ended.ok:
        word = f" ({ended.last_line.rstrip('.')})" if ended.last_line else ""
        yield f"importing {', '.join(spec.modules)} {ended.describe()}{word}"


def _changed_files(distribution: importlib.metadata.Distribution) -> list[str]:
    """Files that are gone or whose bytes are not those that the wheel's RECORD names.

    Bytecode is left out: pip compiles anew what a wheel brings of it, and Python does whenever a source is newer.
    """
    changed = []
    for file in distribution.files or ():
        if file.hash is None or file.suffix == ".pyc":  # None: the record itself
            continue
        path = Path(str(file.locate()))
        if not path.is_file() or _digest(path, file.hash.mode) != file.hash.value:
            changed.append(str(file))
    return changed


def _digest(path: Path, algorithm: str) -> str:
    with path.open("rb") as stream:
        digest = hashlib.file_digest(stream, algorithm).digest()
    return base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
