"""Server reflection: what is served, in the descriptors of its messages, for tools such as grpcurl.

The library answers. Both versions of the protocol have the same messages; it has v1alpha, which older tools
speak, and the file of v1 is that with another package.
"""

from collections.abc import AsyncIterator, Iterable, Mapping
from functools import cached_property
from typing import Any

import grpc
from google.protobuf.descriptor import FileDescriptor
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.text_format import MessageToString, Parse
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2
from grpc_reflection.v1alpha.reflection_pb2 import (
    ErrorResponse,
    ServerReflectionRequest,
    ServerReflectionResponse,
)

from server.errors import DisconnectedError
from server.grpc.call import Call, Work
from server.grpc.messages import inference_pb2
from server.grpc.service import read_message

REFLECTION = "grpc.reflection.v1.ServerReflection"
REFLECTION_ALPHA = "grpc.reflection.v1alpha.ServerReflection"


def _v1(alpha: FileDescriptor) -> FileDescriptorProto:
    """Return the file of v1alpha as that of v1."""
    file = FileDescriptorProto.FromString(alpha.serialized_pb)
    file.ClearField("options")  # deprecated; names of v1alpha in other languages
    text = MessageToString(file).replace("v1alpha", "v1")
    return Parse(text, FileDescriptorProto())


def _pool() -> DescriptorPool:
    """Return the files of what is served, and no other that libraries have."""
    pool = DescriptorPool()
    for module in (inference_pb2, health_pb2, reflection_pb2):
        pool.AddSerializedFile(module.DESCRIPTOR.serialized_pb)
    pool.AddSerializedFile(_v1(reflection_pb2.DESCRIPTOR).SerializeToString())
    return pool


class Reflection:
    """Answers requests about ``services``; all of them are in the messages that this program has."""

    def __init__(self, services: Iterable[str]) -> None:
        self._services = tuple(services)

    @cached_property
    def _servicer(self) -> Any:
        from grpc_reflection.v1alpha.reflection import aio  # 1 MB; most servers get no request

        return aio.ReflectionServicer(self._services, pool=_pool())

    async def answer(self, request: ServerReflectionRequest) -> ServerReflectionResponse:
        """Return what ``request`` is about, or an error inside of the answer."""

        async def single() -> AsyncIterator[ServerReflectionRequest]:
            yield request

        responses = self._servicer.ServerReflectionInfo(single(), None)
        (response,) = [response async for response in responses]
        response.valid_host = request.host
        if request.WhichOneof("message_request") is None:  # a kind that later versions may have
            code, message = grpc.StatusCode.UNIMPLEMENTED.value
            error = ErrorResponse(error_code=code, error_message=message)
            response.error_response.CopyFrom(error)
        return response


def methods(services: Iterable[str]) -> Mapping[str, Work]:
    """Return the methods of either version, for a server of ``services``."""
    reflection = Reflection(services)

    async def info(call: Call) -> None:
        """Answer one message after the other until the client has no more."""
        while True:
            with call.exchange() as exchange:
                try:
                    request = await read_message(call, exchange, ServerReflectionRequest)
                except DisconnectedError:
                    return
                response = await reflection.answer(request)
                await exchange.send(response.SerializeToString())

    return {"ServerReflectionInfo": info}
