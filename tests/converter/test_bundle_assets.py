"""Files that travel with a model: sealed like all others, and never led astray by their names."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from paritygate.converter.bundle import Bundle, BundleDraft, read_bundle, write_bundle
from paritygate.converter.errors import BundleCorrupt, BundleError
from support.bundles import linear_bundle


def with_assets(folder: Path, assets: dict[str, Path]) -> Bundle:
    """The linear bundle again, with files beside it."""
    plain = linear_bundle(folder / "plain")
    draft = BundleDraft(
        name="linear",
        model_path=plain.path / "model.onnx",
        signature=plain.signature,
        framework="numpy",
        framework_version="1",
        exporter="hand",
        exporter_version="1",
        probes=list(plain.probes()),
        trace_dims=plain.trace_dims,
        assets=assets,
    )
    return write_bundle(draft, folder / "bundle")


@pytest.fixture
def words(tmp_path: Path) -> Path:
    (tmp_path / "words.txt").write_text("the\nof\n")
    return tmp_path / "words.txt"


def test_assets_are_sealed_and_read_back(words: Path, tmp_path: Path) -> None:
    bundle = with_assets(tmp_path, {"vocab.txt": words, "1_Pooling/config.json": words})
    bundle.verify()
    assert bundle.asset_names == ("1_Pooling/config.json", "vocab.txt")
    assert bundle.asset("vocab.txt") == b"the\nof\n"
    assert bundle.manifest["files"]["assets/vocab.txt"]["size_bytes"] == 7


def test_bundle_without_assets_has_none(tmp_path: Path) -> None:
    bundle = linear_bundle(tmp_path / "bundle")
    assert bundle.asset_names == ()
    assert not (bundle.path / "assets").exists()
    with pytest.raises(BundleCorrupt, match=r"lists no 'assets/vocab\.txt'"):
        bundle.asset("vocab.txt")


def test_link_becomes_a_plain_file(words: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(words)
    bundle = with_assets(tmp_path, {"vocab.txt": tmp_path / "link"})
    assert not (bundle.path / "assets" / "vocab.txt").is_symlink()
    bundle.verify()


@pytest.mark.parametrize("damage", ["changed", "missing", "extra", "link"])
def test_damaged_assets_are_refused(damage: str, words: Path, tmp_path: Path) -> None:
    bundle = with_assets(tmp_path, {"vocab.txt": words})
    file = bundle.path / "assets" / "vocab.txt"
    if damage == "changed":
        file.write_text("of\nthe\n")
    elif damage == "extra":
        shutil.copy(file, file.with_name("other.txt"))
    else:
        file.unlink()
    if damage == "link":
        file.symlink_to(words)
    with pytest.raises(BundleCorrupt, match="assets/"):
        read_bundle(bundle.path)


@pytest.mark.parametrize("name", ["../outside.txt", "/tmp/outside.txt", "a/../../outside.txt", "", "a\\b"])
def test_name_that_leaves_the_folder_is_refused(name: str, words: Path, tmp_path: Path) -> None:
    with pytest.raises(BundleError, match="cannot travel with the model"):
        with_assets(tmp_path, {name: words})
    assert not (tmp_path / "bundle").exists()


def test_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BundleError, match=r"gone\.txt cannot travel with the model"):
        with_assets(tmp_path, {"vocab.txt": tmp_path / "gone.txt"})
