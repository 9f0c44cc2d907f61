"""The SavedModel that travels with a bundle: laid out for TensorFlow Serving only while it answers as sealed."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from paritygate.cli import main
from paritygate.converter.bundle import Bundle, BundleDraft, read_bundle, write_bundle
from paritygate.converter.errors import BundleError, ParityError
from paritygate.converter.parity.validate import validate_bundle
from paritygate.converter.saved_model import lay_out
from support.bundles import linear_bundle
from support.environments import real_environment, run_in

_SCRIPT = Path(__file__).parents[1] / "support" / "served_saved_model.py"


@dataclass(frozen=True)
class Kept:
    """What the tests share.

    Attributes:
        folder: Where everything is written.
        bundle: A bundle with its SavedModel.
        source: That SavedModel.
        changed: The same one with one weight changed.
    """

    folder: Path
    bundle: Bundle
    source: Path
    changed: Path


def _paritygate(*arguments: str | Path) -> int:
    with pytest.raises(SystemExit) as ended:
        main([str(argument) for argument in arguments])
    return int(ended.value.code or 0)


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Kept:
    """A SavedModel of two signatures, the second of which was exported from here with the command."""
    folder = tmp_path_factory.mktemp("kept")
    run_in(real_environment("tensorflow"), _SCRIPT, "save", folder, folder=folder)
    bundle = folder / "bundle"
    words = ("--signature", "scaled", "--keep-saved-model", "--name", "net")
    assert _paritygate("export", folder / "net", "-o", bundle, *words) == 0
    return Kept(folder, read_bundle(bundle), folder / "net", folder / "changed")


@pytest.mark.real
def test_versions_are_laid_out_and_answer_as_onnx_was_sealed(
    kept: Kept, capsys: pytest.CaptureFixture[str]
) -> None:
    assert validate_bundle(kept.bundle).verdict == "pass"
    models = kept.folder / "models" / "net"
    capsys.readouterr()
    assert _paritygate("saved-model", kept.bundle.path, "-o", models, "--json") == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["version"], said["signature"], said["path"]) == (1, "scaled", str(models / "1"))
    assert said["figures"] == 2 * len(list(kept.bundle.probes()))
    assert said["max_abs_diff"] == 0, "the same framework gave other answers to the same probes"
    second = lay_out(kept.bundle, models)
    assert (second.version, second.path) == (2, models / "2")
    assert _files(models / "1") == _files(models / "2") == _files(kept.source)
    _assert_answers_as_sealed(kept, models / "2")


def _files(folder: Path) -> dict[str, bytes]:
    return {str(f.relative_to(folder)): f.read_bytes() for f in sorted(folder.rglob("*")) if f.is_file()}


def _assert_answers_as_sealed(kept: Kept, laid_out: Path) -> None:
    probes = {str(probe.index): probe for probe in kept.bundle.probes()}
    asked, answered = kept.folder / "asked.npz", kept.folder / "answered.npz"
    np.savez(asked, **{f"{k}/{name}": a for k, probe in probes.items() for name, a in probe.inputs.items()})
    run_in(
        real_environment("tensorflow"),
        _SCRIPT,
        "ask",
        laid_out,
        "scaled",
        asked,
        answered,
        folder=kept.folder,
    )
    with np.load(answered, allow_pickle=False) as answers:
        assert len(answers) == 2 * len(probes)
        for key, answer in answers.items():
            case, name = key.split("/")
            np.testing.assert_array_equal(answer, probes[case].outputs[name])


@pytest.mark.real
def test_a_changed_variable_is_caught_though_every_digest_is_right(kept: Kept) -> None:
    changed = _with_assets(kept, kept.changed)
    changed.verify()
    models = kept.folder / "unwanted"
    with pytest.raises(
        ParityError, match=r"'net' does not answer as it was sealed: .*'large'.*Nothing was"
    ) as e:
        lay_out(changed, models)
    assert "\n" not in str(e.value)
    assert not models.exists()


def _with_assets(kept: Kept, saved_model: Path) -> Bundle:
    """The bundle again, sealed with another SavedModel in the place of its own."""
    assets = {f"saved_model/{name}": saved_model / name for name in _files(saved_model)}
    assets["saved_model.json"] = kept.bundle.path / "assets" / "saved_model.json"
    draft = BundleDraft(
        name="net",
        model_path=kept.bundle.path / "model.onnx",
        signature=kept.bundle.signature,
        framework="tensorflow",
        framework_version="2",
        exporter="tensorflow",
        exporter_version="1",
        probes=list(kept.bundle.probes()),
        trace_dims=kept.bundle.trace_dims,
        assets=assets,
    )
    return write_bundle(draft, kept.folder / f"bundle-of-{saved_model.name}")


def test_a_bundle_without_one_says_how_to_keep_it(tmp_path: Path) -> None:
    bundle = linear_bundle(tmp_path / "bundle")
    with pytest.raises(BundleError, match=r"no SavedModel travels with .*--keep-saved-model"):
        lay_out(bundle, tmp_path / "models")
    assert not (tmp_path / "models").exists()


def test_the_command_says_it_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bundle = linear_bundle(tmp_path / "bundle")
    capsys.readouterr()
    assert _paritygate("saved-model", bundle.path, "-o", tmp_path / "models") == 1
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.count("\n") == 1
    assert "--keep-saved-model" in said.err
