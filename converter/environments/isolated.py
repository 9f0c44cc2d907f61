"""Export in a framework environment: a child process there, a verified bundle here.

The child sees of us one folder that holds nothing but a link named `paritygate`, so that no other package of
this environment can get into its process. It works in a folder beside the bundle's place, and only a bundle
whose every digest holds is moved there.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import paritygate
from paritygate.converter._atomic import flush_directory
from paritygate.converter.bundle import Bundle, read_bundle
from paritygate.converter.environments.child import BUNDLE_NAME
from paritygate.converter.environments.manager import Environment, in_use, sync
from paritygate.converter.environments.progress import OnStep
from paritygate.converter.environments.protocol import Conversation, Event, OnEvent
from paritygate.converter.environments.request import ExportRequest
from paritygate.converter.environments.specs import find_spec
from paritygate.converter.errors import BundleError, EnvironmentFailure
from paritygate.converter.processes import Ended, run_supervised

DEFAULT_TIMEOUT_S = 3600.0

_CONTAINER_LIMIT = Path("/sys/fs/cgroup/memory.max")

# -I: no user site, no PYTHON* variables, and no working directory on sys.path. The child's word is its last act:
# what frameworks do at exit may crash or hang, and could only spoil a bundle that is sealed.
_BOOTSTRAP = """
import os, pathlib, sys
sys.path.insert(0, sys.argv[1])
from paritygate.converter.environments.child import main
main(pathlib.Path(sys.argv[2]))
sys.stdout.flush()
sys.stderr.flush()
os._exit(0)
"""


def export_isolated(
    framework: str,
    request: ExportRequest,
    directory: Path,
    on_event: OnEvent | None = None,
    *,
    on_step: OnStep | None = None,
    timeout_s: float = DEFAULT_TIMEOUT_S,
    memory_bytes: int | None = None,
) -> Bundle:
    """Export a source in the environment of its framework, which is built first if it is not there.

    Args:
        framework: Name of the environment, or of an exporter that runs in it.
        request: What to export and how.
        directory: The bundle to write; it must not exist.
        on_event: Told what goes on, in this process and in the child.
        on_step: Shown how far the build of the environment is, if it is built.
        timeout_s: After so many seconds the child is killed.
        memory_bytes: Private memory that the child may take; None is all that this machine or container has.

    Raises:
        ValueError: If `memory_bytes` is no positive number.
        EnvironmentFailure: If the environment cannot be built, or the child crashed, hung, was killed or broke
            the protocol; `detail` holds its last lines.
        BundleError: If `directory` exists or cannot be written.
        ConverterError: What the exporter itself says, as the class that it has in process too.
    """
    allowed_bytes = _allowed_bytes(memory_bytes)
    tell = on_event or _silent
    environment = sync(framework, lambda text: tell(Event("progress", text)), on_step=on_step)
    directory = Path(directory).absolute()
    with in_use(environment), _workspace(directory) as workspace:
        request.write(workspace)
        conversation = Conversation(tell)
        ended = run_supervised(
            [environment.python, "-I", "-c", _BOOTSTRAP, workspace / "path", workspace],
            timeout_s=timeout_s,
            environment=_child_environment(framework, workspace),
            memory_bytes=allowed_bytes,
            on_channel=conversation.hear,
        )
        bundle = _take(environment, request, conversation, ended, workspace)
        _move(bundle, directory)
    return read_bundle(directory)


def _take(
    environment: Environment,
    request: ExportRequest,
    conversation: Conversation,
    ended: Ended,
    workspace: Path,
) -> Bundle:
    """The child's bundle, verified; or the error that it told; or the error of its end."""
    where = f"exporting {request.source} in environment '{environment.name}'"
    if conversation.fault:
        raise EnvironmentFailure(
            f"{where}: the child broke the protocol ({conversation.fault}). Please report this.",
            detail=ended.tail,
        )
    if conversation.error is not None:
        raise conversation.error
    if conversation.result is None or not ended.ok:
        how = f"{ended.describe()}{' without a result' if ended.ok else ''}"
        said = f"; its last line: {ended.last_line}" if ended.last_line else ""
        raise EnvironmentFailure(f"{where}: the child {how}{said}", detail=ended.tail)
    bundle = read_bundle(workspace / BUNDLE_NAME)
    if bundle.digest != conversation.result["digest"]:
        raise EnvironmentFailure(
            f"{where}: the bundle that was handed back is {bundle.digest}, "
            f"but the child sealed {conversation.result['digest']}.",
            detail=ended.tail,
        )
    return bundle


def _move(bundle: Bundle, directory: Path) -> None:
    _refuse_existing(directory)
    try:
        bundle.path.rename(directory)
        flush_directory(directory.parent)
    except OSError as error:
        raise BundleError(f"the bundle cannot be moved to {directory}: {error.strerror}.") from error


def _refuse_existing(directory: Path) -> None:
    if os.path.lexists(directory):
        raise BundleError(
            f"{directory} exists already; a bundle is never overwritten. Name a new directory or remove it."
        )


@contextlib.contextmanager
def _workspace(directory: Path) -> Iterator[Path]:
    """A folder beside the bundle's place, on the same disk; one that a killed export left is cleared."""
    _refuse_existing(directory)
    try:
        directory.parent.mkdir(parents=True, exist_ok=True)
        _clear_abandoned(directory)
        workspace, lock = _make_held(directory)
    except OSError as error:
        raise BundleError(
            f"the bundle {directory} cannot be written: {error.strerror} ({error.filename}). "
            "Name a directory in a folder that can be written."
        ) from error
    try:
        (workspace / "path").mkdir()
        (workspace / "path" / "paritygate").symlink_to(Path(paritygate.__file__).absolute().parent)
        (workspace / "tmp").mkdir()
        yield workspace
    finally:
        shutil.rmtree(workspace, ignore_errors=True)
        os.close(lock)


def _prefix(directory: Path) -> str:
    return f".{directory.name}.isolated-"


def _make_held(directory: Path) -> tuple[Path, int]:
    """A new folder and the descriptor that locks it."""
    while True:
        workspace = Path(tempfile.mkdtemp(prefix=_prefix(directory), dir=directory.parent))
        try:
            return workspace, _hold(workspace, fcntl.LOCK_EX)
        except FileNotFoundError:
            continue  # another export to the same place saw it before it was locked, and cleared it
        except OSError:
            workspace.rmdir()
            raise


def _hold(workspace: Path, how: int) -> int:
    """Lock a folder.

    Raises:
        BlockingIOError: If another holds it, and `how` says not to wait.
        FileNotFoundError: If whoever held it has removed it.
    """
    descriptor = os.open(workspace, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, how)
        if not os.path.samestat(os.fstat(descriptor), os.lstat(workspace)):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(workspace))
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def _clear_abandoned(directory: Path) -> None:
    """Remove what killed exports to this place left; a folder is locked until nothing is left of it."""
    # mkdtemp's eight characters: neither `.`, nor `-`, so a bundle whose name begins as ours does is not meant.
    named = re.compile(f"{re.escape(_prefix(directory))}[a-z0-9_]{{8}}")
    for left in [entry for entry in directory.parent.iterdir() if named.fullmatch(entry.name)]:
        with contextlib.suppress(OSError):  # held: another export to the same place is going on
            lock = _hold(left, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(left, ignore_errors=True)
            os.close(lock)


def _child_environment(framework: str, workspace: Path) -> dict[str, str]:
    hidden = ("PYTHON", "VIRTUAL_ENV")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(hidden)}
    own = {"TMPDIR": str(workspace / "tmp"), "KERAS_HOME": str(workspace / "keras")}
    return {**kept, **own, **find_spec(framework).variables}


def _allowed_bytes(memory_bytes: int | None) -> int:
    if memory_bytes is None:
        return _memory_here_bytes()
    if memory_bytes <= 0:
        raise ValueError(
            f"memory_bytes is {memory_bytes}; expected a positive number of bytes, or None for all memory of "
            "this machine."
        )
    return memory_bytes


def _memory_here_bytes() -> int:
    """The memory of this machine, or of the container that we are in."""
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        limit = _CONTAINER_LIMIT.read_text("ascii").strip()
    except OSError:  # no container, or one of the older kind
        return physical
    return min(physical, int(limit)) if limit.isdecimal() else physical


def _silent(_event: Event) -> None:
    return None
