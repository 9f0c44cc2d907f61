"""What is wrong with this machine and its framework environments: read everything, change nothing."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import platform
import shutil
import sys
import tempfile
import venv
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from paritygate.converter.environments.conflicts import SAME_FOLDER, both_present
from paritygate.converter.environments.installer import TRIAL, pins_in
from paritygate.converter.environments.intact import changed, doubtful, files_of, unrecorded
from paritygate.converter.environments.manager import (
    Environment,
    EnvironmentStatus,
    find,
    forgotten_environments,
    in_use,
    is_being_built,
    outdated_environments,
)
from paritygate.converter.environments.pins import installed, read_pins
from paritygate.converter.environments.pip_command import (
    clean_environment,
    lend_pip,
    pip_command,
    pip_environment,
)
from paritygate.converter.environments.pip_output import explain
from paritygate.converter.environments.progress import Say, silent_line
from paritygate.converter.environments.specs import SPECS, EnvironmentSpec, environments_dir, find_spec
from paritygate.converter.errors import EnvironmentFailure
from paritygate.converter.processes import run_supervised

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
        state: `ok`, `fault`, `absent` where there is nothing to check, or `outdated` for what only takes room.
        message: What is, and for all but `ok` what to do.
    """

    subject: str
    state: str
    message: str


def examine(
    framework: str | None = None, say: Say | None = None, *, every_file: bool = False
) -> Iterator[Finding]:
    """Check this machine and one environment, or all; the findings come as they are made.

    Args:
        framework: An environment, or an exporter that runs in one; None is all.
        say: Told what is being looked at.
        every_file: Whether files are read too that the disk says were not touched since they were installed.

    Raises:
        EnvironmentFailure: If there is no such environment.
    """
    specs = list(SPECS.values()) if framework is None else [find_spec(framework)]
    tell = say or silent_line
    yield _python()
    yield from _overwritten()
    yield _room()
    tell("asking pip's index")
    yield _index(specs[0])
    for spec in specs:
        yield from _examine(spec, tell, every_file)
        yield from map(_left_behind, outdated_environments(spec))
    if framework is None:
        yield from map(_left_behind, forgotten_environments())


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


def _examine(spec: EnvironmentSpec, say: Say, every_file: bool) -> Iterator[Finding]:
    environment = find(spec.name)
    if environment is None:
        yield _not_ready(spec)
        return
    with in_use(environment):
        faults = list(_faults(spec, environment, say, every_file))
    for fault in faults:
        anew = f"`paritygate env remove {spec.name}`, then `paritygate env sync {spec.name}`"
        yield Finding(spec.name, "fault", f"{fault}. Run {anew}.")
    if not faults:
        count = len(environment.packages)
        imported = ", ".join(spec.modules)
        yield Finding(
            spec.name,
            "ok",
            f"{count} packages as they are pinned, every file as installed and no other, imports {imported}",
        )


def _not_ready(spec: EnvironmentSpec) -> Finding:
    build = f"`paritygate env sync {spec.name}`"
    if is_being_built(spec):
        return Finding(spec.name, "absent", f"another process builds it now; {build} waits for that.")
    if spec.directory.is_dir():
        text = f"half-built: a build died in {spec.directory}, or its Python was removed. Run {build}."
        return Finding(spec.name, "fault", text)
    text = f"not built; the first export that needs it builds it, or {build} does."
    return Finding(spec.name, "absent", text)


def _left_behind(status: EnvironmentStatus) -> Finding:
    whole = "an older one" if status.state == "outdated" else "a half-built older one"
    known = status.name in SPECS
    command = (
        f"paritygate env remove {status.name} --outdated" if known else "paritygate env remove --outdated"
    )
    size = f"{status.size_bytes / 2**20:,.0f} MiB"
    text = f"{whole} takes {size} in {status.directory}, and nothing uses it. Run `{command}`."
    return Finding(status.name, "outdated", text)


def _faults(spec: EnvironmentSpec, environment: Environment, say: Say, every_file: bool) -> Iterator[str]:
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
    yield from _changed_files(spec, distributions, 0 if every_file else environment.built_at_ns, say)
    yield from _added_files(environment, distributions)
    say(f"{spec.name}: importing {', '.join(spec.modules)}")
    ended = run_supervised(
        [environment.python, "-I", "-c", TRIAL, *spec.modules],
        timeout_s=_IMPORT_TIMEOUT_S,
        environment={**clean_environment(), **spec.variables},
    )
    if not ended.ok:
        word = f" ({ended.last_line.rstrip('.')})" if ended.last_line else ""
        yield f"importing {', '.join(spec.modules)} {ended.describe()}{word}"


def _changed_files(
    spec: EnvironmentSpec,
    distributions: Mapping[str, importlib.metadata.Distribution],
    built_at_ns: int,
    say: Say,
) -> Iterator[str]:
    say(f"{spec.name}: looking at the files of {len(distributions)} packages")
    to_read = {name: doubtful(files_of(each), built_at_ns) for name, each in distributions.items()}
    to_read = {name: files for name, files in to_read.items() if files}
    sizes = {name: sum(file.size_bytes or 0 for file in files) for name, files in to_read.items()}
    done = 0
    for name, files in to_read.items():
        say(f"{spec.name}: reading {name} ({done / 2**20:,.0f} of {sum(sizes.values()) / 2**20:,.0f} MiB)")
        done += sizes[name]
        names = changed(files)
        if names:
            yield f"{len(names)} files of {name} are not as they were installed: {_some(names)}"


def _added_files(
    environment: Environment, distributions: Mapping[str, importlib.metadata.Distribution]
) -> Iterator[str]:
    """What lies among the packages and is of none of them; the disk is not asked when it came."""
    for packages in sorted(environment.directory.glob("lib/python*/site-packages")):
        if names := unrecorded(packages, distributions.values()):
            yield f"{len(names)} files or folders in {packages} are of no package: {_some(names)}"


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:_NAMED_FILES]) + (" and others" if len(names) > _NAMED_FILES else "")
