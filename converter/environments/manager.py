"""Framework environments on disk: build once, share, list, remove.

An environment is built where it will stay, since a virtual environment cannot be moved. Its marker file is
written last, so a directory without one was left by a build that died and is cleared by the next. Everybody
who builds or removes holds the lock file beside it alone; everybody who uses it holds that lock together.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import platform
import re
import shutil
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paritygate.converter.environments.installer import install, pins_in
from paritygate.converter.environments.pins import read_pins
from paritygate.converter.environments.progress import OnStep, Progress, Say, silent_line, silent_step
from paritygate.converter.environments.specs import SPECS, EnvironmentSpec, environments_dir, find_spec
from paritygate.converter.errors import EnvironmentFailure

MARKER_FILE = "paritygate-environment.json"
MARKER_SCHEMA = "paritygate.environment/v1"
DEFAULT_TIMEOUT_S = 1800.0

_POLL_S = 0.2


@dataclass(frozen=True)
class Environment:
    """A framework environment that is complete and may be used.

    Attributes:
        name: Its name, such as `tensorflow`.
        directory: Where it lies; the name ends with the digest of its pins and Python.
        python: Its interpreter.
        packages: Version of each pinned package.
        build_seconds: How long building it took.
        built_at_ns: What the clock of its disk said when everything was installed; 0 where the marker is of a time
            that did not write it down.
    """

    name: str
    directory: Path
    python: Path
    packages: dict[str, str]
    build_seconds: float
    built_at_ns: int = 0


@dataclass(frozen=True)
class EnvironmentStatus:
    """One line of the list of environments.

    Attributes:
        name: The environment's name.
        directory: Where it lies, or would lie.
        state: `ready`; `absent` (never built); `partial` (a build died or is going on); `outdated`
            (of other pins or another Python, or of a framework that has another name now; nothing uses it).
        size_bytes: What its files take on disk; 0 if absent.
        exporters: The exporters that run in it.
        packages: How many are installed in one that is ready, else how many are pinned; 0 if it is outdated.
        python: The version of Python that it is of, or would be built with; empty if it is of another one.
    """

    name: str
    directory: Path
    state: str
    size_bytes: int
    exporters: tuple[str, ...]
    packages: int
    python: str

    @property
    def digest(self) -> str:
        """The digits that tell its pins, Python and platform from others."""
        return self.directory.name.rpartition("-")[2]


def list_environments() -> list[EnvironmentStatus]:
    """Each environment we can build, and after it what older pins have left."""
    found: list[EnvironmentStatus] = []
    for spec in SPECS.values():
        found += [_status(spec), *outdated_environments(spec)]
    return [*found, *forgotten_environments()]


def outdated_environments(spec: EnvironmentSpec) -> list[EnvironmentStatus]:
    """What older pins or another Python have left of an environment, half-built ones too."""
    return [
        _leftover(spec.name, directory, spec.exporters)
        for directory in _directories_of(spec.name)
        if directory != spec.directory
    ]


def forgotten_environments() -> list[EnvironmentStatus]:
    """Environments of names that there are no more, as an older paritygate built them."""
    return [_leftover(directory.name[:-13], directory, ()) for directory in _forgotten()]


def is_being_built(spec: EnvironmentSpec) -> bool:
    """Whether another process holds the environment's place for itself; nothing is waited for or written."""
    try:
        descriptor = os.open(_lock_file(spec.directory), os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def sync(
    framework: str,
    say: Say | None = None,
    *,
    on_step: OnStep | None = None,
    timeout_s: float = DEFAULT_TIMEOUT_S,
) -> Environment:
    """Give the environment of a framework, building it first if it is not there.

    Args:
        framework: The name of an environment, or of an exporter that runs in one.
        say: Told what goes on, one short line at a time.
        on_step: Shown how far a build is, in figures.
        timeout_s: Limit of each step of the build, and of waiting for another process that builds.

    Raises:
        EnvironmentFailure: If there is no such environment or it cannot be built; nothing is left that a
            later call would take for an environment.
    """
    spec = find_spec(framework)
    progress = Progress(say or silent_line, on_step or silent_step)
    ready = _load(spec)
    if ready is not None:
        return ready
    with _lock(spec.directory, fcntl.LOCK_EX, timeout_s, progress.say) as lock_fd:
        ready = _load(spec)
        return ready if ready is not None else _build(spec, lock_fd, timeout_s, progress)


def find(framework: str) -> Environment | None:
    """The environment of a framework as it lies on disk, or None if it is not built.

    Raises:
        EnvironmentFailure: If there is no such environment.
    """
    return _load(find_spec(framework))


def remove(framework: str, *, outdated: bool = False) -> list[Path]:
    """Remove a framework's environments, those of older pins too; gives the directories that are gone.

    Args:
        framework: The name of an environment, or of an exporter that runs in one.
        outdated: Keep the one of today's pins.

    Raises:
        EnvironmentFailure: If there is no such environment, or another process uses it.
    """
    spec = find_spec(framework)
    return _remove([each for each in _directories_of(spec.name) if not outdated or each != spec.directory])


def remove_forgotten() -> list[Path]:
    """Remove the environments of names that there are no more; gives the directories that are gone.

    Raises:
        EnvironmentFailure: If another process uses one.
    """
    return _remove(_forgotten())


def _remove(directories: Iterable[Path]) -> list[Path]:
    removed = []
    for directory in directories:
        with _lock(directory, fcntl.LOCK_EX, 0.0, silent_line):
            _clear(directory)
        removed.append(directory)
    return removed


@contextlib.contextmanager
def in_use(environment: Environment) -> Iterator[None]:
    """Keep an environment from being removed while it is used.

    Raises:
        EnvironmentFailure: If it was removed since it was given.
    """
    with _lock(environment.directory, fcntl.LOCK_SH, DEFAULT_TIMEOUT_S, silent_line):
        if not (environment.directory / MARKER_FILE).is_file():
            raise EnvironmentFailure(
                f"environment '{environment.name}' in {environment.directory} was removed by somebody else "
                "just now. Run the command again to build it anew."
            )
        yield


def _build(spec: EnvironmentSpec, lock_fd: int, timeout_s: float, progress: Progress) -> Environment:
    started = time.monotonic()
    _clear(spec.directory)
    try:
        install(spec, spec.directory, lock_fd=lock_fd, timeout_s=timeout_s, progress=progress)
        _write_marker(spec, time.monotonic() - started)
    except BaseException:
        _clear(spec.directory)
        raise
    built = _load(spec)
    assert built is not None
    progress.say(f"environment '{spec.name}' is ready after {built.build_seconds:.0f} s")
    return built


def _write_marker(spec: EnvironmentSpec, build_seconds: float) -> None:
    draft = spec.directory / f".{MARKER_FILE}.partial"
    draft.touch()
    marker: dict[str, Any] = {
        "schema": MARKER_SCHEMA,
        "name": spec.name,
        "packages": {pin.name: pin.version for pin in pins_in(spec, spec.directory).values()},
        "build_seconds": round(build_seconds, 1),
        "built_at_ns": draft.stat().st_ctime_ns,  # by the disk's own clock, to be held against its files
    }
    os.sync()  # the marker must not reach the disk before what it vouches for
    with draft.open("w", encoding="utf-8") as file:
        json.dump(marker, file, indent=2, sort_keys=True)
        file.flush()
        os.fsync(file.fileno())
    draft.rename(spec.directory / MARKER_FILE)


def _load(spec: EnvironmentSpec) -> Environment | None:
    python = spec.directory / "bin" / "python"
    try:
        marker = json.loads((spec.directory / MARKER_FILE).read_text("utf-8"))
    except (FileNotFoundError, NotADirectoryError, json.JSONDecodeError):
        return None
    # A link to an interpreter that was uninstalled since is as good as no environment.
    if marker.get("schema") != MARKER_SCHEMA or not os.access(python, os.X_OK):
        return None
    packages, seconds = marker["packages"], marker["build_seconds"]
    return Environment(spec.name, spec.directory, python, packages, seconds, marker.get("built_at_ns", 0))


def _directories_of(name: str) -> list[Path]:
    return [directory for directory in _directories() if directory.name[:-13] == name]


def _directories() -> list[Path]:
    """Every `<name>-<12 hex digits>` among the environments; what children see of us is named so too."""
    try:
        entries = list(environments_dir().iterdir())
    except FileNotFoundError:
        return []
    named = re.compile(r"[a-z][a-z0-9_]*-[0-9a-f]{12}")
    return sorted(entry for entry in entries if entry.is_dir() and named.fullmatch(entry.name))


def _forgotten() -> list[Path]:
    """Only what has our marker or our lock: the folder of environments may be somebody's own, with more in it."""
    return [
        directory
        for directory in _directories()
        if directory.name[:-13] not in SPECS
        and ((directory / MARKER_FILE).is_file() or _lock_file(directory).is_file())
    ]


def _status(spec: EnvironmentSpec) -> EnvironmentStatus:
    state, size_bytes, packages = "absent", 0, len(read_pins(spec.requirements))
    if spec.directory.is_dir():
        ready = _load(spec)
        state = "partial" if ready is None else "ready"
        packages = packages if ready is None else len(ready.packages)
        size_bytes = _size_bytes(spec.directory)
    python = platform.python_version()
    return EnvironmentStatus(spec.name, spec.directory, state, size_bytes, spec.exporters, packages, python)


def _leftover(name: str, directory: Path, exporters: tuple[str, ...]) -> EnvironmentStatus:
    state = "outdated" if (directory / MARKER_FILE).is_file() else "partial"
    size_bytes = _size_bytes(directory)
    return EnvironmentStatus(name, directory, state, size_bytes, exporters, 0, _python_of(directory))


def _python_of(directory: Path) -> str:
    """What a virtual environment says of its Python."""
    try:
        text = (directory / "pyvenv.cfg").read_text("utf-8")
    except OSError:
        return ""
    found = re.search(r"^version\s*=\s*(\S+)", text, re.MULTILINE)
    return found[1] if found else ""


def _size_bytes(directory: Path) -> int:
    total = 0
    for folder, _, names in os.walk(directory):
        for name in names:
            with contextlib.suppress(FileNotFoundError):  # a build may be going on in there
                total += os.lstat(os.path.join(folder, name)).st_blocks * 512
    return total


def _clear(directory: Path) -> None:
    """Remove an environment; the marker goes first, so that what is left if we die is not taken for one."""
    with contextlib.suppress(FileNotFoundError):
        (directory / MARKER_FILE).unlink()
    if directory.exists():
        shutil.rmtree(directory)


def _lock_file(directory: Path) -> Path:
    return directory.with_name(directory.name + ".lock")


@contextlib.contextmanager
def _lock(directory: Path, mode: int, timeout_s: float, say: Say) -> Iterator[int]:
    path = _lock_file(directory)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # The file stays for ever: removing a lock file lets two processes hold "the" lock.
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    except OSError as error:
        raise EnvironmentFailure(
            f"the folder of framework environments {path.parent} cannot be written ({error.strerror}). "
            "Set PARITYGATE_ENV_DIR to a folder that can."
        ) from error
    try:
        _wait_for(descriptor, mode, directory, timeout_s, say)
        yield descriptor
    finally:
        os.close(descriptor)


def _wait_for(descriptor: int, mode: int, directory: Path, timeout_s: float, say: Say) -> None:
    deadline = time.monotonic() + timeout_s
    told = False
    while True:
        try:
            return fcntl.flock(descriptor, mode | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= deadline:
                break
        if not told:
            say(f"waiting for another process that uses or builds {directory.name}")
            told = True
        time.sleep(_POLL_S)
    raise EnvironmentFailure(
        f"environment {directory.name} is used or built by another process"
        + (f", and was after {timeout_s:.0f} s still" if timeout_s else "")
        + ". Wait for it to end, then run the command again."
    )
