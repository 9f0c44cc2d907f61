"""A published repository in a real Triton: it loads unchanged and answers within the certificate."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paritygate.converter.bundle import Bundle
from paritygate.converter.parity.noise import measure_noise
from paritygate.converter.parity.replay import Replay
from paritygate.converter.parity.report import Figure
from paritygate.converter.runtime.onnxruntime import open_session
from paritygate.converter.types import Array, DType, Feeds
from paritygate.serving.publish import publish_bundle
from support.bundles import proven_bundle
from support.repositories import fingerprint
from support.triton import Triton, running_triton

pytestmark = pytest.mark.real

DATATYPES = {DType.FLOAT32: "FP32"}


@dataclass(frozen=True)
class TritonSession:
    """One version in a Triton, asked as parity asks a session."""

    client: Any
    bundle: Bundle
    version: int
    optimized: bool = True

    def run(self, feeds: Feeds) -> dict[str, Array]:
        from tritonclient.http import InferInput, InferRequestedOutput

        inputs = []
        for spec in self.bundle.signature.inputs:
            array = np.ascontiguousarray(feeds[spec.name])
            tensor = InferInput(spec.name, list(array.shape), DATATYPES[spec.dtype])
            tensor.set_data_from_numpy(array)
            inputs.append(tensor)
        wanted = [InferRequestedOutput(spec.name) for spec in self.bundle.signature.outputs]
        answer = self.client.infer(self.bundle.name, inputs, model_version=str(self.version), outputs=wanted)
        assert answer.get_response()["model_version"] == str(self.version)
        return {spec.name: answer.as_numpy(spec.name) for spec in self.bundle.signature.outputs}


def compare(triton: Triton, bundle: Bundle, version: int) -> list[Figure]:
    """Parity's own comparison of a version in Triton with the answers that the source sealed into the bundle."""
    replay = Replay.of(bundle)
    plain = open_session(bundle.model_bytes(), external_data=bundle.external_data(), optimize=False)
    noise = measure_noise(replay.probes, plain, replay.scales)
    with closing(triton.client()) as client:
        session: Any = TritonSession(client, bundle, version)
        return [figure for probe in replay.probes for figure in replay.figures(probe, session, noise)]


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> tuple[Bundle, Bundle]:
    folder = tmp_path_factory.mktemp("bundles")
    first, second = (proven_bundle(folder / str(seed), seed=seed) for seed in (1, 2))
    return first, second


@pytest.fixture(scope="module")
def repository(both: tuple[Bundle, Bundle], tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("published") / "repository"
    for bundle in both:
        publish_bundle(bundle.path, path)
        publish_bundle(bundle.path, path, model_name="batched", max_batch_size=32)
    return path


@pytest.fixture(scope="module")
def triton(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Triton]:
    with running_triton(repository, tmp_path_factory.mktemp("triton")) as server:
        yield server


def test_every_published_version_is_ready_and_the_repository_unchanged(
    both: tuple[Bundle, Bundle], tmp_path: Path
) -> None:
    for bundle in both:
        publish_bundle(bundle.path, tmp_path / "repository")
    before = fingerprint(tmp_path / "repository")
    with running_triton(tmp_path / "repository", tmp_path / "triton") as server:
        assert server.ready("linear") == [1, 2]
    assert fingerprint(tmp_path / "repository") == before


def test_what_travels_with_a_model_does_not_hinder_triton(tmp_path: Path) -> None:
    tokenizer = tmp_path / "tokenizer.json"
    tokenizer.write_text("{}")
    served = proven_bundle(
        tmp_path / "bundle", assets={"tokenizer.json": tokenizer, "labels/model.onnx": tokenizer}
    )
    publish_bundle(served.path, tmp_path / "repository")
    with running_triton(tmp_path / "repository", tmp_path / "triton") as server:
        assert server.ready("linear") == [1]
        figures = compare(server, served, 1)
    assert {figure.verdict for figure in figures} == {"pass"}


@pytest.mark.parametrize("version", [1, 2])
def test_every_version_answers_within_its_certificate(
    version: int, triton: Triton, both: tuple[Bundle, Bundle]
) -> None:
    figures = compare(triton, both[version - 1], version)
    assert len(figures) == len(list(both[version - 1].probes())) > 5
    assert [str(figure.reason) for figure in figures if figure.verdict != "pass"] == []


def test_comparison_fails_for_the_answers_of_another_version(
    triton: Triton, both: tuple[Bundle, Bundle]
) -> None:
    assert "fail" in {figure.verdict for figure in compare(triton, both[0], 2)}


def test_triton_fills_nothing_in_that_the_config_should_say(triton: Triton, repository: Path) -> None:
    from google.protobuf import json_format
    from tritonclient.grpc import model_config_pb2

    from paritygate.serving.publish import ModelRepository

    with closing(triton.client()) as client:
        served = client.get_model_config("linear")
    told = json_format.ParseDict(served, model_config_pb2.ModelConfig(), ignore_unknown_fields=True)
    ours = ModelRepository(repository).load_config("linear").message
    for field in ("name", "backend", "max_batch_size", "input", "output", "version_policy"):
        assert getattr(told, field) == getattr(ours, field)


def test_batched_model_takes_every_size_up_to_its_limit(triton: Triton, both: tuple[Bundle, Bundle]) -> None:
    from tritonclient.http import InferInput
    from tritonclient.utils import InferenceServerException

    def ask(batch: int) -> Array:
        x = np.ones((batch, 4), np.float32)
        tensor = InferInput("x", list(x.shape), "FP32")
        tensor.set_data_from_numpy(x)
        return np.asarray(client.infer("batched", [tensor]).as_numpy("y"))

    with closing(triton.client()) as client:
        assert ask(1).shape == (1, 3)
        assert ask(32).shape == (32, 3)
        with pytest.raises(InferenceServerException, match="batch-size must be <= 32"):
            ask(33)
