"""A disk that is full, at whatever call, costs the publish and nothing else."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from paritygate.converter.bundle import Bundle
from paritygate.serving.publish import publish_bundle
from paritygate.serving.publish.errors import RepositoryUnavailable
from support.bundles import BundleSet, linear_bundle
from support.killed import start_in_child, wait_for
from support.repositories import assert_clean, assert_whole, fingerprint, listed

MOST_CALLS = 200


def refusal_of(bundle: Bundle, repository: Path) -> str | None:
    try:
        publish_bundle(bundle.path, repository, allow_unproven=True)
    except RepositoryUnavailable as error:
        return str(error)
    return None


@pytest.mark.parametrize("call", ["write", "fsync", "mkdir"])
@pytest.mark.parametrize("known", [False, True], ids=["first version", "known model"])
def test_no_space_at_any_call_withdraws_the_version(
    call: str,
    known: bool,
    bundles: BundleSet,
    repository: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if known:
        publish_bundle(bundles.proven.path, repository)
    old = listed(repository, "linear")
    bundle = linear_bundle(tmp_path / "bundle", seed=7, num_probes=1)
    original = getattr(os, call)
    for k in range(1, MOST_CALLS):
        left = iter(range(k - 1, -MOST_CALLS, -1))

        def full(*args: Any, left: Iterator[int] = left, **kwargs: Any) -> Any:
            if next(left) == 0:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return original(*args, **kwargs)

        with monkeypatch.context() as patch:
            patch.setattr(os, call, full)
            refusal = refusal_of(bundle, repository)
        if refusal is None:
            break
        assert "No space left on device" in refusal
        assert "Free space" in refusal
        assert "\n" not in refusal
        assert_whole(repository, "linear")
        if listed(repository, "linear") != old:
            break  # the disk failed after the commit point: the version is there, only its last flush is not
    assert k > (5 if call != "mkdir" else 1)
    publish_bundle(bundle.path, repository, allow_unproven=True)
    assert len(listed(repository, "linear")) == len(old) + 1
    assert_whole(repository, "linear")
    assert_clean(repository, "linear")


def test_full_file_system_leaves_the_live_versions_alone(bundles: BundleSet, tmp_path: Path) -> None:
    """A real file system of 256 KiB, in a mount namespace of the child's own."""
    if os.geteuid() != 0 or shutil.which("mount") is None:
        pytest.skip("mounting a small file system needs root and mount(8)")
    big = linear_bundle(tmp_path / "big", seed=8, num_classes=40_000, num_probes=1)
    mountpoint = tmp_path / "small"
    mountpoint.mkdir()
    report = tmp_path / "report.txt"

    def publish_into_small_disk() -> None:
        os.unshare(os.CLONE_NEWNS) if hasattr(os, "unshare") else _unshare_mounts()
        subprocess.run(["mount", "--make-rprivate", "/"], check=True)
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(mountpoint)], check=True)
        repository = mountpoint / "repository"
        publish_bundle(bundles.proven.path, repository)
        before = fingerprint(repository)
        try:
            publish_bundle(big.path, repository, model_name="big", allow_unproven=True)
        except RepositoryUnavailable as error:
            report.write_text(str(error))
        assert fingerprint(repository)["linear/1/model.onnx"] == before["linear/1/model.onnx"]
        assert_whole(repository, "linear")
        assert sorted(p.name for p in mountpoint.iterdir()) == ["repository"], "the space was not given back"

    if not wait_for(start_in_child(publish_into_small_disk)):
        pytest.fail("the child was killed")
    assert "No space left on device" in report.read_text()


def _unshare_mounts() -> None:
    """os.unshare came with Python 3.12."""
    import ctypes

    clone_newns = 0x00020000
    if ctypes.CDLL(None, use_errno=True).unshare(clone_newns) != 0:
        raise OSError(ctypes.get_errno(), "unshare")


def test_directory_without_write_permission_is_refused_in_one_line(
    bundles: BundleSet, repository: Path
) -> None:
    """As another user, because permissions do not bind root."""
    if os.geteuid() != 0:
        pytest.skip("becoming another user needs root")
    nobody = 65534
    for folder in (*repository.parents, bundles.proven.path, *bundles.proven.path.parents):
        if folder.stat().st_uid == 0 and "pytest" in str(folder):
            folder.chmod(0o755)

    def publish_as_nobody() -> None:
        os.setgid(nobody)
        os.setuid(nobody)
        with pytest.raises(
            RepositoryUnavailable, match=r"Permission denied.*Give this user write permission"
        ):
            publish_bundle(bundles.proven.path, repository)

    assert wait_for(start_in_child(publish_as_nobody))
    assert list(repository.iterdir()) == []
