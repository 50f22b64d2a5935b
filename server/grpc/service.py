"""The methods of the service; all but inference are functions that HTTP has, too."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

import grpc
from google.protobuf.json_format import ParseDict
from google.protobuf.message import DecodeError
from google.protobuf.message import Message as Protobuf

from server.context import Context
from server.errors import InvalidRequestError, ServiceError
from server.grpc import inference
from server.grpc.call import SERVICE, Call, ServicerContext, Work
from server.grpc.decoding import values_of
from server.grpc.messages import inference_pb2 as messages
from server.grpc.shares import CallPlaces
from server.protocol import health, metadata, repository
from server.protocol.administration import check_may_change
from server.protocol.attending import attend
from server.protocol.extensions import config, statistics

#: What a method makes of its message: the fields of its answer.
Answering = Callable[[Call, Any], Awaitable[Mapping[str, Any]]]


@dataclass(frozen=True)
class Method:
    """One message in, one out; ``answer`` gives the fields of it, more than it has or fewer."""

    request: type[Protobuf]
    response: type[Protobuf]
    answer: Answering

    async def __call__(self, call: Call) -> None:
        """Answer ``call``."""
        with call.exchange() as exchange:
            async with exchange.within(call.context.settings.request_timeout):
                message = await exchange.part()
            try:
                asked = self.request.FromString(message)
            except DecodeError:
                name = self.request.DESCRIPTOR.name
                raise InvalidRequestError(f"the message is no {name}") from None
            fields = await self.answer(call, asked)
            said = ParseDict(dict(fields), self.response(), ignore_unknown_fields=True)
            await exchange.send(said.SerializeToString())


async def _live(call: Call, asked: messages.ServerLiveRequest) -> Mapping[str, Any]:
    return await health.live(call)


async def _ready(call: Call, asked: messages.ServerReadyRequest) -> Mapping[str, Any]:
    return {"ready": not await health.absence(call.context)}


async def _server(call: Call, asked: messages.ServerMetadataRequest) -> Mapping[str, Any]:
    return await health.server_metadata(call)


async def _model_ready(call: Call, asked: messages.ModelReadyRequest) -> Mapping[str, Any]:
    try:
        await call.context.repository.check_answers(asked.name, asked.version or None)
    except ServiceError:
        return {"ready": False}  # as Triton, also of a model that is not there
    return {"ready": True}


async def _model(call: Call, asked: messages.ModelMetadataRequest) -> Mapping[str, Any]:
    return await metadata.model_metadata(call, asked.name, asked.version or None)


async def _config(call: Call, asked: messages.ModelConfigRequest) -> Mapping[str, Any]:
    found = await config.model_config(call, asked.name, asked.version or None)
    return {"config": found}


async def _statistics(call: Call, asked: messages.ModelStatisticsRequest) -> Mapping[str, Any]:
    if not asked.name:
        return await statistics.all_statistics(call)
    return await statistics.model_statistics(call, asked.name, asked.version or None)


async def _index(call: Call, asked: messages.RepositoryIndexRequest) -> Mapping[str, Any]:
    return {"models": await repository.states(call.context, asked.ready)}


async def _load(call: Call, asked: messages.RepositoryModelLoadRequest) -> Mapping[str, Any]:
    check_may_change(call.context, call.key, call.caller)
    await repository.load_model(call.context, asked.model_name, values_of(asked.parameters))
    return {}


async def _unload(call: Call, asked: messages.RepositoryModelUnloadRequest) -> Mapping[str, Any]:
    check_may_change(call.context, call.key, call.caller)
    await repository.unload_model(call.context, asked.model_name, values_of(asked.parameters))
    return {}


def _method(name: str, answer: Answering) -> Method:
    """Return the method whose messages are called ``name``."""
    return Method(getattr(messages, f"{name}Request"), getattr(messages, f"{name}Response"), answer)


METHODS: dict[str, Work] = {
    "ServerLive": _method("ServerLive", _live),
    "ServerReady": _method("ServerReady", _ready),
    "ServerMetadata": _method("ServerMetadata", _server),
    "ModelReady": _method("ModelReady", _model_ready),
    "ModelMetadata": _method("ModelMetadata", _model),
    "ModelConfig": _method("ModelConfig", _config),
    "ModelStatistics": _method("ModelStatistics", _statistics),
    "ModelInfer": inference.infer,
    "ModelStreamInfer": inference.stream,
    "RepositoryIndex": _method("RepositoryIndex", _index),
    "RepositoryModelLoad": _method("RepositoryModelLoad", _load),
    "RepositoryModelUnload": _method("RepositoryModelUnload", _unload),
}


def handlers(context: Context, shares: CallPlaces) -> grpc.GenericRpcHandler:
    """Return what answers calls to the service, as many as ``shares`` has for each address.

    All methods are streams to gRPC: on the wire a call with one message looks the same, and a message is
    read when it is asked for, an answer held until it is sent.
    """

    def handler(name: str, work: Work) -> "grpc.RpcMethodHandler[bytes, bytes]":
        async def serve(_: object, wire: ServicerContext) -> None:
            await attend(context, Call(context, shares, name, wire, work))

        return grpc.stream_stream_rpc_method_handler(serve)

    return grpc.method_handlers_generic_handler(
        SERVICE, {name: handler(name, work) for name, work in METHODS.items()}
    )
