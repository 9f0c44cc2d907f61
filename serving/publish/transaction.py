"""Write one version into a repository so that a server, a crash or a second publisher sees all of it or nothing.

The version list in config.pbtxt is the commit point. A new version of a known model:

    lock the model's folder -> mkdir <N>, with a marker in it -> copy and flush every file, flush every folder
    -> read config.pbtxt again, which an operator may have edited meanwhile; write its successor in the staging
    folder -> drop the marker, flush <N> and the model's folder -> flush the config; if config.pbtxt changed since
    it was read, write the successor anew -> rename it over config.pbtxt -> flush the model's folder

A version that the list does not name is ignored by Triton, half-written or not. The first version of a model is
one rename of a whole staged folder. What must not be, because Triton 2.51 was seen to react to it: a temporary
file in the model's folder (reloads live versions in poll mode), a folder at the repository's root (taken for a
model, even when hidden; the next start fails), a file added to a listed version (reloads it). So everything that
is in passing lies in a staging folder beside the repository, on the same file system.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import secrets
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from paritygate.serving.publish import files
from paritygate.serving.publish.errors import RepositoryUnavailable
from paritygate.serving.publish.layout import UNFINISHED_MARKER, staging_prefix, version_folders
from paritygate.serving.publish.triton_config import CONFIG_FILE, ModelConfig

_log = logging.getLogger(__name__)

FillVersion = Callable[[Path], None]
"""Writes and flushes all files of a version into the empty folder that it is given."""

LoadConfig = Callable[[], ModelConfig]
"""Reads the config that stands in the model's folder, and checks that the version fits it."""


@dataclass(frozen=True)
class Staging:
    """Where things in passing lie: beside the repository, on its file system, unseen by any server.

    Attributes:
        root: The repository.
        parent: The folder that holds staging folders.
    """

    root: Path
    parent: Path

    @classmethod
    def for_repository(cls, root: Path, staging: Path | None = None) -> Staging:
        """The staging place of a repository, checked.

        Args:
            root: The repository; it exists.
            staging: A folder to use instead of the repository's parent.

        Raises:
            RepositoryUnavailable: If the place is inside the repository or on another file system.
        """
        parent = (staging or root.parent).resolve()
        if parent == root or root in parent.parents:
            raise RepositoryUnavailable(
                f"staging folder {parent} lies inside the repository {root}, where a server would take it for a "
                "model. Pass a folder outside, on the same file system."
            )
        if os.stat(parent).st_dev != os.stat(root).st_dev:
            raise RepositoryUnavailable(
                f"{parent} and the repository {root} are different file systems, and a version is published by a "
                "rename. Use a subfolder of the mounted volume as the repository, or pass a staging folder on it."
            )
        return cls(root, parent)

    @contextlib.contextmanager
    def folder(self) -> Iterator[Path]:
        """A new locked folder that is gone afterwards, unless it was renamed into the repository."""
        path, descriptor = self._create()
        try:
            yield path
        finally:
            if files.same_directory(descriptor, path):
                files.remove_tree(path)
            os.close(descriptor)

    def _create(self) -> tuple[Path, int]:
        while True:
            path = self.parent / f"{staging_prefix(self.root)}{secrets.token_hex(6)}"
            os.mkdir(path, 0o755)
            # A sweeping publisher may take the new folder for a dead one's before it is opened, or locked.
            try:
                descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            except FileNotFoundError:
                continue
            if files.try_lock(descriptor, path) and files.same_directory(descriptor, path):
                return path, descriptor
            os.close(descriptor)

    def sweep(self) -> None:
        """Remove what publishers that died left behind; a living one holds the lock of its folder."""
        prefix = staging_prefix(self.root)
        for name in sorted(os.listdir(self.parent)):
            if name.startswith(prefix):
                _remove_if_abandoned(self.parent / name)


def _remove_if_abandoned(path: Path) -> None:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError, PermissionError) as error:
        _log.debug("left %s alone: %s", path, error)
        return
    try:
        if files.try_lock(descriptor, path) and files.same_directory(descriptor, path):
            files.remove_tree(path)
    except PermissionError as error:
        _log.warning("cannot remove %s, which a publisher of another user left behind: %s", path, error)
    finally:
        os.close(descriptor)


def publish_first(staging: Staging, model: str, config: ModelConfig, fill: FillVersion) -> bool:
    """Publish version 1 of a model that is not in the repository: one rename of the whole folder.

    Returns:
        False if another publisher was first; nothing of this one is left then.
    """
    staging.sweep()
    with staging.folder() as folder:
        version_dir = folder / "1"
        os.mkdir(version_dir, 0o755)
        fill(version_dir)
        files.sync_tree(version_dir)
        files.write_file(folder / CONFIG_FILE, config.text.encode())
        files.sync_directory(folder)
        try:
            os.rename(folder, staging.root / model)
        except OSError as error:
            if error.errno in (errno.EEXIST, errno.ENOTEMPTY):
                return False
            raise
        files.sync_directory(staging.root)
    return True


def publish_next(staging: Staging, model_dir: Path, load: LoadConfig, fill: FillVersion) -> int:
    """Publish one more version of a model; the caller holds the lock of `model_dir`.

    Args:
        staging: The repository's staging place.
        model_dir: The model's folder.
        load: Reads the config that stands there, and raises if the version must not be added to it. Called again
            after the copy, which may take minutes: an operator's edit meanwhile is kept.
        fill: Writes the version.

    Returns:
        The new version's number.
    """
    staging.sweep()
    config = load()
    number, version_dir = _reserve(model_dir, config)
    _sweep_unfinished(model_dir, config, keep=number)
    with staging.folder() as folder:
        replacement = folder / CONFIG_FILE
        try:
            files.write_file(version_dir / UNFINISHED_MARKER, b"")
            fill(version_dir)
            files.sync_tree(version_dir)
            standing = _write_successor(replacement, model_dir, load, number)
            os.unlink(version_dir / UNFINISHED_MARKER)
            files.sync_directory(version_dir)
            files.sync_directory(model_dir)
            _settle(replacement, model_dir, standing, load, number)
        except BaseException:
            # Gives the space back at once; a process that is killed leaves it to the next publisher's sweep.
            _remove_unfinished(version_dir)
            raise
        os.replace(replacement, model_dir / CONFIG_FILE)
        files.sync_directory(model_dir)
    return number


def _write_successor(path: Path, model_dir: Path, load: LoadConfig, number: int) -> ModelConfig:
    """Write the standing config with one more version in its list; gives the standing one."""
    standing = load()
    listed = (*standing.version_policy.versions, number)
    _write_config(path, standing.with_versions(listed), like=model_dir / CONFIG_FILE)
    return standing


def _settle(replacement: Path, model_dir: Path, standing: ModelConfig, load: LoadConfig, number: int) -> None:
    """Date and flush the new config, until the one that it follows is still the one that stands there."""
    while True:
        _date_after(replacement, model_dir)
        files.sync_file(replacement)
        if (model_dir / CONFIG_FILE).read_bytes() == standing.text.encode():
            return
        os.unlink(replacement)
        standing = _write_successor(replacement, model_dir, load, number)


def _reserve(model_dir: Path, config: ModelConfig) -> tuple[int, Path]:
    """Make the folder of the next number: above every folder and every listed number, so none is used twice."""
    number = max((0, *version_folders(model_dir), *config.version_policy.versions)) + 1
    version_dir = model_dir / str(number)
    os.mkdir(version_dir, 0o755)
    return number, version_dir


def _sweep_unfinished(model_dir: Path, config: ModelConfig, *, keep: int) -> None:
    """Remove the half versions of publishers that died: unlisted, and empty or still marked.

    They go only after a higher number is reserved, so that a number that half existed never comes again. A whole
    version that is not listed stays: its owner may have taken it off the list on purpose.
    """
    for number, version_dir in version_folders(model_dir).items():
        if number == keep or number in config.version_policy.versions or version_dir.is_symlink():
            continue
        names = os.listdir(version_dir)
        if not names or UNFINISHED_MARKER in names:
            _remove_unfinished(version_dir)


def _remove_unfinished(version_dir: Path) -> None:
    """Remove a half version so that a process killed midway still leaves it recognisable as one."""
    marker = version_dir / UNFINISHED_MARKER
    if not marker.exists() and os.listdir(version_dir):
        files.write_file(marker, b"")
    for name in sorted(os.listdir(version_dir)):
        path = version_dir / name
        if name == UNFINISHED_MARKER:
            continue
        if path.is_dir() and not path.is_symlink():
            files.remove_tree(path)
        else:
            os.unlink(path)
    files.remove_tree(version_dir)


def _write_config(path: Path, config: ModelConfig, *, like: Path) -> None:
    """Write the new config where no server looks, with the owner and permissions of the one it replaces."""
    files.write_file(path, config.text.encode())
    standing = os.stat(like)
    with contextlib.suppress(PermissionError):  # only root may give a file away; the publisher's own will do
        os.chown(path, standing.st_uid, standing.st_gid)
    os.chmod(path, standing.st_mode & 0o7777)


def _date_after(path: Path, model_dir: Path) -> None:
    """Make the file newer than everything in the model's folder.

    In poll mode Triton looks at a model again only when its latest modification time has grown; within one tick
    of the kernel's coarse clock (up to 10 ms) the version's folder and the config could carry the same time.

    Source: IsModified and GetModifiedTime of triton-inference-server/core, model_repository_manager.cc.
    """
    stamp = max(time.time_ns(), files.newest_mtime_ns(model_dir) + 1)
    os.utime(path, ns=(stamp, stamp))
