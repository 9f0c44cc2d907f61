"""Server reflection: a client that knows nothing of the protocol learns it from the gateway and calls a model."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import grpc
import numpy as np
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from paritygate.serving.facades.grpc_reflection import VERSIONS, reflection_file
from support.gateway import Gateway, running_gateway
from support.onnx_models import add_model, write_model


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    root = tmp_path_factory.mktemp("reflection")
    write_model(root / "models", "add", add_model(1.0))
    with running_gateway(root / "models", root / "gw", "--allow-unproven") as running:
        yield running


class Reflector:
    """Asks the reflection service of one version."""

    def __init__(self, channel: grpc.Channel, version: str) -> None:
        pool = descriptor_pool.DescriptorPool()
        pool.Add(reflection_file(version))
        package = f"grpc.reflection.{version}"
        self.request, response = (
            message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{package}.ServerReflection{kind}"))
            for kind in ("Request", "Response")
        )
        self.call = channel.stream_stream(
            f"/{package}.ServerReflection/ServerReflectionInfo",
            request_serializer=self.request.SerializeToString,
            response_deserializer=response.FromString,
        )

    def ask(self, **asked: Any) -> Any:
        (answer,) = self.call(iter([self.request(**asked)]), timeout=20)
        return answer


@pytest.fixture(params=VERSIONS)
def reflector(request: pytest.FixtureRequest, gateway: Gateway) -> Iterator[Reflector]:
    with grpc.insecure_channel(gateway.grpc) as channel:
        made = Reflector(channel, request.param)
        made.channel = channel  # type: ignore[attr-defined]
        yield made


def test_all_services_are_listed(reflector: Reflector) -> None:
    listed = [service.name for service in reflector.ask(list_services="").list_services_response.service]
    assert listed == [
        "grpc.health.v1.Health",
        "grpc.reflection.v1.ServerReflection",
        "grpc.reflection.v1alpha.ServerReflection",
        "inference.GRPCInferenceService",
    ]
    for name in listed:
        files = reflector.ask(file_containing_symbol=name).file_descriptor_response.file_descriptor_proto
        described = [descriptor_pb2.FileDescriptorProto.FromString(file) for file in files]
        assert any(f"{file.package}.{service.name}" == name for file in described for service in file.service)


def test_a_model_is_called_with_nothing_known_but_what_reflection_tells(reflector: Reflector) -> None:
    pool = descriptor_pool.DescriptorPool()
    answer = reflector.ask(file_containing_symbol="inference.GRPCInferenceService.ModelInfer")
    files = [
        descriptor_pb2.FileDescriptorProto.FromString(file)
        for file in answer.file_descriptor_response.file_descriptor_proto
    ]
    while files:
        known = [
            file for file in files if all(name not in {f.name for f in files} for name in file.dependency)
        ]
        for file in known:
            pool.Add(file)
            files.remove(file)
    method = pool.FindServiceByName("inference.GRPCInferenceService").FindMethodByName("ModelInfer")
    request, response = (
        message_factory.GetMessageClass(kind) for kind in (method.input_type, method.output_type)
    )
    message = request(model_name="add", raw_input_contents=[np.float32([1, 2]).tobytes()])
    message.inputs.add(name="x", datatype="FP32", shape=[2])
    call = reflector.channel.unary_unary(  # type: ignore[attr-defined]
        "/inference.GRPCInferenceService/ModelInfer",
        request_serializer=request.SerializeToString,
        response_deserializer=response.FromString,
    )
    answered = call(message, timeout=20)
    assert np.frombuffer(answered.raw_output_contents[0], np.float32).tolist() == [2.0, 3.0]


@pytest.mark.parametrize(
    "asked",
    [
        {"file_by_filename": "/etc/passwd"},
        {"file_containing_symbol": "inference.Nothing"},
        {
            "file_containing_extension": {
                "containing_type": "inference.ModelInferRequest",
                "extension_number": 1,
            }
        },
        {"all_extension_numbers_of_type": "nothing"},
        {},
    ],
    ids=str,
)
def test_what_is_not_described_is_said_in_the_stream(reflector: Reflector, asked: dict[str, Any]) -> None:
    answer = reflector.ask(**asked)
    assert answer.error_response.error_code == grpc.StatusCode.NOT_FOUND.value[0]
    assert answer.original_request == reflector.request(**asked)


def test_files_are_given_by_name_with_all_they_import(reflector: Reflector) -> None:
    answer = reflector.ask(file_by_filename="grpc_service.proto")
    names = {
        descriptor_pb2.FileDescriptorProto.FromString(file).name
        for file in answer.file_descriptor_response.file_descriptor_proto
    }
    assert names == {"grpc_service.proto", "model_config.proto"}
    numbers = reflector.ask(all_extension_numbers_of_type="inference.ModelInferRequest")
    assert list(numbers.all_extension_numbers_response.extension_number) == []
