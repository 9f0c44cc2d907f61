"""The v2 protocol over gRPC: `inference.GRPCInferenceService` and the standard health service."""

from __future__ import annotations

import functools
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from typing import Any

import grpc
from google.protobuf.message import DecodeError
from tritonclient.grpc import service_pb2 as pb
from tritonclient.grpc import service_pb2_grpc

from paritygate.serving.dataplane import Begun, DataPlane
from paritygate.serving.errors import InvalidArgument, Kind, ServingError
from paritygate.serving.facades import v2_proto
from paritygate.serving.facades.base import Facade, PortInUse
from paritygate.serving.facades.grpc_health import SERVICE as HEALTH
from paritygate.serving.facades.grpc_health import HealthCheckRequest, HealthService
from paritygate.serving.facades.grpc_reflection import ReflectionService
from paritygate.serving.facades.http_errors import error_headers, log_internal_error
from paritygate.serving.facades.known_messages import KnownMessages
from paritygate.serving.overrides import read_load_parameters
from paritygate.serving.types import InferRequest, InferResponse, Provenance, Route, StreamPins, answer_facts

CODES: Mapping[Kind, grpc.StatusCode] = {
    Kind.INVALID_ARGUMENT: grpc.StatusCode.INVALID_ARGUMENT,
    Kind.TOO_LARGE: grpc.StatusCode.RESOURCE_EXHAUSTED,
    Kind.TIMEOUT: grpc.StatusCode.DEADLINE_EXCEEDED,
    Kind.NOT_FOUND: grpc.StatusCode.NOT_FOUND,
    Kind.UNAVAILABLE: grpc.StatusCode.UNAVAILABLE,
    Kind.EXHAUSTED: grpc.StatusCode.RESOURCE_EXHAUSTED,
    Kind.UNSUPPORTED: grpc.StatusCode.UNIMPLEMENTED,
    Kind.INTERNAL: grpc.StatusCode.INTERNAL,
}
"""The gRPC status of each kind of error. Source: triton-inference-server/server, src/grpc/grpc_utils.h."""

CODES_OF_STYLE: Mapping[str, Mapping[Kind, grpc.StatusCode]] = {
    "triton": CODES,
    "kserve": {**CODES, Kind.INTERNAL: grpc.StatusCode.INVALID_ARGUMENT},
}
"""KServe calls a model that fails a fault of its input. Source: kserve/kserve, python/kserve/kserve/errors.py."""

SERVICE = "inference.GRPCInferenceService"
RESERVED_PREFIX = "x-pg-"
_MAX_SENT_BYTES = 2**31 - 1


class GrpcFacade(Facade):
    """gRPC on its own port."""

    def __init__(self, dataplane: DataPlane) -> None:
        super().__init__(dataplane)
        self._server = grpc.aio.server(options=_options(dataplane.settings.max_body_bytes))
        handlers = _MethodHandlers()
        service = InferenceService(dataplane)
        service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(service, handlers)
        # Given and giving bytes: messages of a known kind are packed and unpacked by hand.
        handlers.by_name["ModelInfer"] = grpc.unary_unary_rpc_method_handler(service.ModelInfer)
        self._server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler(SERVICE, handlers.by_name),)
        )
        health = HealthService(dataplane.ready, services=frozenset({"", SERVICE}))
        described = {SERVICE: pb.DESCRIPTOR, HEALTH: HealthCheckRequest.DESCRIPTOR.file}
        self._server.add_generic_rpc_handlers((health.handler(), *ReflectionService(described).handlers()))

    def bind(self, host: str, port: int) -> int:
        """Take the port."""
        address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        try:
            _try_port(host, port)
            bound = int(self._server.add_insecure_port(address))
        except (RuntimeError, OSError):
            bound = 0
        if not bound:
            raise PortInUse(
                f"cannot listen on {host}:{port}: Address already in use or not this machine's. "
                "Stop what listens there, or choose another port."
            )
        return bound

    async def start(self) -> None:
        """Answer requests."""
        await self._server.start()

    async def stop(self, grace_s: float) -> None:
        """Stop."""
        await self._server.stop(grace_s)


class _MethodHandlers:
    """Stands in for a server to take the handlers of a service by the names of its methods."""

    def __init__(self) -> None:
        self.by_name: dict[str, grpc.RpcMethodHandler] = {}

    def add_generic_rpc_handlers(self, handlers: Iterable[grpc.GenericRpcHandler]) -> None:
        """The same handlers as the registered ones."""

    def add_registered_method_handlers(self, _: str, handlers: Mapping[str, grpc.RpcMethodHandler]) -> None:
        """Take them."""
        self.by_name.update(handlers)


def _options(max_body_bytes: int) -> list[tuple[str, int]]:
    return [
        ("grpc.max_receive_message_length", max_body_bytes),
        ("grpc.max_send_message_length", _MAX_SENT_BYTES),
        # Two servers on one port would each get some of the connections; we want the error.
        ("grpc.so_reuseport", 0),
        # Clients of Triton may ping without calls under way; the default would cut them off.
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
        ("grpc.http2.max_ping_strikes", 0),
    ]


Method = Callable[[Any, Any, Any], Awaitable[Any]]


def _answered(method: Method) -> Method:
    """Have every error of a unary method become one status: the kind's own, or INTERNAL with a request id."""

    @functools.wraps(method)
    async def answered(service: Any, message: Any, context: Any) -> Any:
        try:
            return await method(service, message, context)
        except ServingError as error:
            facts = answer_facts(*error.answered_by) if error.answered_by is not None else []
            return await context.abort(service.code_of(error), str(error), (*facts, *error_headers(error)))
        except Exception:
            if context.done():
                raise  # the client is gone, so nobody can be told
            return await context.abort(grpc.StatusCode.INTERNAL, log_internal_error())

    return answered


class InferenceService(service_pb2_grpc.GRPCInferenceServiceServicer):  # type: ignore[misc]
    """Unpacks a message, asks the data plane, packs the answer."""

    def __init__(self, dataplane: DataPlane) -> None:
        self._dataplane = dataplane
        self._refuse_reserved = dataplane.settings.reserved_headers == "refuse"
        self._server_timing = dataplane.settings.server_timing
        self._codes = CODES_OF_STYLE[dataplane.settings.error_style]
        self._known = KnownMessages()

    def code_of(self, error: ServingError) -> grpc.StatusCode:
        """The status of an error in the style that was asked for."""
        return self._codes[error.kind]

    @_answered
    async def ServerLive(self, _: Any, context: Any) -> Any:
        """Whether the process answers."""
        return pb.ServerLiveResponse(live=self._dataplane.live())

    @_answered
    async def ServerReady(self, _: Any, context: Any) -> Any:
        """Whether every model answers."""
        return pb.ServerReadyResponse(ready=self._dataplane.ready())

    @_answered
    async def ModelReady(self, request: Any, context: Any) -> Any:
        """Whether a model, or one version of it, answers."""
        return pb.ModelReadyResponse(ready=self._dataplane.model_ready(request.name, request.version))

    @_answered
    async def ServerMetadata(self, _: Any, context: Any) -> Any:
        """Name, version and extensions."""
        metadata = self._dataplane.server_metadata()
        return pb.ServerMetadataResponse(
            name=metadata.name, version=metadata.version, extensions=metadata.extensions
        )

    @_answered
    async def ModelMetadata(self, request: Any, context: Any) -> Any:
        """What a model takes and gives."""
        metadata = self._dataplane.model_metadata(request.name, request.version)
        return v2_proto.encode_model_metadata(metadata)

    @_answered
    async def ModelConfig(self, request: Any, context: Any) -> Any:
        """The model's config with the defaults filled in."""
        return pb.ModelConfigResponse(config=self._dataplane.model_config(request.name, request.version))

    @_answered
    async def ModelStatistics(self, request: Any, context: Any) -> Any:
        """Counters of one version, of a model, or of all."""
        return v2_proto.encode_statistics(self._dataplane.statistics(request.name, request.version))

    @_answered
    async def RepositoryIndex(self, request: Any, context: Any) -> Any:
        """Every known model and version, and why it is in its state."""
        entries = await self._dataplane.repository_index(ready_only=request.ready)
        message = pb.RepositoryIndexResponse()
        for entry in entries:
            message.models.add(name=entry.name, version=entry.version, state=entry.state, reason=entry.reason)
        return message

    @_answered
    async def RepositoryModelLoad(self, request: Any, context: Any) -> Any:
        """Load a model as the repository has it now, or by a config and files that came with the call."""
        given = {
            key: getattr(value, value.WhichOneof("parameter_choice") or "string_param")
            for key, value in request.parameters.items()
        }
        await self._dataplane.load(request.model_name, read_load_parameters(given))
        return pb.RepositoryModelLoadResponse()

    @_answered
    async def RepositoryModelUnload(self, request: Any, context: Any) -> Any:
        """Take a model out of service."""
        await self._dataplane.unload(request.model_name)
        return pb.RepositoryModelUnloadResponse()

    @_answered
    async def TraceSetting(self, request: Any, context: Any) -> Any:
        """Change what is traced, and tell it; a setting without a value takes a change back."""
        changes = {name: list(setting.value) or None for name, setting in request.settings.items()}
        answer = pb.TraceSettingResponse()
        for name, value in self._dataplane.change_trace_settings(changes, request.model_name).items():
            answer.settings[name].value.extend([value] if isinstance(value, str) else value)
        return answer

    @_answered
    async def LogSettings(self, request: Any, context: Any) -> Any:
        """Change what is logged, and tell it."""
        changes = {
            name: getattr(setting, setting.WhichOneof("parameter_choice") or "string_param")
            for name, setting in request.settings.items()
        }
        answer = pb.LogSettingsResponse()
        for name, value in self._dataplane.change_log_settings(changes).items():
            kind = {bool: "bool_param", int: "uint32_param"}.get(type(value), "string_param")
            setattr(answer.settings[name], kind, value)
        return answer

    @_answered
    async def SystemSharedMemoryStatus(self, request: Any, context: Any) -> Any:
        """One registered region, or all."""
        answer = pb.SystemSharedMemoryStatusResponse()
        for region in self._dataplane.regions.status(request.name):
            known = answer.regions[region.name]
            known.name, known.key = region.name, region.key
            known.offset, known.byte_size = region.offset, region.byte_size
        return answer

    @_answered
    async def SystemSharedMemoryRegister(self, request: Any, context: Any) -> Any:
        """Register a region of an object that the operator allows."""
        self._dataplane.regions.register(request.name, request.key, request.offset, request.byte_size)
        return pb.SystemSharedMemoryRegisterResponse()

    @_answered
    async def SystemSharedMemoryUnregister(self, request: Any, context: Any) -> Any:
        """Forget one region, or all."""
        self._dataplane.regions.unregister(request.name)
        return pb.SystemSharedMemoryUnregisterResponse()

    @_answered
    async def ModelInfer(self, data: bytes, context: Any) -> bytes:
        """Answer one request; both messages are bytes here, packed and unpacked by hand where that is possible."""
        request = self._unpacked(data)
        begun = self._begun(request, _metadata(context), None)
        response = self._dataplane.answer_at_once(begun)
        if response is None:
            response = await self._dataplane.answer(begun)
        # In the trailers alone: metadata before the message is an operation of its own, a tenth of a small call.
        trailers = _trailers(response)
        if self._server_timing and response.timings is not None:
            trailers = (*trailers, ("server-timing", response.timings.header()))
        context.set_trailing_metadata(trailers)
        return v2_proto.serialize_response(response, request.outputs)

    def _unpacked(self, data: bytes) -> InferRequest:
        request = self._known.find(data)
        if request is None:
            try:
                message = pb.ModelInferRequest.FromString(data)
            except DecodeError:
                raise InvalidArgument("the request is no inference.ModelInferRequest message.") from None
            request = v2_proto.decode_request(message, self._dataplane.regions)
            self._known.offer(data, message, request)
        return request

    async def ModelStreamInfer(self, messages: AsyncIterator[Any], context: Any) -> AsyncIterator[Any]:
        """Answer the requests of a stream in their order; an error answers its request and the stream lives on."""
        metadata = _metadata(context)
        pins = StreamPins()
        async for message in messages:
            try:
                request = v2_proto.decode_request(message, self._dataplane.regions)
                begun = self._begun(request, metadata, pins)
                response = self._dataplane.answer_at_once(begun) or await self._dataplane.answer(begun)
                answer = v2_proto.encode_response(response, request.outputs)
                # A request has one answer here, which is therefore its last; Triton says so on each.
                answer.parameters["triton_final_response"].bool_param = True
                yield pb.ModelStreamInferResponse(infer_response=answer)
            except ServingError as error:
                yield _stream_error(message, str(error))
            except Exception:  # noqa: BLE001 - logged with its traceback
                yield _stream_error(message, log_internal_error())

    def _begun(
        self, request: InferRequest, metadata: Iterable[tuple[str, Any]], pins: StreamPins | None
    ) -> Begun:
        if self._refuse_reserved:
            _check_no_reserved(metadata)
        request.headers = lambda: _facts(metadata)
        request.stream = pins
        return self._dataplane.begin(request)


def _trailers(response: InferResponse) -> tuple[tuple[str, str], ...]:
    """What is known of the answer; a bucket is one of many, the rest hardly changes."""
    route = response.route
    steady = _steady_facts(route.version, route.rule, response.provenance)
    return steady if route.bucket is None else (*steady, ("x-pg-bucket", f"{route.bucket:04d}"))


@functools.lru_cache(maxsize=4096)
def _steady_facts(version: int, rule: str, provenance: Provenance) -> tuple[tuple[str, str], ...]:
    return tuple(answer_facts(Route(version, rule), provenance))


def _metadata(context: Any) -> Iterable[tuple[str, Any]]:
    return context.invocation_metadata() or ()


def _check_no_reserved(metadata: Iterable[tuple[str, Any]]) -> None:
    for key, _ in metadata:
        if key.startswith(RESERVED_PREFIX):
            raise InvalidArgument(
                f"metadata '{key[:60]}' is reserved: x-pg-* entries are set by the gateway alone. Leave it out."
            )


def _facts(metadata: Iterable[tuple[str, Any]]) -> dict[str, str]:
    """What a rollout may look at; binary entries are no headers."""
    facts: dict[str, str] = {}
    for key, value in metadata:
        if isinstance(value, str) and not key.startswith(RESERVED_PREFIX):
            facts[key] = f"{facts[key]},{value}" if key in facts else value
    return facts


def _stream_error(message: Any, text: str) -> Any:
    response = pb.ModelStreamInferResponse(error_message=text)
    response.infer_response.id = message.id
    response.infer_response.model_name = message.model_name
    return response


def _try_port(host: str, port: int) -> None:
    """Raise OSError if the port cannot be had: gRPC's core would say so on standard error in its own words."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind((host, port))
