"""A client of our own messages, and what it sends: made of their descriptors, as any gRPC client is."""

import contextlib
from collections.abc import AsyncIterator, Sequence
from typing import Any

import grpc
from google.protobuf.message import Message
from google.rpc.error_details_pb2 import ErrorInfo
from google.rpc.status_pb2 import Status
from grpc import aio

from server.grpc.call import SERVICE
from server.grpc.details import DOMAIN
from server.grpc.messages import inference_pb2 as messages
from server.grpc.server import GrpcServer
from server.service import Service
from server.transport.certificate import Certificate
from tests.server.support import LIMIT_SECONDS, Tensors

Metadata = Sequence[tuple[str, str]]


class Client:
    """Calls of one channel."""

    def __init__(self, channel: aio.Channel, place: str) -> None:
        self.channel = channel
        self.place = place

    def begin(self, method: str, message: Message | bytes, **options: Any) -> Any:
        """Begin a call with one message; it can be awaited and cancelled."""
        data = message if isinstance(message, bytes) else message.SerializeToString()
        options = {"timeout": LIMIT_SECONDS, **options}
        call: Any = self.channel.unary_unary(
            f"/{SERVICE}/{method}", response_deserializer=_answer(method)
        )
        return call(data, **options)

    async def __call__(self, method: str, message: Message | None = None, **options: Any) -> Any:
        found = message if message is not None else getattr(messages, f"{method}Request")()
        return await self.begin(method, found, **options)

    async def refused(
        self, method: str, message: Message | bytes, **options: Any
    ) -> aio.AioRpcError:
        """The error that a call ends with."""
        try:
            found = await self.begin(method, message, **options)
        except aio.AioRpcError as exc:
            return exc
        raise AssertionError(f"answered with {found}")

    async def stream(self, asked: Sequence[Message], **options: Any) -> list[Any]:
        """All answers to a stream of these messages."""
        call: Any = self.channel.stream_stream(
            f"/{SERVICE}/ModelStreamInfer",
            response_deserializer=messages.ModelStreamInferResponse.FromString,
        )
        data = iter([message.SerializeToString() for message in asked])
        return [found async for found in call(data, timeout=LIMIT_SECONDS, **options)]


def _answer(method: str) -> Any:
    found = getattr(messages, f"{method}Response", None)
    return found and found.FromString


@contextlib.asynccontextmanager
async def calling(
    service: Service,
    certificate: Certificate | None = None,
    credentials: grpc.ChannelCredentials | None = None,
) -> AsyncIterator[Client]:
    """Serve calls to the models of ``service``, and give a client that makes them."""
    server = GrpcServer(service, certificate)
    place = f"127.0.0.1:{await server.start('127.0.0.1', 0)}"
    try:
        opened = (
            aio.insecure_channel(place)
            if credentials is None
            else aio.secure_channel(place, credentials)
        )
        async with opened as channel:
            yield Client(channel, place)
    finally:
        await server.end()


DATATYPES = {"float32": "FP32", "int8": "INT8", "int64": "INT64"}
CONTENTS = {"float32": "fp32_contents", "int8": "int_contents", "int64": "int64_contents"}


def asking(model: str, inputs: Tensors, raw: bool = True, **fields: Any) -> Any:
    """A request for inference."""
    found = messages.ModelInferRequest(model_name=model, **fields)
    for name, array in inputs.items():
        kind = str(array.dtype)
        tensor = found.inputs.add(name=name, datatype=DATATYPES[kind], shape=array.shape)
        if raw:
            found.raw_input_contents.append(array.tobytes())
        else:
            getattr(tensor.contents, CONTENTS[kind]).extend(array.ravel().tolist())
    return found


def reason_of_details(details: bytes) -> str:
    """Return the reason in the ErrorInfo of a google.rpc.Status."""
    status = Status.FromString(details)
    info = ErrorInfo()
    (packed,) = status.details
    assert packed.Unpack(info)
    assert info.domain == DOMAIN
    return str(info.reason)
