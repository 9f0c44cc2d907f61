"""One suite for every registered backend: open, signature, run, fail, attest, close."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from paritygate.converter.bundle import Bundle
from paritygate.converter.errors import ConverterError
from paritygate.converter.types import DType, TensorSpec
from paritygate.serving.backends import BACKENDS, get_backend
from paritygate.serving.backends.base import EmbeddedBackend, ModelSource
from paritygate.serving.errors import InferenceFailed, InvalidArgument
from paritygate.serving.types import DATATYPES
from support.bundles import linear_bundle, proven_bundle
from support.fake_backend import FakeBackend
from support.onnx_models import ELEMENT_TYPES, add_model, expanding_model, identity_model, lookup_model

pytestmark = pytest.mark.parametrize("name", BACKENDS)


@pytest.fixture(scope="module")
def proven(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return proven_bundle(tmp_path_factory.mktemp("b") / "proven", num_probes=3)


def open_backend(name: str, model: object) -> EmbeddedBackend:
    return get_backend(name).open(ModelSource(model.SerializeToString()))  # type: ignore[attr-defined]


def test_is_a_backend(name: str) -> None:
    assert issubclass(get_backend(name), EmbeddedBackend)


def test_opens_bytes_and_tells_the_signature(name: str) -> None:
    backend = open_backend(name, add_model(1.0, ("n", 2)))
    assert backend.signature.inputs == (TensorSpec("x", DType.FLOAT32, ("n", 2)),)
    assert backend.runtime.split()[1][0].isdigit()
    backend.close()


def test_opens_a_path(name: str, tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(add_model(2.0).SerializeToString())
    backend = get_backend(name).open(ModelSource(path))
    assert backend.infer({"x": np.ones(1, np.float32)}, ["y"])[0].tolist() == [3.0]


@pytest.mark.parametrize("datatype", ELEMENT_TYPES)
def test_gives_back_every_type_bit_for_bit(name: str, datatype: str) -> None:
    dtype = DATATYPES[datatype]
    text = np.array(["a", "", "ü\0"], dtype=object)
    array = text if dtype is DType.STRING else np.array([0, 1, 1]).astype(dtype.numpy)
    (back,) = open_backend(name, identity_model(datatype)).infer({"x": array}, ["y"])
    assert back.dtype == array.dtype
    assert back.tolist() == array.tolist()


def test_what_is_no_model_is_a_converter_error(name: str) -> None:
    with pytest.raises(ConverterError):
        get_backend(name).open(ModelSource(bytes(10)))


def test_failing_run_is_one_line(name: str) -> None:
    backend = open_backend(name, expanding_model())
    with pytest.raises(InferenceFailed, match="the model failed while it computed") as caught:
        backend.infer({"shape": np.array([-5, 3])}, ["y"])
    assert "\n" not in str(caught.value)


def test_values_that_the_model_cannot_take_are_the_clients_mistake(name: str) -> None:
    backend = open_backend(name, lookup_model())
    assert backend.infer({"i": np.array([2])}, ["y"])[0].tolist() == [[4.0, 5.0]]
    with pytest.raises(InvalidArgument, match=r"the model refuses these inputs: .*idx=7"):
        backend.infer({"i": np.array([7])}, ["y"])


def test_attests_what_was_proven(name: str, proven: Bundle) -> None:
    backend = get_backend(name).open(ModelSource(proven.model_bytes(), proven.external_data()))
    certificate = proven.certificate()
    assert certificate is not None
    assert backend.attest(proven, certificate).verdict == "pass"


def test_attestation_fails_for_a_model_that_computes_something_else(
    name: str, proven: Bundle, tmp_path: Path
) -> None:
    other = linear_bundle(tmp_path / "other", seed=9, num_probes=3)
    backend = get_backend(name).open(ModelSource(other.model_bytes()))
    certificate = proven.certificate()
    assert certificate is not None
    assert backend.attest(proven, certificate).verdict == "fail"


def test_output_that_the_runtime_leaves_out_is_an_error(name: str) -> None:
    """The check is in the base class; a fake that forgets an output shows it."""
    assert get_backend(name).infer is EmbeddedBackend.infer
    with pytest.raises(InferenceFailed, match="gave no output 'z'"):
        FakeBackend({"y": np.zeros(1)}).infer({}, ["y", "z"])


def test_unknown_backend_lists_the_known_ones(name: str) -> None:
    with pytest.raises(ValueError, match=f"there is no backend 'none'; known: .*{name}"):
        get_backend("none")
