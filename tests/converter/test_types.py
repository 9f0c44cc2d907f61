"""Dtypes, specs and signatures: numbers of the ONNX format, JSON and back, dims made fixed."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paritygate.converter.types import DemotedDim, DType, Signature, TensorSpec

X = TensorSpec("x", DType.FLOAT32, ("batch", 3, "time"))
MASK = TensorSpec("mask", DType.BOOL, ("batch", "time"))
Y = TensorSpec("y", DType.FLOAT32, ("batch", "boxes"))
SIGNATURE = Signature((X, MASK), (Y,))


@pytest.mark.parametrize("dtype", list(DType), ids=lambda dtype: dtype.value)
def test_the_numbers_are_those_of_onnx(dtype: DType) -> None:
    names = {"float32": "FLOAT", "float64": "DOUBLE"}
    assert dtype.onnx == getattr(onnx.TensorProto, names.get(dtype.value, dtype.value.upper()))
    assert DType.from_onnx(dtype.onnx) is dtype
    assert DType.from_numpy(dtype.numpy) is dtype


@pytest.mark.parametrize("dtype", [np.complex64, np.dtype("datetime64[s]"), ml_dtypes.float8_e4m3fn])
def test_a_dtype_that_no_model_takes_is_refused(dtype: type) -> None:
    with pytest.raises(ValueError, match=r"is not a tensor type|is not a valid DType"):
        DType.from_numpy(dtype)


@pytest.mark.parametrize("code", [0, 14, 17, 99])
def test_an_onnx_type_that_no_model_takes_is_refused(code: int) -> None:
    with pytest.raises(ValueError, match=f"ONNX element type {code} is not supported"):
        DType.from_onnx(code)


@pytest.mark.parametrize("array", [np.array(["a"]), np.array(["a"], object), np.array([b"a"])])
def test_texts_of_every_numpy_form_are_strings(array: np.ndarray) -> None:  # type: ignore[type-arg]
    assert DType.from_numpy(array.dtype) is DType.STRING


def test_dynamic_dims_are_told_with_their_places() -> None:
    assert SIGNATURE.dynamic_dims() == {"batch": [("x", 0), ("mask", 0)], "time": [("x", 2), ("mask", 1)]}


def test_a_dim_is_made_fixed_everywhere() -> None:
    fixed = SIGNATURE.with_dims({"batch": 4})
    assert fixed.inputs[0].shape == (4, 3, "time")
    assert fixed.inputs[1].shape == (4, "time")
    assert fixed.outputs[0].shape == (4, "boxes")
    assert SIGNATURE.inputs[0].shape == ("batch", 3, "time")


def test_a_signature_reads_as_a_function() -> None:
    assert (
        str(SIGNATURE)
        == "(x: float32[batch, 3, time], mask: bool[batch, time]) -> (y: float32[batch, boxes])"
    )


dims = st.one_of(st.integers(0, 2**31), st.text(min_size=1, max_size=8))
specs = st.builds(
    TensorSpec, st.text(min_size=1), st.sampled_from(DType), st.lists(dims, max_size=4).map(tuple)
)


@given(st.builds(Signature, st.lists(specs).map(tuple), st.lists(specs).map(tuple)))
def test_a_signature_survives_json(signature: Signature) -> None:
    assert Signature.from_json(signature.to_json()) == signature


@given(st.builds(DemotedDim, st.text(), st.integers(0, 2**40), st.text()))
def test_a_demoted_dim_survives_json(entry: DemotedDim) -> None:
    assert DemotedDim.from_json(entry.to_json()) == entry
