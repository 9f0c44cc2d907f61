"""Codec of the v2 gRPC messages.

Source: triton-inference-server/common, protobuf/grpc_service.proto.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from tritonclient.grpc import service_pb2 as pb

from paritygate.converter.types import Array, DType
from paritygate.serving import v2_binary
from paritygate.serving.errors import InvalidArgument
from paritygate.serving.facades.v2_json import MAX_TENSORS, part_of, requested_output, write_part
from paritygate.serving.models import Model, Version
from paritygate.serving.shared_memory import NONE as NO_REGIONS
from paritygate.serving.shared_memory import Regions
from paritygate.serving.triton_view import statistics_to_json
from paritygate.serving.types import (
    DATATYPES,
    InferRequest,
    InferResponse,
    InferTensor,
    ModelMetadata,
    Parameter,
    RequestedOutput,
)

_CONTENTS: Mapping[DType, str] = {
    DType.BOOL: "bool_contents",
    DType.INT8: "int_contents",
    DType.INT16: "int_contents",
    DType.INT32: "int_contents",
    DType.INT64: "int64_contents",
    DType.UINT8: "uint_contents",
    DType.UINT16: "uint_contents",
    DType.UINT32: "uint_contents",
    DType.UINT64: "uint64_contents",
    DType.FLOAT32: "fp32_contents",
    DType.FLOAT64: "fp64_contents",
    DType.STRING: "bytes_contents",
}
"""The field of InferTensorContents for each type; FP16 and BF16 have none."""

_RAW_OUTPUT_TAG = bytes([pb.ModelInferResponse.RAW_OUTPUT_CONTENTS_FIELD_NUMBER << 3 | 2])

_ALL_CONTENTS = tuple(dict.fromkeys(_CONTENTS.values()))


def decode_request(message: Any, regions: Regions = NO_REGIONS) -> InferRequest:
    """The request in a ModelInferRequest.

    Args:
        message: The message.
        regions: Where tensors in shared memory are.

    Raises:
        InvalidArgument: With one sentence about the first thing that does not fit.
        NotFound: If a region is not registered.
        Unsupported: If a region is named where shared memory is off.
    """
    for field in ("inputs", "outputs", "parameters"):
        if len(getattr(message, field)) > MAX_TENSORS:
            raise InvalidArgument(
                f"'{field}' has {len(getattr(message, field))} entries; expected at most {MAX_TENSORS}."
            )
    raw = message.raw_input_contents
    sent = [item for item in message.inputs if "shared_memory_region" not in item.parameters]
    if raw and len(raw) != len(sent):
        raise InvalidArgument(
            f"raw_input_contents has {len(raw)} entries for {len(sent)} inputs; give one for each input "
            "that is not in shared memory."
        )
    contents = iter(raw)
    inputs = [
        _decode_shared(item, regions)
        if "shared_memory_region" in item.parameters
        else _decode_input(item, next(contents) if raw else None)
        for item in message.inputs
    ]
    return InferRequest(
        message.model_name,
        message.model_version,
        inputs,
        [_decode_output(item, regions) for item in message.outputs],
        message.id,
        decode_parameters(message.parameters, "the request"),
        protocol="grpc",
    )


def _decode_shared(item: Any, regions: Regions) -> InferTensor:
    name = item.name
    dtype = v2_binary.dtype_of(name, item.datatype)
    shape = v2_binary.shape_of(name, tuple(item.shape))
    if item.HasField("contents"):
        raise InvalidArgument(
            f"input '{name}' names a shared memory region and has contents of its own; give exactly one of them."
        )
    part = part_of(f"input '{name}'", decode_parameters(item.parameters, f"input '{name}'"), regions)
    data = memoryview(part.read())
    return InferTensor(name, item.datatype, v2_binary.decode_raw(name, dtype, item.datatype, shape, data))


def _decode_input(item: Any, raw: bytes | None) -> InferTensor:
    name = item.name
    dtype = v2_binary.dtype_of(name, item.datatype)
    shape = v2_binary.shape_of(name, tuple(item.shape))
    if raw is None:
        return InferTensor(name, item.datatype, _decode_contents(name, dtype, item, shape))
    if item.HasField("contents"):
        raise InvalidArgument(
            f"contents field must not be specified when using raw_input_contents, but input '{name}' has both."
        )
    return InferTensor(
        name, item.datatype, v2_binary.decode_raw(name, dtype, item.datatype, shape, memoryview(raw))
    )


def _decode_contents(name: str, dtype: DType, item: Any, shape: tuple[int, ...]) -> Array:
    field = _CONTENTS.get(dtype)
    if field is None:
        raise InvalidArgument(f"input '{name}' is {item.datatype}, which only raw_input_contents can carry.")
    for other in _ALL_CONTENTS:
        if other != field and len(getattr(item.contents, other)):
            raise InvalidArgument(
                f"input '{name}' is {item.datatype} but has its values in {other}; put them in {field}."
            )
    values = getattr(item.contents, field)
    count = v2_binary.num_elements(name, shape)
    if len(values) != count:
        raise InvalidArgument(
            f"input '{name}' has {len(values)} elements in {field}; shape {list(shape)} takes {count}."
        )
    return _as_array(name, dtype, item.datatype, values).reshape(shape)


def _as_array(name: str, dtype: DType, datatype: str, values: Any) -> Array:
    if dtype is DType.STRING:
        array = np.empty(len(values), dtype=object)
        for index, octets in enumerate(values):
            array[index] = v2_binary.decode_text(name, index, octets)
        return array
    if dtype.is_integer and len(values):
        limits = np.iinfo(dtype.numpy)
        for value in (min(values), max(values)):
            if not limits.min <= value <= limits.max:
                raise InvalidArgument(
                    f"input '{name}' has {value}; {datatype} takes {limits.min} to {limits.max}."
                )
    return np.array(values, dtype=dtype.numpy)


def _decode_output(item: Any, regions: Regions) -> RequestedOutput:
    if not item.parameters:
        return RequestedOutput(item.name)
    parameters = decode_parameters(item.parameters, f"output '{item.name}'")
    return requested_output(item.name, parameters, None, regions)


def decode_parameters(parameters: Any, owner: str) -> dict[str, Parameter]:
    """A map of InferParameter as plain values.

    Raises:
        InvalidArgument: If one has no value.
    """
    decoded: dict[str, Parameter] = {}
    for key, parameter in parameters.items():
        choice = parameter.WhichOneof("parameter_choice")
        if choice is None:
            raise InvalidArgument(
                f"parameter '{key}' of {owner} has no value; give a bool, number or string."
            )
        decoded[key] = getattr(parameter, choice)
    return decoded


def encode_response(response: InferResponse, outputs: Sequence[RequestedOutput] = ()) -> Any:
    """The ModelInferResponse of an answer; tensors go as raw contents, or into shared memory.

    Args:
        response: The answer.
        outputs: What the request asked for, and where it is to lie.

    Raises:
        InvalidArgument: If there is no room in shared memory.
    """
    parts = {output.name: output.part for output in outputs if output.part is not None}
    if not parts:
        return pb.ModelInferResponse.FromString(serialize_response(response))
    message = pb.ModelInferResponse(
        model_name=response.model_name, model_version=str(response.model_version), id=response.id
    )
    for tensor in response.outputs:
        item = message.outputs.add(name=tensor.name, datatype=tensor.datatype, shape=tensor.array.shape)
        part = parts.get(tensor.name)
        if part is None:
            octets = v2_binary.encode_raw(DATATYPES[tensor.datatype], tensor.array)
            message.raw_output_contents.append(octets)
            continue
        message.raw_output_contents.append(b"")
        for key, value in write_part(part, tensor).items():
            kind = "string_param" if isinstance(value, str) else "int64_param"
            setattr(item.parameters[key], kind, value)
    return message


def serialize_response(response: InferResponse, outputs: Sequence[RequestedOutput] = ()) -> bytes:
    """The same as it goes on the wire: what stands before the tensors hangs on names and shapes alone."""
    for output in outputs:
        if output.part is not None:
            octets: bytes = encode_response(response, outputs).SerializeToString()
            return octets
    shapes = tuple((tensor.name, tensor.datatype, tensor.array.shape) for tensor in response.outputs)
    parts = [_before_tensors(response.model_name, response.model_version, shapes)]
    if response.id:
        parts.append(pb.ModelInferResponse(id=response.id).SerializeToString())
    for tensor in response.outputs:
        octets = v2_binary.encode_raw(DATATYPES[tensor.datatype], tensor.array)
        parts += (_RAW_OUTPUT_TAG, varint(len(octets)), octets)
    return b"".join(parts)


@lru_cache(maxsize=1024)
def _before_tensors(
    model_name: str, model_version: int, outputs: tuple[tuple[str, str, tuple[int, ...]], ...]
) -> bytes:
    message = pb.ModelInferResponse(model_name=model_name, model_version=str(model_version))
    for name, datatype, shape in outputs:
        message.outputs.add(name=name, datatype=datatype, shape=shape)
    octets: bytes = message.SerializeToString()
    return octets


@lru_cache(maxsize=1024)
def varint(number: int) -> bytes:
    """A length as Protocol Buffers writes it: seven bits a byte, the lowest first."""
    octets = bytearray()
    while number > 0x7F:
        octets.append(number & 0x7F | 0x80)
        number >>= 7
    octets.append(number)
    return bytes(octets)


def encode_model_metadata(metadata: ModelMetadata) -> Any:
    """The ModelMetadataResponse of a model."""
    message = pb.ModelMetadataResponse(
        name=metadata.name, versions=[str(v) for v in metadata.versions], platform=metadata.platform
    )
    for target, specs in ((message.inputs, metadata.inputs), (message.outputs, metadata.outputs)):
        for spec in specs:
            target.add(name=spec.name, datatype=spec.datatype, shape=spec.shape)
    return message


def encode_statistics(counted: list[tuple[Model, Version]]) -> Any:
    """The ModelStatisticsResponse of some versions."""
    from google.protobuf import json_format

    document = {"model_stats": [statistics_to_json(model, version) for model, version in counted]}
    return json_format.Parse(json.dumps(document), pb.ModelStatisticsResponse())
