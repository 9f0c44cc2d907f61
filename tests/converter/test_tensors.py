"""Tensor files: any array comes back bit for bit, and other tools read the same values."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from paritygate.converter._tensors import decode_tensor, encode_tensor, tensor_nbytes
from paritygate.converter.types import Array

NUMBERS = ["bool", "u1", "u2", "u4", "u8", "i1", "i2", "i4", "i8", "f2", "f4", "f8"]


@given(st.sampled_from(NUMBERS).flatmap(lambda d: hnp.arrays(d, hnp.array_shapes(min_dims=0, min_side=0))))
def test_numbers_come_back_bit_for_bit(array: Array) -> None:
    data = encode_tensor(array, "x")
    found = decode_tensor(data)
    assert (found.dtype, found.shape, found.tobytes()) == (array.dtype, array.shape, array.tobytes())
    assert onnx.numpy_helper.to_array(onnx.TensorProto.FromString(data)).tobytes() == array.tobytes()
    assert tensor_nbytes(array) == array.nbytes


@given(hnp.arrays(object, hnp.array_shapes(min_dims=0, min_side=0), elements=st.text()))
def test_texts_come_back(array: Array) -> None:
    found = decode_tensor(encode_tensor(array, "x"))
    assert (found.dtype, found.shape, found.tolist()) == (array.dtype, array.shape, array.tolist())
    assert tensor_nbytes(array) == sum(len(text.encode()) for text in array.flat)


@pytest.mark.parametrize(
    "array", [np.ones((3, 4), ">f4")[:, ::2], np.ones((3, 4), np.float32).T], ids=["big_endian", "t"]
)
def test_the_file_holds_values_in_order_whatever_the_memory_layout(array: Array) -> None:
    assert np.array_equal(decode_tensor(encode_tensor(array, "x")), array)


def test_an_object_array_of_something_else_is_refused() -> None:
    with pytest.raises(ValueError, match="holds a int; expected str"):
        encode_tensor(np.array([1], object), "x")


def test_too_few_strings_are_refused() -> None:
    proto = onnx.TensorProto(data_type=8, dims=[3], string_data=[b"a"])
    with pytest.raises(ValueError, match=r"has 1 strings, its shape \[3\] asks for 3"):
        decode_tensor(proto.SerializeToString())


def test_a_string_that_is_no_utf8_is_refused() -> None:
    proto = onnx.TensorProto(data_type=8, dims=[1], string_data=[b"\xff"])
    with pytest.raises(ValueError, match="utf-8"):
        decode_tensor(proto.SerializeToString())
