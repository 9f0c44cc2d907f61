"""What must hold for a model repository at every moment, whoever was killed while publishing to it."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from paritygate.converter.bundle import read_bundle
from paritygate.serving.publish import ModelRepository
from paritygate.serving.publish.layout import UNFINISHED_MARKER, staging_prefix


def listed(repository: Path, model: str) -> tuple[int, ...]:
    """The version list of a model; empty where the model is not there."""
    if not (repository / model).exists():
        return ()
    return ModelRepository(repository).load_config(model).version_policy.versions


def assert_whole(repository: Path, model: str) -> None:
    """All that a server may look at is whole: the config parses and every listed version is a full bundle."""
    assert {entry.name for entry in repository.iterdir()} <= {model}
    if not (repository / model).exists():
        return
    names = {entry.name for entry in (repository / model).iterdir()}
    assert all(name == "config.pbtxt" or name.isdigit() for name in names), names
    versions = listed(repository, model)
    assert versions
    assert len(set(versions)) == len(versions)
    for version in versions:
        read_bundle(repository / model / str(version), verify=True)


def assert_clean(repository: Path, model: str) -> None:
    """No trace is left of publishers that died: no staging folder, no half version."""
    assert [
        p.name for p in repository.parent.iterdir() if p.name.startswith(staging_prefix(repository))
    ] == []
    for folder in (repository / model).iterdir():
        if folder.is_dir():
            assert any(folder.iterdir()), f"{folder} is empty"
            assert not (folder / UNFINISHED_MARKER).exists(), f"{folder} is half-written"


def fingerprint(folder: Path) -> dict[str, tuple[int, int, int]]:
    """Inode, modification time and size of everything below a folder: equal only if nothing was touched."""
    found = {}
    for path in sorted((folder, *folder.rglob("*"))):
        status = path.lstat()
        found[str(path.relative_to(folder))] = (status.st_ino, status.st_mtime_ns, status.st_size)
    return found


def state_digest(folder: Path) -> str:
    """A digest of all names and bytes below a folder: moments with the same digest look the same to a server."""
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        digest.update(os.fsencode(path.relative_to(folder)) + b"\0")
        if path.is_file():
            digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()
