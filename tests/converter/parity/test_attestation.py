"""Attestation: the serving session must confirm a passing certificate for these very bytes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from onnx import helper

from paritygate.converter.bundle import Bundle, read_bundle
from paritygate.converter.errors import ParityError
from paritygate.converter.parity import ToleranceConfig, attest, validate_bundle, write_evidence
from paritygate.converter.parity.report import Certificate
from paritygate.converter.runtime.onnxruntime import Session, open_session
from paritygate.converter.types import Array, DType, Feeds, Signature, TensorSpec
from support.sealed import TRACE, Classifier, classifier_bundle, model_of, scaled, seal


def test_the_session_that_was_proven_is_attested(tmp_path: Path) -> None:
    bundle = classifier_bundle(tmp_path)
    certificate = validate_bundle(bundle)
    attestation = attest(bundle, certificate, open_session(bundle.model_bytes()))
    assert attestation.verdict == "pass"
    assert attestation.bundle_digest == bundle.digest
    assert attestation.certificate_sha256 == certificate.sha256
    assert attestation.runtime.provider == "CPUExecutionProvider"
    assert len(attestation.figures) == len(certificate.figures) / 2


def test_a_session_that_computes_something_else_is_not_attested(tmp_path: Path) -> None:
    bundle = classifier_bundle(tmp_path)
    other = open_session(Classifier().model(change={"w1": scaled(2.0)}).SerializeToString())
    attestation = attest(bundle, validate_bundle(bundle), other)
    assert attestation.verdict == "fail"
    assert "output 'probs': max_abs_diff" in attestation.reason


def test_a_session_that_cannot_run_the_probes_is_an_error(tmp_path: Path) -> None:
    bundle = classifier_bundle(tmp_path)
    signature = Signature((TensorSpec("z", DType.FLOAT32, (1,)),), (TensorSpec("y", DType.FLOAT32, (1,)),))
    other = open_session(
        model_of([helper.make_node("Identity", ["z"], ["y"])], signature).SerializeToString()
    )
    assert attest(bundle, validate_bundle(bundle), other).verdict == "error"


def nudged_bundle(directory: Path) -> Bundle:
    """One weight is off by more than rounding and by far less than the table allows: the noise key's business."""
    return classifier_bundle(directory, change={"w1": scaled(1 + 1e-4)})


def test_the_tolerances_of_the_certificate_are_those_that_count(tmp_path: Path) -> None:
    bundle = nudged_bundle(tmp_path)
    loose = ToleranceConfig()
    for rung in ("float32", "float32-optimized"):
        loose = loose.changed(rung, noise_floor=1e-2, rtol=1e-2, atol=1e-2)
    certificate = Certificate.from_bytes(validate_bundle(bundle, tolerance=loose).to_bytes())
    session = open_session(bundle.model_bytes())
    assert certificate.verdict == "pass"
    assert attest(bundle, certificate, session).verdict == "pass"
    strict = replace(certificate, tolerances=ToleranceConfig().to_json())
    assert attest(bundle, strict, session).verdict == "fail"


class Shaky:
    """A session whose answers move wildly with the last bit of its inputs, and are right for the probes."""

    def __init__(self, session: Session, known: list[Array]) -> None:
        self._session, self._known = session, known

    def __getattr__(self, name: str) -> object:
        return getattr(self._session, name)

    def run(self, feeds: Feeds) -> dict[str, Array]:
        outputs = self._session.run(feeds)
        if not any(np.array_equal(feeds["x"], x) for x in self._known):
            outputs["probs"] = outputs["probs"] * np.float32(3)
        return outputs


def test_a_session_does_not_set_the_bound_that_it_is_held_to(tmp_path: Path) -> None:
    """Noise measured on the session under test would be large here, and would excuse the changed weight."""
    bundle = classifier_bundle(tmp_path)
    certificate = validate_bundle(bundle)
    other = open_session(Classifier().model(change={"w1": scaled(1 + 1e-4)}).SerializeToString())
    shaky = Shaky(other, [probe.inputs["x"] for probe in bundle.probes()])
    attestation = attest(bundle, certificate, shaky)  # type: ignore[arg-type]
    assert attestation.verdict == "fail"
    proven = {(f.case, f.output): f.noise for f in certificate.figures}
    assert {(f.case, f.output): f.noise for f in attestation.figures} == proven


def test_a_certificate_for_other_bytes_does_not_count(tmp_path: Path) -> None:
    bundle = classifier_bundle(tmp_path / "a")
    other = classifier_bundle(tmp_path / "b", notes=("another bundle",))
    with pytest.raises(ParityError, match="the bundle was changed after validation"):
        attest(bundle, validate_bundle(other), open_session(bundle.model_bytes()))


def test_a_failing_certificate_does_not_count(tmp_path: Path) -> None:
    bundle = classifier_bundle(tmp_path, change={"w1": scaled(2.0)})
    with pytest.raises(ParityError, match="the certificate's verdict is fail"):
        attest(bundle, validate_bundle(bundle), open_session(bundle.model_bytes()))


def test_cases_of_demoted_dims_are_not_asked_again(tmp_path: Path) -> None:
    signature = Signature(
        (TensorSpec("x", DType.FLOAT32, ("batch", 4)),), (TensorSpec("y", DType.FLOAT32, ("batch", 4)),)
    )

    def same(feeds: Feeds) -> dict[str, Array]:
        return {"y": feeds["x"]}

    nodes = [helper.make_node("Reshape", ["x", "shape"], ["y"])]
    model = model_of(nodes, signature, {"shape": np.array([TRACE, 4])})
    bundle = seal(tmp_path, model, signature, same)
    attestation = attest(bundle, validate_bundle(bundle), open_session(bundle.model_bytes()))
    assert attestation.verdict == "pass"
    assert not any(figure.case.startswith("sweep:") for figure in attestation.figures)


def test_evidence_lies_beside_the_bundle_and_leaves_its_digest_alone(tmp_path: Path) -> None:
    bundle = classifier_bundle(tmp_path)
    assert bundle.certificate() is None
    certificate = validate_bundle(bundle)
    path = write_evidence(bundle, certificate)
    again = read_bundle(bundle.path)
    assert path == bundle.path / "evidence" / "certificate.json"
    assert again.digest == bundle.digest
    assert again.certificate() == certificate
    assert (bundle.path / "evidence" / "summary.txt").read_text("utf-8") == certificate.summary()
    assert sorted(p.name for p in path.parent.iterdir()) == ["certificate.json", "summary.txt"]


def test_a_failing_certificate_may_be_written_to_be_read(tmp_path: Path) -> None:
    bundle = classifier_bundle(tmp_path, change={"w1": scaled(2.0)})
    write_evidence(bundle, validate_bundle(bundle))
    found = read_bundle(bundle.path).certificate()
    assert found is not None
    assert found.verdict == "fail"


def test_evidence_of_another_bundle_is_not_written(tmp_path: Path) -> None:
    bundle = classifier_bundle(tmp_path)
    certificate = replace(validate_bundle(bundle), bundle_digest="sha256:" + "0" * 64)
    with pytest.raises(ParityError, match="speaks of bundle sha256:0000"):
        write_evidence(bundle, certificate)
