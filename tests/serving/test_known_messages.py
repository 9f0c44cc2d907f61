"""gRPC messages of a kind that came before: read by hand as Protocol Buffers reads them, or not at all."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tritonclient.grpc import service_pb2 as pb

from paritygate.serving.errors import InvalidArgument
from paritygate.serving.facades import v2_proto
from paritygate.serving.facades.known_messages import KnownMessages
from paritygate.serving.types import InferRequest, InferResponse, InferTensor, Provenance, Route


def message_of(*arrays: np.ndarray[Any, Any], name: str = "m", **more: Any) -> Any:
    message = pb.ModelInferRequest(model_name=name, **more)
    for k, array in enumerate(arrays):
        message.inputs.add(name=f"x{k}", datatype="FP32", shape=array.shape)
        message.raw_input_contents.append(array.tobytes())
    return message


def learnt(known: KnownMessages, message: Any) -> bytes:
    data: bytes = message.SerializeToString()
    known.offer(data, message, v2_proto.decode_request(message))
    return data


def same(left: InferRequest, right: InferRequest) -> bool:
    plain = ("model_name", "model_version", "outputs", "id", "parameters", "protocol")
    return all(getattr(left, name) == getattr(right, name) for name in plain) and all(
        a.name == b.name
        and a.datatype == b.datatype
        and a.array.shape == b.array.shape
        and np.array_equal(a.array, b.array, equal_nan=True)
        for a, b in zip(left.inputs, right.inputs, strict=True)
    )


def random(*shape: int, seed: int = 0) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def test_a_message_of_a_known_kind_is_read_with_its_own_tensors() -> None:
    known = KnownMessages()
    learnt(known, message_of(random(2, 3), random(1)))
    for seed in range(1, 4):
        message = message_of(random(2, 3, seed=seed), random(1, seed=seed + 9))
        found = known.find(message.SerializeToString())
        assert found is not None
        assert same(found, v2_proto.decode_request(message))
        found.outputs.append(found.outputs)  # type: ignore[arg-type]
        dict.clear(found.parameters)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "other",
    [
        message_of(random(4), name="n"),
        message_of(random(2, 2)),
        message_of(random(5)),
        message_of(random(4), id="1"),
        message_of(random(4), model_version="2"),
    ],
    ids=["model", "shape", "longer", "id", "version"],
)
def test_a_message_of_another_kind_is_not_read(other: Any) -> None:
    known = KnownMessages()
    learnt(known, message_of(random(4)))
    assert known.find(other.SerializeToString()) is None


@pytest.mark.parametrize(
    "message",
    [message_of(random(4), id="7"), pb.ModelInferRequest(model_name="m")],
    ids=["id", "no raw tensor"],
)
def test_what_differs_each_time_is_not_kept(message: Any) -> None:
    known = KnownMessages()
    assert known.find(learnt(known, message)) is None


def test_fields_after_the_tensors_are_not_taken_for_tensors() -> None:
    """Protocol Buffers allows any order; one that ends otherwise is unpacked each time."""
    known = KnownMessages()
    first = message_of(random(4)).SerializeToString()
    data = first + pb.ModelInferRequest(model_version="3").SerializeToString()
    message = pb.ModelInferRequest.FromString(data)
    known.offer(data, message, v2_proto.decode_request(message))
    assert known.find(data) is None


def test_a_tensor_that_stands_before_the_others_fields_is_not_lost() -> None:
    known = KnownMessages()
    data = pb.ModelInferRequest(raw_input_contents=[bytes(4)]).SerializeToString()
    rest = message_of(random(1), random(1))
    del rest.raw_input_contents[0]
    data += rest.SerializeToString()
    message = pb.ModelInferRequest.FromString(data)
    known.offer(data, message, v2_proto.decode_request(message))
    assert known.find(data) is None


def test_values_are_checked_in_every_message() -> None:
    known = KnownMessages()
    message = pb.ModelInferRequest(model_name="m", raw_input_contents=[b"\0\1"])
    message.inputs.add(name="x", datatype="BOOL", shape=[2])
    data = learnt(known, message)
    assert known.find(data) is not None
    with pytest.raises(InvalidArgument, match="a BOOL is 0 or 1"):
        known.find(data[:-1] + b"\2")


def test_kinds_are_bounded_however_many_come() -> None:
    known = KnownMessages()
    for n in range(1, 700):
        learnt(known, message_of(random(n)))
    assert len(known._known) == 512
    assert known.find(message_of(random(1)).SerializeToString()) is None
    learnt(known, message_of(random(1), name="x" * 5_000))
    assert known.find(message_of(random(1), name="x" * 5_000).SerializeToString()) is None


@settings(deadline=None, max_examples=300)
@given(data=st.data())
def test_whatever_bytes_follow_are_read_as_protocol_buffers_reads_them(data: Any) -> None:
    """One byte of a known message is changed; what is then still found must be what the parser makes of it."""
    known = KnownMessages()
    octets = bytearray(learnt(known, message_of(random(2), random(3, 1))))
    at = data.draw(st.integers(0, len(octets) - 1))
    octets[at] = data.draw(st.integers(0, 255))
    found = known.find(bytes(octets))
    if found is not None:
        assert same(found, v2_proto.decode_request(pb.ModelInferRequest.FromString(bytes(octets))))


@pytest.mark.parametrize("request_id", ["", "seven"])
@pytest.mark.parametrize("shape", [(0,), (3,), (200, 2)])
def test_answers_are_written_as_protocol_buffers_writes_them(request_id: str, shape: tuple[int, ...]) -> None:
    tensors = [InferTensor("y", "FP32", random(*shape)), InferTensor("z", "INT64", np.arange(3))]
    response = InferResponse("m", 2, tensors, Route(2, "named"), Provenance("proven"), request_id)
    expected = pb.ModelInferResponse(model_name="m", model_version="2", id=request_id)
    for tensor in tensors:
        expected.outputs.add(name=tensor.name, datatype=tensor.datatype, shape=tensor.array.shape)
        expected.raw_output_contents.append(tensor.array.tobytes())
    assert pb.ModelInferResponse.FromString(v2_proto.serialize_response(response)) == expected
