"""The standard reflection service, by which generic clients (grpcurl, Postman) learn what can be called.

As for the health service, the published package asks for a newer protobuf than tritonclient takes, so its messages
are described here. Both versions of the service are answered: they differ in nothing but their name.

Source: grpc/reflection/v1/reflection.proto of grpc/grpc-proto.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from typing import Any

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.descriptor import FileDescriptor

VERSIONS = ("v1", "v1alpha")
_STRING, _INT32, _BYTES, _MESSAGE = 9, 5, 12, 11
_OPTIONAL, _REPEATED = 1, 3

_FIELDS: Mapping[str, tuple[tuple[str, int, int | str, bool, bool], ...]] = {
    # message: (field, number, type or message, repeated, whether it is one of the alternatives)
    "ExtensionRequest": (
        ("containing_type", 1, _STRING, False, False),
        ("extension_number", 2, _INT32, False, False),
    ),
    "ServerReflectionRequest": (
        ("host", 1, _STRING, False, False),
        ("file_by_filename", 3, _STRING, False, True),
        ("file_containing_symbol", 4, _STRING, False, True),
        ("file_containing_extension", 5, "ExtensionRequest", False, True),
        ("all_extension_numbers_of_type", 6, _STRING, False, True),
        ("list_services", 7, _STRING, False, True),
    ),
    "FileDescriptorResponse": (("file_descriptor_proto", 1, _BYTES, True, False),),
    "ExtensionNumberResponse": (
        ("base_type_name", 1, _STRING, False, False),
        ("extension_number", 2, _INT32, True, False),
    ),
    "ServiceResponse": (("name", 1, _STRING, False, False),),
    "ListServiceResponse": (("service", 1, "ServiceResponse", True, False),),
    "ErrorResponse": (("error_code", 1, _INT32, False, False), ("error_message", 2, _STRING, False, False)),
    "ServerReflectionResponse": (
        ("valid_host", 1, _STRING, False, False),
        ("original_request", 2, "ServerReflectionRequest", False, False),
        ("file_descriptor_response", 4, "FileDescriptorResponse", False, True),
        ("all_extension_numbers_response", 5, "ExtensionNumberResponse", False, True),
        ("list_services_response", 6, "ListServiceResponse", False, True),
        ("error_response", 7, "ErrorResponse", False, True),
    ),
}


def reflection_file(version: str) -> descriptor_pb2.FileDescriptorProto:
    """The file that describes one version of the service."""
    package = f"grpc.reflection.{version}"
    file = descriptor_pb2.FileDescriptorProto(
        name=f"grpc/reflection/{version}/reflection.proto", package=package, syntax="proto3"
    )
    for name, fields in _FIELDS.items():
        message = file.message_type.add(name=name)
        if any(choice for *_, choice in fields):
            message.oneof_decl.add(name=f"message_{'request' if name.endswith('Request') else 'response'}")
        for field, number, kind, repeated, choice in fields:
            made = message.field.add(name=field, number=number, label=_REPEATED if repeated else _OPTIONAL)
            if isinstance(kind, str):
                made.type, made.type_name = _MESSAGE, f".{package}.{kind}"
            else:
                made.type = kind
            if choice:
                made.oneof_index = 0
    file.service.add(name="ServerReflection").method.add(
        name="ServerReflectionInfo",
        input_type=f".{package}.ServerReflectionRequest",
        output_type=f".{package}.ServerReflectionResponse",
        client_streaming=True,
        server_streaming=True,
    )
    return file


class ReflectionService:
    """Tells which services there are, and the files that describe them.

    Args:
        services: The files that describe each service beside this one, by the service's full name.
    """

    def __init__(self, services: Mapping[str, FileDescriptor]) -> None:
        pool = descriptor_pool.DescriptorPool()
        own = {}
        for version in VERSIONS:
            pool.Add(reflection_file(version))
            own[f"grpc.reflection.{version}.ServerReflection"] = pool.FindFileByName(
                f"grpc/reflection/{version}/reflection.proto"
            )
        self._pool = pool
        self._services = sorted({*services, *own})
        self._files = {
            file.name: file for root in (*services.values(), *own.values()) for file in _closure(root)
        }
        self._by_symbol = {symbol: file for file in self._files.values() for symbol in _symbols(file)}

    def handlers(self) -> list[grpc.GenericRpcHandler]:
        """What a grpc server takes, one for each version."""
        return [self._handler(version) for version in VERSIONS]

    def _handler(self, version: str) -> grpc.GenericRpcHandler:
        package = f"grpc.reflection.{version}"
        request, response = (
            message_factory.GetMessageClass(
                self._pool.FindMessageTypeByName(f"{package}.ServerReflection{kind}")
            )
            for kind in ("Request", "Response")
        )

        async def info(requests: AsyncIterator[Any], _: Any) -> AsyncIterator[Any]:
            async for asked in requests:
                yield self._answer(asked, response(valid_host=asked.host, original_request=asked))

        method = grpc.stream_stream_rpc_method_handler(
            info, request_deserializer=request.FromString, response_serializer=response.SerializeToString
        )
        return grpc.method_handlers_generic_handler(
            f"{package}.ServerReflection", {"ServerReflectionInfo": method}
        )

    def _answer(self, asked: Any, answer: Any) -> Any:
        kind = asked.WhichOneof("message_request")
        if kind == "list_services":
            for name in self._services:
                answer.list_services_response.service.add(name=name)
        elif kind == "file_by_filename":
            self._give(answer, self._files.get(asked.file_by_filename), asked.file_by_filename)
        elif kind == "file_containing_symbol":
            symbol = asked.file_containing_symbol
            self._give(answer, self._by_symbol.get(symbol), symbol)
        elif kind == "all_extension_numbers_of_type":
            name = asked.all_extension_numbers_of_type
            if name in self._by_symbol:
                answer.all_extension_numbers_response.base_type_name = name  # there are no extensions
            else:
                self._give(answer, None, name)
        else:
            self._give(answer, None, "extension" if kind else "a request that asks for nothing")
        return answer

    def _give(self, answer: Any, file: FileDescriptor | None, asked: str) -> None:
        if file is None:
            answer.error_response.error_code = grpc.StatusCode.NOT_FOUND.value[0]
            answer.error_response.error_message = f"'{asked[:100]}' is not described here."
            return
        for needed in _closure(file):
            proto = descriptor_pb2.FileDescriptorProto()
            needed.CopyToProto(proto)
            answer.file_descriptor_response.file_descriptor_proto.append(proto.SerializeToString())


def _closure(file: FileDescriptor) -> list[FileDescriptor]:
    """A file and all that it imports, each once."""
    found: dict[str, FileDescriptor] = {}
    left = [file]
    while left:
        one = left.pop()
        if one.name not in found:
            found[one.name] = one
            left.extend(one.dependencies)
    return list(found.values())


def _symbols(file: FileDescriptor) -> Iterator[str]:
    """Full names of everything that a file declares."""
    for service in file.services_by_name.values():
        yield service.full_name
        yield from (method.full_name for method in service.methods)
    yield from (enum.full_name for enum in file.enum_types_by_name.values())
    yield from _in_messages(file.message_types_by_name.values())


def _in_messages(messages: Iterable[Any]) -> Iterator[str]:
    for message in messages:
        yield message.full_name
        yield from (enum.full_name for enum in message.enum_types)
        yield from _in_messages(message.nested_types)
