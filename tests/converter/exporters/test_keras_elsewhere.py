"""Keras models that were trained on JAX and on PyTorch: in memory, and as the files that they leave."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paritygate.converter.bundle import Bundle, read_bundle
from paritygate.converter.config import ExportConfig
from paritygate.converter.environments import export_source
from paritygate.converter.parity.validate import validate_bundle
from paritygate.converter.runtime.onnxruntime import open_session
from support.environments import real_environment, run_in

pytestmark = pytest.mark.real

_SCRIPT = Path(__file__).parents[2] / "support" / "keras_elsewhere.py"
_PACKAGES_OF = {"torch": "pytorch", "jax": "jax"}


@dataclass(frozen=True)
class Trained:
    """What a training process on another backend left behind.

    Attributes:
        backend: Which one.
        folder: Where it lies.
        report: What the process said.
    """

    backend: str
    folder: Path
    report: dict[str, Any]

    def assert_answers_as_trained(self, bundle: Bundle) -> None:
        """The ONNX file gives what `predict` gave on the backend."""
        session = open_session(bundle.model_bytes(), external_data=bundle.external_data())
        with np.load(self.folder / "answers.npz", allow_pickle=False) as answers:
            given = session.run({"image": answers["x"]})
            assert {"x", *given} == set(answers)
            for name, array in given.items():
                np.testing.assert_allclose(array, answers[name], rtol=1e-4, atol=1e-5, err_msg=name)


@pytest.fixture(scope="module", params=list(_PACKAGES_OF))
def trained(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """Trains with the packages of two environments, as an image with TensorFlow beside the backend has them."""
    backend = str(request.param)
    folder = tmp_path_factory.mktemp(backend)
    (folder / "out").mkdir()
    others = Path(real_environment(_PACKAGES_OF[backend]).python).parents[1]
    (packages,) = others.glob("lib/python*/site-packages")
    run_in(real_environment("tensorflow"), _SCRIPT, backend, packages, folder / "out", folder=folder)
    return Trained(backend, folder / "out", json.loads((folder / "out" / "report.json").read_text()))


def test_a_model_in_memory_answers_on_its_own_backend_and_is_converted_on_tensorflow(
    trained: Trained,
) -> None:
    said = trained.report["pooling"]
    assert "error" not in said, said["said"]
    assert said["notes"][0].startswith(
        f"The sealed answers are those of Keras on {trained.backend}; the graph was"
    )
    assert said["untouched"]
    assert not trained.report["imported"][{"torch": "jax", "jax": "torch"}[trained.backend]]
    bundle = read_bundle(trained.folder / "pooling")
    assert bundle.manifest["framework"]["version"].startswith(f"3.15.1+{trained.backend}.")
    certificate = validate_bundle(bundle)
    assert certificate.verdict == "pass", certificate.reason
    trained.assert_answers_as_trained(bundle)


def test_a_file_that_was_saved_there_needs_no_other_backend(trained: Trained, tmp_path: Path) -> None:
    bundle = export_source(
        str(trained.folder / "pooling.keras"), tmp_path / "bundle", ExportConfig(name="pooling")
    )
    certificate = validate_bundle(bundle)
    assert certificate.verdict == "pass", certificate.reason
    trained.assert_answers_as_trained(bundle)


def test_a_class_of_the_training_script_itself_is_refused_in_one_line(trained: Trained) -> None:
    said = trained.report["odd"]
    assert said["error"] == "ExportError"
    assert said["said"].startswith("no copy of the model can be built on TensorFlow: ")
    assert "Classes of its own have to stand in a module" in said["said"]
    assert "\n" not in said["said"]
    assert not (trained.folder / "odd").exists()
