"""Zip archives: records over each other, or that fill the memory, are refused before anything is unpacked."""

from __future__ import annotations

import zipfile
from pathlib import Path

import numpy as np
import pytest

from paritygate.converter.checkpoints import archives
from paritygate.converter.checkpoints.archives import BadZip, open_zip
from paritygate.converter.checkpoints.sniffing import look_at
from paritygate.converter.checkpoints.torch_archive import BadArchive, read_archive


def _archive(folder: Path, records: int = 3, **options: int) -> Path:
    with zipfile.ZipFile(folder / "x.zip", "w", **options) as archive:  # type: ignore[arg-type]
        for index in range(records):
            archive.writestr(f"net/data/{index}", bytes(5000))
    return folder / "x.zip"


def _overlapping(folder: Path) -> Path:
    """Every entry of the directory names the first record."""
    path = folder / "x.zip"
    with zipfile.ZipFile(path, "w") as archive:
        for index in range(100):
            archive.writestr(f"net/data/{index}", b"" if index else bytes(5000))
        first = archive.infolist()[0]
        for entry in archive.infolist():
            entry.header_offset, entry.CRC = first.header_offset, first.CRC
            entry.file_size, entry.compress_size = first.file_size, first.compress_size
    return path


def test_ordinary_archives_are_opened(tmp_path: Path) -> None:
    for compression in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        with open_zip(_archive(tmp_path, compression=compression)) as archive:
            assert archive.read("net/data/1") == bytes(5000)
    np.savez_compressed(tmp_path / "zeros.npz", x=np.zeros(10**6))
    with open_zip(tmp_path / "zeros.npz") as archive:
        assert archive.namelist() == ["x.npy"]


def test_records_that_lie_over_each_other_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BadZip, match=r"its record 'net/data/1' lies over another one"):
        open_zip(_overlapping(tmp_path))
    with pytest.raises(BadArchive, match="lies over another one"):
        read_archive(tmp_path / "x.zip")
    assert look_at(tmp_path / "x.zip") is None


def test_records_that_unpack_into_too_much_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archives, "MAX_UNPACKED_BYTES", 10_000)
    with open_zip(_archive(tmp_path)):
        pass  # stored: it takes no more than it has
    with pytest.raises(BadZip, match="its records take 15000 bytes unpacked"):
        open_zip(_archive(tmp_path, compression=zipfile.ZIP_DEFLATED))
