"""The methods of the service; all but inference are functions that HTTP has, too."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

import grpc
from google.protobuf.json_format import ParseDict
from google.protobuf.message import DecodeError
from google.protobuf.message import Message as Protobuf

from models.packs.manifest import Manifest
from pipeline.execution.given import Arrays
from server.codec.datatypes import datatype
from server.codec.messages import ModelAnswer, Output
from server.codec.raw import raw_bytes, raw_parts
from server.context import Context
from server.errors import DisconnectedError, InvalidRequestError, ServiceError
from server.failures import FAILURES
from server.grpc.call import SERVICE, Call, CallPlaces, ServicerContext, Work
from server.grpc.decoding import GrpcMessage, values_of
from server.grpc.messages import inference_pb2 as messages
from server.grpc.messages.inference_pb2 import ModelInferResponse, ModelStreamInferResponse
from server.memory.request_needs import SHORT_CODEC_BYTES, short_infer_bytes, tensor_bytes
from server.protocol import metadata, repository
from server.protocol.administration import check_may_change
from server.protocol.answers import Answer
from server.protocol.attending import attend
from server.protocol.errors import told
from server.protocol.infer import kept_outputs
from server.protocol.serving import Inference, Kept
from server.requests.exchange import Exchange

# An answer to the message that it is, each tensor copied once.

_RAW_FIELD = ModelInferResponse.RAW_OUTPUT_CONTENTS_FIELD_NUMBER
_ANSWER_FIELD = ModelStreamInferResponse.INFER_RESPONSE_FIELD_NUMBER


def _encoded(answer: ModelAnswer, in_stream: bool = False) -> bytes:
    """Return ``answer`` as a ModelInferResponse, ``in_stream`` inside of a ModelStreamInferResponse."""
    parts: list[bytes | memoryview] = [_head(answer).SerializeToString()]
    for output in answer.outputs:
        parts.append(_prefix(_RAW_FIELD, raw_bytes(output.array)))
        parts += raw_parts(output.array)
    if in_stream:
        parts.insert(0, _prefix(_ANSWER_FIELD, sum(map(len, parts))))
    return b"".join(parts)


def _head(answer: ModelAnswer) -> ModelInferResponse:
    return ModelInferResponse(
        model_name=answer.model,
        model_version=answer.version,
        id=answer.id or "",
        outputs=[
            ModelInferResponse.InferOutputTensor(
                name=output.name,
                datatype=datatype(output.array.dtype),
                shape=output.array.shape,
            )
            for output in answer.outputs
        ],
    )


def _prefix(field: int, n_bytes: int) -> bytes:
    """Return what stands before ``n_bytes`` that are a ``field``."""
    return _varint(field << 3 | 2) + _varint(n_bytes)


def _varint(value: int) -> bytes:
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    found.append(value)
    return bytes(found)


# ModelInfer and ModelStreamInfer: a message in, its tensors through the model, a message out.

# There are two at a time: gRPC's own buffer and the message, or the message and its tensors.
_COPIES = 2


async def infer(call: Call) -> None:
    """Answer one message."""
    with call.exchange() as exchange:
        answer = await _answer(call, exchange, in_stream=False)
        await answer.send(exchange)


async def _stream(call: Call) -> None:
    """Answer one message after the other, also those that are wrong, until the client has no more."""
    while True:
        with call.exchange() as exchange:
            try:
                answer = await _answer(call, exchange, in_stream=True)
            except DisconnectedError:
                return
            except FAILURES as exc:
                if not exchange.is_read:  # none came in time: there is nothing to answer
                    raise
                said = told(exc, call.context.settings.repository)
                answer = Answer(ModelStreamInferResponse(error_message=said).SerializeToString())
            await answer.send(exchange)


async def _answer(call: Call, exchange: Exchange, in_stream: bool) -> Answer:
    """Return the answer to the next message.

    Raises:
        DisconnectedError: there is none.
    """
    asked = await _asked(call.context, exchange, in_stream)
    name, version = asked.head.model_name, asked.head.model_version or None
    async with Inference(call.context, exchange, name, version) as model:
        manifest = model.manifest
        with model.reading(names_timeout=True):
            request = asked.request(model.use.signature, call.left_seconds)
            del asked  # the message goes, its tensors stay
            await exchange.hold(model.use.infer_bytes)

        def keep(outputs: Arrays) -> Kept[list[Output]]:
            kept = kept_outputs(request.wanted, manifest, "identity", outputs)
            return kept._replace(n_bytes=_COPIES * kept.n_bytes, is_raw=True)

        outputs = await model.compute(request, keep)
        answer = ModelAnswer(name, model.pack.version, request.id, outputs)
        return Answer(_encoded(answer, in_stream))


async def _asked(context: Context, exchange: Exchange, in_stream: bool) -> GrpcMessage:
    """Return the next message.

    Its length is not known before it has come. So a call first holds what the largest request takes. A
    stream holds that only when the message has come: a client may pause for long between two, and others
    would lack the memory meanwhile. gRPC does not tell that a message begins.
    """
    least = min(_largest_bytes(context), exchange.lease.memory.room_bytes)
    with exchange.within(context.settings.request_timeout):
        if not in_stream:
            exchange.check_room()
            await exchange.hold(least)
        message = GrpcMessage(await exchange.part())
        need = _COPIES * message.work_bytes + SHORT_CODEC_BYTES
        await exchange.hold(max(need, least))
        return message


def _largest_bytes(context: Context) -> int:
    """Return what a request with raw tensors takes, to the model whose tensors are largest."""
    packs = [entry.pack for entry in context.repository.entries()]
    return max((_message_bytes(pack.manifest) for pack in packs if pack is not None), default=0)


def _message_bytes(manifest: Manifest) -> int:
    """Return the most that a message takes, or its tensors later: held at once, or holders would wait."""
    message = _COPIES * tensor_bytes(manifest.inputs) + SHORT_CODEC_BYTES
    return max(message, short_infer_bytes(manifest))


# All methods.

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
            with exchange.within(call.context.settings.request_timeout):
                message = await exchange.part()
            try:
                asked = self.request.FromString(message)
            except DecodeError:
                name = self.request.DESCRIPTOR.name
                raise InvalidRequestError(f"the message is no {name}") from None
            fields = await self.answer(call, asked)
            said = ParseDict(dict(fields), self.response(), ignore_unknown_fields=True)
            await Answer(said.SerializeToString()).send(exchange)


async def _live(call: Call, asked: messages.ServerLiveRequest) -> Mapping[str, Any]:
    return await metadata.live(call)


async def _ready(call: Call, asked: messages.ServerReadyRequest) -> Mapping[str, Any]:
    return {"ready": not await metadata.absence(call.context)}


async def _server(call: Call, asked: messages.ServerMetadataRequest) -> Mapping[str, Any]:
    return await metadata.server_metadata(call)


async def _model_ready(call: Call, asked: messages.ModelReadyRequest) -> Mapping[str, Any]:
    try:
        await call.context.repository.check_answers(asked.name, asked.version or None)
    except ServiceError:
        return {"ready": False}  # as Triton, also of a model that is not there
    return {"ready": True}


async def _model(call: Call, asked: messages.ModelMetadataRequest) -> Mapping[str, Any]:
    return await metadata.model_metadata(call, asked.name, asked.version or None)


async def _config(call: Call, asked: messages.ModelConfigRequest) -> Mapping[str, Any]:
    found = await metadata.model_config(call, asked.name, asked.version or None)
    return {"config": found}


async def _statistics(call: Call, asked: messages.ModelStatisticsRequest) -> Mapping[str, Any]:
    if not asked.name:
        return await metadata.all_statistics(call)
    return await metadata.model_statistics(call, asked.name, asked.version or None)


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
    "ModelInfer": infer,
    "ModelStreamInfer": _stream,
    "RepositoryIndex": _method("RepositoryIndex", _index),
    "RepositoryModelLoad": _method("RepositoryModelLoad", _load),
    "RepositoryModelUnload": _method("RepositoryModelUnload", _unload),
}


def handlers(context: Context, shares: CallPlaces) -> grpc.GenericRpcHandler:
    """Return what answers calls to the service, as many as ``shares`` has for each address.

    All methods are streams to gRPC: on the wire a call with one message looks the same. So the service
    reads a message when it wants one, and waits until an answer has been sent.
    """

    def handler(name: str, work: Work) -> "grpc.RpcMethodHandler[bytes, bytes]":
        async def serve(_: object, wire: ServicerContext) -> None:
            await attend(Call(context, shares, name, wire, work))

        return grpc.stream_stream_rpc_method_handler(serve)

    return grpc.method_handlers_generic_handler(
        SERVICE, {name: handler(name, work) for name, work in METHODS.items()}
    )
