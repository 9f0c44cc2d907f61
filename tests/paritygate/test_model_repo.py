"""The repository that a clone carries is clean, proven, and answers a stock client with the sealed numbers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import tritonclient.http

from paritygate.converter.bundle import read_bundle
from paritygate.serving.publish import ModelRepository
from support.gateway import running_gateway

REPOSITORY = Path(__file__).resolve().parents[2] / "model_repo"


def test_it_has_nothing_to_complain_about() -> None:
    assert ModelRepository(REPOSITORY).lint() == []


def test_its_certificate_speaks_of_these_bytes() -> None:
    bundle = read_bundle(REPOSITORY / "iris" / "1")
    certificate = bundle.certificate()
    assert certificate is not None
    assert certificate.verdict == "pass"
    assert certificate.bundle_digest == bundle.digest


def test_the_gateway_answers_with_the_sealed_numbers(tmp_path: Path) -> None:
    probe = next(iter(read_bundle(REPOSITORY / "iris" / "1").probes()))
    with running_gateway(REPOSITORY, tmp_path) as gateway:
        client = tritonclient.http.InferenceServerClient(gateway.http)
        flower = tritonclient.http.InferInput("flower", list(probe.inputs["flower"].shape), "FP32")
        flower.set_data_from_numpy(probe.inputs["flower"])
        answer = client.infer("iris", [flower]).as_numpy("probabilities")
        client.close()
    np.testing.assert_allclose(answer, probe.outputs["probabilities"], rtol=1e-4, atol=1e-6)
