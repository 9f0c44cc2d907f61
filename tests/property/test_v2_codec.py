"""The codecs of the v2 protocol: what is encoded is decoded to the same, and no bytes crash the decoder."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from tritonclient.grpc import service_pb2

from paritygate.converter.types import Array, DType
from paritygate.serving import v2_binary
from paritygate.serving.errors import InvalidArgument, PayloadTooLarge
from paritygate.serving.facades import v2_json, v2_proto
from paritygate.serving.facades.bodies import decompress
from paritygate.serving.types import DATATYPES, InferResponse, InferTensor, Provenance, Route

SHAPES = hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)


@st.composite
def arrays(draw: st.DrawFn, datatype: str) -> Array:
    dtype = DATATYPES[datatype]
    shape = draw(SHAPES)
    if dtype is DType.STRING:
        array = np.empty(shape, dtype=object)
        array.ravel()[:] = [draw(TEXT) for _ in range(array.size)]
        return array
    if dtype is DType.BFLOAT16:
        bits = draw(hnp.arrays(np.uint16, shape))
        return bits.view(dtype.numpy)
    return draw(hnp.arrays(dtype.numpy, shape))


def same(a: Array, b: Array) -> bool:
    if a.dtype == object:
        return a.shape == b.shape and a.tolist() == b.tolist()
    return a.shape == b.shape and a.dtype == b.dtype and a.tobytes() == b.tobytes()


def response(*tensors: InferTensor) -> InferResponse:
    return InferResponse("m", 3, list(tensors), Route(3, "default"), Provenance("proven"), "id")


def as_request(answer: v2_json.WireAnswer) -> tuple[bytes, int | None]:
    """An answer's body turned into a request's: outputs become inputs, the bytes stay."""
    head = answer.body if answer.header_length is None else answer.body[: answer.header_length]
    blobs = b"" if answer.header_length is None else answer.body[answer.header_length :]
    document = json.loads(head)
    text = json.dumps({"inputs": document["outputs"]}).encode()
    return text + blobs, len(text)


@pytest.mark.parametrize("datatype", DATATYPES)
@given(data=st.data())
@settings(max_examples=40, deadline=None)
def test_raw_bytes_round_trip(datatype: str, data: st.DataObject) -> None:
    array = data.draw(arrays(datatype))
    octets = v2_binary.encode_raw(DATATYPES[datatype], array)
    back = v2_binary.decode_raw("x", DATATYPES[datatype], datatype, array.shape, memoryview(octets))
    assert same(array, back)


@pytest.mark.parametrize("binary", [True, False], ids=["binary", "json"])
@pytest.mark.parametrize("datatype", DATATYPES)
@given(data=st.data())
@settings(max_examples=40, deadline=None)
def test_answer_read_as_a_request_holds_the_same_tensor(
    datatype: str, binary: bool, data: st.DataObject
) -> None:
    array = data.draw(arrays(datatype))
    wire = v2_json.decode_request(b'{"inputs": []}', None, "m", "")
    wire.binary_default = binary
    body, length = as_request(v2_json.encode_response(wire, response(InferTensor("y", datatype, array))))
    (tensor,) = v2_json.decode_request(body, length, "m", "").request.inputs
    if binary or not DATATYPES[datatype].is_floating:
        assert same(tensor.array, array)
    else:
        # JSON has one NaN; which of its many bit patterns it was is lost.
        np.testing.assert_array_equal(tensor.array.astype(np.float64), array.astype(np.float64))
        assert np.array_equal(np.signbit(tensor.array[array == 0]), np.signbit(array[array == 0]))


@pytest.mark.parametrize("datatype", DATATYPES)
@given(data=st.data())
@settings(max_examples=40, deadline=None)
def test_grpc_answer_read_as_a_request_holds_the_same_tensor(datatype: str, data: st.DataObject) -> None:
    array = data.draw(arrays(datatype))
    answer = v2_proto.encode_response(response(InferTensor("y", datatype, array)))
    message = service_pb2.ModelInferRequest(model_name="m", raw_input_contents=answer.raw_output_contents)
    for output in answer.outputs:
        message.inputs.add(name=output.name, datatype=output.datatype, shape=output.shape)
    (tensor,) = v2_proto.decode_request(message).inputs
    assert same(tensor.array, array)


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
INPUTS = st.fixed_dictionaries(
    {},
    optional={
        "name": st.just("x") | JSON_VALUES,
        "datatype": st.sampled_from(sorted(DATATYPES)) | JSON_VALUES,
        "shape": st.lists(st.integers(-2, 4), max_size=3) | JSON_VALUES,
        "data": st.lists(st.integers(-300, 300), max_size=5) | JSON_VALUES,
        "parameters": st.fixed_dictionaries(
            {}, optional={"binary_data_size": st.integers(-2, 20) | JSON_VALUES}
        )
        | JSON_VALUES,
    },
)
DOCUMENTS = st.fixed_dictionaries(
    {},
    optional={
        "id": JSON_VALUES,
        "inputs": st.lists(INPUTS | JSON_VALUES, max_size=3) | JSON_VALUES,
        "outputs": st.lists(JSON_VALUES, max_size=2) | JSON_VALUES,
        "parameters": JSON_VALUES,
    },
)


def decodes_or_is_refused(body: bytes, length: int | None) -> None:
    """A refusal is one sentence; every other exception fails the test."""
    sentence = "a request"
    try:
        v2_json.decode_request(body, length, "m", "")
    except InvalidArgument as error:
        sentence = str(error)
    assert sentence
    assert "\n" not in sentence
    assert len(sentence) < 2000


@given(document=DOCUMENTS, rest=st.binary(max_size=24))
@settings(max_examples=400, deadline=None)
def test_any_document_is_a_request_or_refused_in_one_sentence(document: Any, rest: bytes) -> None:
    text = json.dumps(document).encode()
    decodes_or_is_refused(text + rest, len(text))


@given(body=st.binary(max_size=64), length=st.none() | st.integers(0, 64))
@settings(max_examples=200, deadline=None)
def test_any_bytes_are_refused_in_one_sentence(body: bytes, length: int | None) -> None:
    decodes_or_is_refused(body, length)


@given(count=st.integers(0, 5), octets=st.binary(max_size=40))
@settings(max_examples=300, deadline=None)
def test_any_bytes_are_text_elements_or_refused(count: int, octets: bytes) -> None:
    try:
        array = v2_binary.decode_raw("x", DType.STRING, "BYTES", (count,), memoryview(octets))
    except InvalidArgument:
        return
    assert v2_binary.encode_raw(DType.STRING, array) == octets


@given(octets=st.binary(max_size=64), encoding=st.sampled_from(["gzip", "deflate"]))
@settings(max_examples=300, deadline=None)
def test_any_bytes_decompress_within_the_limit_or_are_refused(octets: bytes, encoding: str) -> None:
    try:
        plain = decompress(octets, encoding, 100)
    except (InvalidArgument, PayloadTooLarge):
        return
    assert len(plain) <= 100


@given(name=st.text(max_size=6), data=st.lists(st.floats(width=32, allow_nan=False), max_size=5))
@settings(max_examples=100, deadline=None)
def test_json_floats_survive_to_the_last_bit(name: str, data: list[float]) -> None:
    array = v2_json.decode_json_data("x", DType.FLOAT32, "FP32", (len(data),), json.loads(json.dumps(data)))
    assert array.tolist() == data


@pytest.mark.soak
@given(body=st.binary(max_size=4096), length=st.none() | st.integers(0, 4096))
@settings(max_examples=200_000, deadline=None)
def test_many_more_bytes_are_refused_in_one_sentence(body: bytes, length: int | None) -> None:
    decodes_or_is_refused(body, length)
