"""Every exporter of the registry: its bundles pass parity, no bundle passes whose weights were changed, no file
runs code that it carries, and bad input gets one line."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from paritygate.converter.bundle import Bundle, read_bundle
from paritygate.converter.config import ExportConfig
from paritygate.converter.errors import ConverterError
from paritygate.converter.exporters import EXPORTERS
from paritygate.converter.parity.validate import validate_bundle
from support.export_case import Job, export_case
from support.export_worker import ExportWorker
from support.exporter_cases import cases_of
from support.model_packages import fetch
from support.weight_changes import change_weights


class Lab:
    """Exports cases here or where their framework is."""

    def __init__(self) -> None:
        self._workers: dict[str | None, ExportWorker] = {}

    def export(self, job: Job) -> Bundle:
        """The bundle of a case that has to convert."""
        if job.group in ("files", "trained"):
            for package in cases_of(job.exporter).packages:
                fetch(package)
        if _is_here(job.exporter):
            return export_case(job)
        answer = self.in_worker(job)
        assert "digest" in answer, answer["said"]
        return read_bundle(Path(job.directory))

    def in_worker(self, job: Job) -> dict[str, object]:
        """The worker's answer; a process of its own also for frameworks that are here."""
        environment = None if _is_here(job.exporter) else cases_of(job.exporter).environment
        if environment not in self._workers:
            self._workers[environment] = ExportWorker(environment)
        return self._workers[environment].run(job)

    def close(self) -> None:
        for worker in self._workers.values():
            worker.__exit__(None, None, None)


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    lab = Lab()
    yield lab
    lab.close()


def _is_here(exporter: str) -> bool:
    return importlib.util.find_spec(cases_of(exporter).module) is not None


def _each(*groups: str) -> list[object]:
    """(exporter, group, case) of every registered exporter, with the real tests where it needs an environment."""
    return [
        pytest.param(
            name,
            group,
            case,
            id=f"{name}-{case or group}",
            marks=() if _runs_quickly(name, group) else pytest.mark.real,
        )
        for name in EXPORTERS
        for group in groups
        for case in _names(name, group)
    ]


def _names(name: str, group: str) -> list[str]:
    cases = getattr(cases_of(name), group)
    if group in ("guarded", "demoted"):
        return [""] if cases is not None else []
    return list(cases)


def _runs_quickly(name: str, group: str) -> bool:
    return _is_here(name) and not (group == "trained" and cases_of(name).packages)


@pytest.mark.parametrize("name", EXPORTERS)
def test_every_registered_exporter_has_conformance_cases(name: str) -> None:
    cases = cases_of(name)
    assert cases.ranks, "models by rank"
    assert cases.trained, "at least one model that was trained on real data"
    assert cases.refused, "bad input"


@pytest.mark.parametrize(("name", "group", "case"), _each("ranks"))
def test_exported_bundle_passes_parity_at_every_rank(
    lab: Lab, name: str, group: str, case: str, tmp_path: Path
) -> None:
    bundle = lab.export(Job(name, group, case, str(tmp_path / "bundle")))
    certificate = validate_bundle(bundle)
    assert certificate.verdict == "pass", certificate.reason
    assert bundle.demoted == ()
    assert all(len(spec.shape) == int(case[4]) for spec in bundle.signature.inputs)
    open_dims = set(bundle.signature.dynamic_dims())
    assert open_dims == (set() if case == "rank0" else open_dims | {"batch"})
    assert {
        dim: set(sizes) >= {1, 2, 7} for dim, sizes in certificate.proven_ranges.items()
    } == dict.fromkeys(open_dims, True)


@pytest.mark.parametrize(("name", "group", "case"), _each("files", "trained"))
def test_every_form_of_source_passes_parity(
    lab: Lab, name: str, group: str, case: str, tmp_path: Path
) -> None:
    bundle = lab.export(Job(name, group, case, str(tmp_path / "bundle")))
    certificate = validate_bundle(bundle)
    assert certificate.verdict == "pass", certificate.reason


@pytest.mark.parametrize(("name", "group", "case"), _each("demoted"))
def test_dim_that_cannot_vary_is_fixed_with_a_reason(
    lab: Lab, name: str, group: str, case: str, tmp_path: Path
) -> None:
    bundle = lab.export(Job(name, group, case, str(tmp_path / "bundle")))
    assert [entry.dim for entry in bundle.demoted] == ["frozen"]
    assert bundle.demoted[0].reason
    assert set(bundle.signature.dynamic_dims()) == {"batch"}
    assert validate_bundle(bundle).verdict == "pass"


@pytest.mark.parametrize(("name", "group", "case"), _each("guarded"))
def test_weights_changed_before_sealing_fail_parity(
    lab: Lab, name: str, group: str, case: str, tmp_path: Path
) -> None:
    bundle = lab.export(Job(name, group, case, str(tmp_path / "bundle"), change=True))
    bundle.verify()  # every digest is right: only the numbers can tell
    certificate = validate_bundle(bundle)
    assert certificate.verdict == "fail"
    assert any(spec.name in str(certificate.reason) for spec in bundle.signature.outputs)


@pytest.mark.parametrize(("name", "group", "case"), _each("guarded"))
def test_same_source_gives_the_same_bundle(
    lab: Lab, name: str, group: str, case: str, tmp_path: Path
) -> None:
    first = lab.export(Job(name, group, case, str(tmp_path / "first")))
    second = lab.export(Job(name, group, case, str(tmp_path / "second")))
    assert first.manifest["files"]["model.onnx"] == second.manifest["files"]["model.onnx"]


@pytest.mark.parametrize(("name", "group", "case"), _each("planted"))
def test_code_that_a_file_carries_is_not_run(
    lab: Lab, name: str, group: str, case: str, tmp_path: Path
) -> None:
    refused = Job(name, group, case, str(tmp_path / "refused"))
    answer = lab.in_worker(refused)
    assert not refused.canary.exists(), "the payload ran"
    assert "UnsafeSource" in answer.get("error", ()), answer  # type: ignore[operator]
    assert "\n" not in str(answer["said"])
    assert "--trust" in str(answer["said"])
    trusted = Job(name, group, case, str(tmp_path / "trusted"), trust=True)
    lab.in_worker(trusted)
    assert trusted.canary.exists() != (case in cases_of(name).inert), "the payload was no payload"


@pytest.mark.parametrize(("name", "group", "case"), _each("refused"))
def test_bad_input_gets_one_line(lab: Lab, name: str, group: str, case: str, tmp_path: Path) -> None:
    expected = cases_of(name).refused[case]
    job = Job(name, group, case, str(tmp_path / "bundle"))
    if _is_here(name):
        with pytest.raises((ConverterError, ValueError)) as caught:
            export_case(job)
        kinds, said = [kind.__name__ for kind in type(caught.value).__mro__], str(caught.value)
    else:
        answer = lab.in_worker(job)
        kinds, said = list(answer.get("error", ())), str(answer.get("said", answer))  # type: ignore[call-overload]
    assert re.search(expected.match, said), said
    assert expected.error in kinds, f"{kinds}: {said}"
    assert "\n" not in said
    assert not Path(job.directory).exists()


def test_guard_catches_an_exporter_that_records_the_runtimes_answers(tmp_path: Path) -> None:
    """The guard itself can fail: a cheat whose probes are onnxruntime's passes parity with changed weights."""
    pytest.importorskip("torch")
    from support.cheating_exporter import CheatingExporter

    model, options = cases_of("pytorch").guarded()
    config = ExportConfig(name="cheat", after_conversion=change_weights, **options)
    bundle = CheatingExporter().export(model, tmp_path / "bundle", config)
    assert validate_bundle(bundle).verdict == "pass"
