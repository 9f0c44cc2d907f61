"""The v2 protocol over gRPC, as a client: raw contents, one channel.

Source: triton-inference-server/common, protobuf/grpc_service.proto.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
from tritonclient.grpc import service_pb2 as pb

from paritygate.converter.types import Array
from paritygate.serving.errors import InvalidArgument
from paritygate.serving.types import ModelMetadata, Parameter, ServerMetadata, TensorMetadata
from paritygate.serving.upstreams.config import Upstream
from paritygate.serving.upstreams.faults import (
    Absent,
    BadAnswer,
    Busy,
    Failed,
    Lost,
    NotReached,
    TimedOut,
    UpstreamFault,
)
from paritygate.serving.upstreams.http_client import Call
from paritygate.serving.upstreams.wire import Wire, WireRequest, from_raw, raw_bytes

_SERVICE = "/inference.GRPCInferenceService"
_NOT_SENT = (
    "failed to connect to all addresses",
    "Connection refused",
    "connections to all backends failing",
)


class GrpcWire(Wire):
    """One upstream over gRPC."""

    def __init__(self, upstream: Upstream, *, max_answer_bytes: int) -> None:
        options = [
            ("grpc.max_send_message_length", -1),
            ("grpc.max_receive_message_length", max_answer_bytes),
            ("grpc.initial_reconnect_backoff_ms", 100),
            ("grpc.min_reconnect_backoff_ms", int(upstream.connect_timeout_s * 1000)),
            ("grpc.max_reconnect_backoff_ms", 2000),
            # Retries are ours to decide, and channels of the same address would share one connection.
            ("grpc.enable_retries", 0),
            ("grpc.use_local_subchannel_pool", 1),
        ]
        target = f"{upstream.host}:{upstream.port}"
        if upstream.scheme == "grpcs":
            trusted = Path(upstream.ca_file).read_bytes() if upstream.ca_file else None
            credentials = grpc.ssl_channel_credentials(trusted)
            self._channel = grpc.aio.secure_channel(target, credentials, options)
        else:
            self._channel = grpc.aio.insecure_channel(target, options)
        self._infer = self._method("ModelInfer", pb.ModelInferRequest, pb.ModelInferResponse)
        self._server = self._method("ServerMetadata", pb.ServerMetadataRequest, pb.ServerMetadataResponse)
        self._model = self._method("ModelMetadata", pb.ModelMetadataRequest, pb.ModelMetadataResponse)

    def _method(self, name: str, request: Any, response: Any) -> Any:
        return self._channel.unary_unary(
            f"{_SERVICE}/{name}",
            request_serializer=request.SerializeToString,
            response_deserializer=response.FromString,
        )

    async def infer(self, request: WireRequest, call: Call, timeout_s: float) -> list[Array]:
        """The outputs wanted."""
        metadata = tuple(request.headers.items()) or None
        rpc = self._infer(_message(request), timeout=timeout_s, metadata=metadata)
        return _outputs(request, await _answer(rpc, call, timeout_s))

    async def server(self, timeout_s: float) -> ServerMetadata:
        """What the upstream says of itself."""
        rpc = self._server(pb.ServerMetadataRequest(), timeout=timeout_s)
        message = await _answer(rpc, Call(), timeout_s)
        return ServerMetadata(message.name, message.version, tuple(message.extensions))

    async def model(self, name: str, version: int, timeout_s: float) -> ModelMetadata:
        """What it says of one version."""
        rpc = self._model(pb.ModelMetadataRequest(name=name, version=str(version)), timeout=timeout_s)
        message = await _answer(rpc, Call(), timeout_s)
        inputs, outputs = (
            tuple(TensorMetadata(t.name, t.datatype, tuple(t.shape)) for t in tensors)
            for tensors in (message.inputs, message.outputs)
        )
        return ModelMetadata(name, (version,), message.platform, inputs, outputs)

    async def close(self) -> None:
        """End the channel."""
        await self._channel.close()


async def _answer(rpc: Any, call: Call, timeout_s: float) -> Any:
    call.abort = rpc.cancel
    try:
        return await rpc
    except grpc.aio.AioRpcError as error:
        raise _fault(error, timeout_s) from error
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if call.aborted and not (task and task.cancelling()):
            raise Lost("the request was ended") from None
        rpc.cancel()
        raise
    finally:
        call.abort = None


def _message(request: WireRequest) -> Any:
    message = pb.ModelInferRequest(
        model_name=request.model, model_version=str(request.version), id=request.id
    )
    for name, array in request.feeds.items():
        datatype = request.rules.inputs[name].datatype
        message.inputs.add(name=name, datatype=datatype, shape=array.shape)
        message.raw_input_contents.append(bytes(raw_bytes(array, datatype)))
    for name in request.outputs:
        message.outputs.add(name=name)
    for key, value in request.parameters.items():
        _set(message.parameters[key], value)
    return message


def _set(parameter: Any, value: Parameter) -> None:
    if isinstance(value, bool):
        parameter.bool_param = value
    elif isinstance(value, int):
        parameter.int64_param = value
    elif isinstance(value, float):
        parameter.double_param = value
    else:
        parameter.string_param = value


def _outputs(request: WireRequest, message: Any) -> list[Array]:
    if len(message.raw_output_contents) != len(message.outputs):
        raise BadAnswer(
            f"it sent {len(message.raw_output_contents)} raw contents for {len(message.outputs)} outputs"
        )
    found = {
        output.name: from_raw(
            request.rules, output.name, output.datatype, tuple(output.shape), memoryview(raw)
        )
        for output, raw in zip(message.outputs, message.raw_output_contents, strict=True)
        if output.name in request.rules.outputs
    }
    missing = [name for name in request.outputs if name not in found]
    if missing:
        raise BadAnswer(f"its answer lacks output '{missing[0]}'")
    return [found[name] for name in request.outputs]


def _fault(error: grpc.aio.AioRpcError, timeout_s: float) -> UpstreamFault | InvalidArgument:
    code, text = error.code(), error.details() or error.code().name
    if code in (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.OUT_OF_RANGE):
        return InvalidArgument(text)
    if code is grpc.StatusCode.DEADLINE_EXCEEDED:
        return TimedOut(f"no whole answer within {timeout_s:g} s")
    if code is grpc.StatusCode.NOT_FOUND:
        return Absent(text)
    if code is grpc.StatusCode.RESOURCE_EXHAUSTED:
        return Busy(text)
    if code is grpc.StatusCode.UNAVAILABLE:
        return _unavailable(error, text)
    return Failed(text)


def _unavailable(error: grpc.aio.AioRpcError, text: str) -> UpstreamFault:
    """The library says UNAVAILABLE for a broken connection too; what an upstream said came with its trailers."""
    if any(phrase in text for phrase in _NOT_SENT):
        return NotReached(text)
    return Busy(text) if error.trailing_metadata() else Lost(text)
