"""Server reflection: a client that has no files of the protocol learns all of it, and can ask a model."""

from typing import Any

import pytest
from google.protobuf import message_factory
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from grpc_reflection.v1alpha.reflection_pb2 import (
    ExtensionRequest,
    ServerReflectionRequest,
    ServerReflectionResponse,
)

from server.grpc.call import SERVICE
from server.grpc.health import HEALTH
from server.grpc.reflection import REFLECTION, REFLECTION_ALPHA, Reflection
from server.grpc.server import SERVICES
from tests.server.grpc.stubs import Client, asking, calling
from tests.server.support import LIMIT_SECONDS, ServiceUnderTest, inputs_for

BOTH = (REFLECTION, REFLECTION_ALPHA)


async def reflected(
    client: Client, service: str, *requests: ServerReflectionRequest
) -> list[ServerReflectionResponse]:
    call: Any = client.channel.stream_stream(
        f"/{service}/ServerReflectionInfo",
        response_deserializer=ServerReflectionResponse.FromString,
    )
    data = iter([request.SerializeToString() for request in requests])
    return [response async for response in call(data, timeout=LIMIT_SECONDS)]


@pytest.mark.parametrize("version", BOTH)
async def test_a_client_learns_what_it_asks(service: ServiceUnderTest, version: str) -> None:
    async with calling(service.inside) as client:
        (listed,) = await reflected(client, version, ServerReflectionRequest(list_services="*"))
        names = [listing.name for listing in listed.list_services_response.service]
        assert set(names) == {SERVICE, HEALTH, *BOTH}
        requests = [ServerReflectionRequest(file_containing_symbol=name) for name in names]
        pool = DescriptorPool()
        for response in await reflected(client, version, *requests):
            for data in response.file_descriptor_response.file_descriptor_proto:
                pool.AddSerializedFile(data)
        for name in names:
            assert pool.FindServiceByName(name).methods
        method = pool.FindServiceByName(SERVICE).methods_by_name["ModelInfer"]
        kind = message_factory.GetMessageClass(method.input_type)
        request = kind.FromString(asking("pair", inputs_for("pair")).SerializeToString())
        answer = await client("ModelInfer", request)
        assert answer.outputs


@pytest.mark.parametrize(
    ("version", "other"), [(REFLECTION, "v1alpha"), (REFLECTION_ALPHA, "reflection.v1.")]
)
async def test_either_version_is_described_under_its_names(version: str, other: str) -> None:
    request = ServerReflectionRequest(host="here", file_containing_symbol=version)
    response = await Reflection(SERVICES).answer(request)
    assert response.valid_host == "here"
    (data,) = response.file_descriptor_response.file_descriptor_proto
    file = FileDescriptorProto.FromString(data)
    assert f"{file.package}.{file.service[0].name}" == version
    assert other not in str(file)
    assert file.options.deprecated == (version == REFLECTION_ALPHA)


ERRORS = {
    "file_containing_symbol": "inference.Nothing",
    "file_by_filename": "google/protobuf/descriptor.proto",
    "file_containing_extension": ExtensionRequest(containing_type=SERVICE, extension_number=1),
    "all_extension_numbers_of_type": "inference.Nothing",
}


@pytest.mark.parametrize("kind", [*ERRORS, ""])
async def test_what_is_not_served_is_an_error_inside_the_answer(
    service: ServiceUnderTest, kind: str
) -> None:
    wrong = ServerReflectionRequest(**({kind: ERRORS[kind]} if kind else {}))
    right = ServerReflectionRequest(file_by_filename="inference.proto")
    async with calling(service.inside) as client:
        failed, described = await reflected(client, REFLECTION, wrong, right)
    assert failed.error_response.error_code == (5 if kind else 12)
    assert failed.original_request == wrong
    assert described.file_descriptor_response.file_descriptor_proto
