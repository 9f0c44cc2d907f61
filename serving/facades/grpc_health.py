"""The standard health service, `grpc.health.v1.Health`, which load balancers and kubelets ask.

The published package of its messages asks for a newer protobuf than tritonclient takes; the service is three small
messages that will not change, so they are described here.

Source: grpc/health/v1/health.proto of grpc/grpc-proto.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

SERVICE = "grpc.health.v1.Health"
UNKNOWN, SERVING, NOT_SERVING, SERVICE_UNKNOWN = range(4)

_STRING, _ENUM = 9, 14
_OPTIONAL = 1
_LOOK_EVERY_S = 0.5


def _messages() -> tuple[Any, Any]:
    """The classes of HealthCheckRequest and HealthCheckResponse, in a pool of their own."""
    file = descriptor_pb2.FileDescriptorProto(
        name="grpc/health/v1/health.proto", package="grpc.health.v1", syntax="proto3"
    )
    request = file.message_type.add(name="HealthCheckRequest")
    request.field.add(name="service", number=1, type=_STRING, label=_OPTIONAL)
    response = file.message_type.add(name="HealthCheckResponse")
    status = response.enum_type.add(name="ServingStatus")
    for number, name in enumerate(("UNKNOWN", "SERVING", "NOT_SERVING", "SERVICE_UNKNOWN")):
        status.value.add(name=name, number=number)
    response.field.add(
        name="status",
        number=1,
        type=_ENUM,
        label=_OPTIONAL,
        type_name=".grpc.health.v1.HealthCheckResponse.ServingStatus",
    )
    service = file.service.add(name="Health")
    for method, streams in (("Check", False), ("Watch", True)):
        service.method.add(
            name=method,
            input_type=".grpc.health.v1.HealthCheckRequest",
            output_type=".grpc.health.v1.HealthCheckResponse",
            server_streaming=streams,
        )
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    names = ("HealthCheckRequest", "HealthCheckResponse")
    classes = [
        message_factory.GetMessageClass(pool.FindMessageTypeByName(f"grpc.health.v1.{n}")) for n in names
    ]
    return classes[0], classes[1]


HealthCheckRequest, HealthCheckResponse = _messages()


class HealthService:
    """Answers Check and Watch from the data plane's readiness."""

    def __init__(self, ready: Callable[[], bool], *, services: frozenset[str]) -> None:
        self._ready = ready
        self._services = services

    def _status(self, service: str) -> int:
        if service not in self._services:
            return SERVICE_UNKNOWN
        return SERVING if self._ready() else NOT_SERVING

    async def check(self, request: Any, context: Any) -> Any:
        """The status now; an unknown service is an error, as the protocol says."""
        status = self._status(request.service)
        if status == SERVICE_UNKNOWN:
            await context.abort(grpc.StatusCode.NOT_FOUND, f"unknown service '{request.service[:60]}'")
        return HealthCheckResponse(status=status)

    async def watch(self, request: Any, _: Any) -> AsyncIterator[Any]:
        """The status now and at every change."""
        told: int | None = None
        while True:
            status = self._status(request.service)
            if status != told:
                told = status
                yield HealthCheckResponse(status=status)
            await asyncio.sleep(_LOOK_EVERY_S)

    def handler(self) -> Any:
        """What a grpc server takes."""
        types = {
            "request_deserializer": HealthCheckRequest.FromString,
            "response_serializer": HealthCheckResponse.SerializeToString,
        }
        return grpc.method_handlers_generic_handler(
            SERVICE,
            {
                "Check": grpc.unary_unary_rpc_method_handler(self.check, **types),
                "Watch": grpc.unary_stream_rpc_method_handler(self.watch, **types),
            },
        )
