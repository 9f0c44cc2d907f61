"""Every exporter of the registry: its bundles pass parity, and no bundle passes whose weights were changed."""

from __future__ import annotations

import importlib.util
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from paritygate.converter.bundle import Bundle, read_bundle
from paritygate.converter.config import ExportConfig
from paritygate.converter.exporters import EXPORTERS
from paritygate.converter.parity.validate import validate_bundle
from support.environments import real_environment
from support.export_case import export_case
from support.exporter_cases import CASES
from support.shared import ROOT
from support.weight_changes import change_weights

Export = Callable[..., Bundle]


def _each(cases: Callable[[str], list[str]]) -> list[object]:
    """(framework, case) pairs; a framework that is not here runs in its environment, with the real tests."""
    return [
        pytest.param(name, case, id=f"{name}-{case}", marks=() if _is_here(name) else (pytest.mark.real,))
        for name in CASES
        for case in cases(name)
    ]


def _is_here(framework: str) -> bool:
    return importlib.util.find_spec(CASES[framework].module) is not None


def _export(framework: str, case: str, directory: Path, *, change: bool = False) -> Bundle:
    if _is_here(framework):
        return export_case(framework, case, directory, change=change)
    environment = real_environment("tensorflow" if CASES[framework].module == "tensorflow" else framework)
    links = directory.parent / "links"
    links.mkdir(exist_ok=True)
    if not (links / "paritygate").exists():
        (links / "paritygate").symlink_to(ROOT / "paritygate")
    command = [str(environment.python), "-m", "support.export_case", framework, case, str(directory)]
    search = os.pathsep.join([str(links), str(ROOT / "tests")])
    done = subprocess.run(
        [*command, *(["--change"] if change else [])],
        env={**os.environ, "PYTHONPATH": search, "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return read_bundle(directory)


def test_every_registered_exporter_has_conformance_cases() -> None:
    assert set(CASES) == set(EXPORTERS)


@pytest.mark.parametrize(("framework", "case"), _each(lambda name: list(CASES[name].ranks)))
def test_exported_bundle_passes_parity_at_every_rank(framework: str, case: str, tmp_path: Path) -> None:
    bundle = _export(framework, case, tmp_path / "bundle")
    certificate = validate_bundle(bundle)
    assert certificate.verdict == "pass", certificate.reason
    assert bundle.demoted == ()
    assert all(len(spec.shape) == int(case[-1]) for spec in bundle.signature.inputs)
    open_dims = set(bundle.signature.dynamic_dims())
    assert open_dims == (set() if case == "rank0" else open_dims | {"batch"})
    assert {
        dim: set(sizes) >= {1, 2, 7} for dim, sizes in certificate.proven_ranges.items()
    } == dict.fromkeys(open_dims, True)


@pytest.mark.parametrize(("framework", "case"), _each(lambda _: ["demoted"]))
def test_dim_that_cannot_vary_is_fixed_with_a_reason(framework: str, case: str, tmp_path: Path) -> None:
    bundle = _export(framework, case, tmp_path / "bundle")
    assert [entry.dim for entry in bundle.demoted] == ["frozen"]
    assert bundle.demoted[0].reason
    assert set(bundle.signature.dynamic_dims()) == {"batch"}
    assert validate_bundle(bundle).verdict == "pass"


@pytest.mark.parametrize(("framework", "case"), _each(lambda _: ["guarded"]))
def test_weights_changed_before_sealing_fail_parity(framework: str, case: str, tmp_path: Path) -> None:
    bundle = _export(framework, case, tmp_path / "bundle", change=True)
    bundle.verify()  # every digest is right: only the numbers can tell
    certificate = validate_bundle(bundle)
    assert certificate.verdict == "fail"
    assert any(spec.name in str(certificate.reason) for spec in bundle.signature.outputs)


@pytest.mark.parametrize(("framework", "case"), _each(lambda _: ["guarded"]))
def test_same_source_gives_the_same_bundle(framework: str, case: str, tmp_path: Path) -> None:
    first = _export(framework, case, tmp_path / "first")
    second = _export(framework, case, tmp_path / "second")
    assert first.manifest["files"]["model.onnx"] == second.manifest["files"]["model.onnx"]


def test_guard_catches_an_exporter_that_records_the_runtimes_answers(tmp_path: Path) -> None:
    """The guard itself can fail: a cheat whose probes are onnxruntime's passes parity with changed weights."""
    pytest.importorskip("torch")
    from support.cheating_exporter import CheatingExporter
    from support.export_case import build_of

    model, options = build_of("pytorch", "guarded")()
    config = ExportConfig(name="cheat", after_conversion=change_weights, **options)
    bundle = CheatingExporter().export(model, tmp_path / "bundle", config)
    assert validate_bundle(bundle).verdict == "pass"
