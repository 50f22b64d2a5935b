"""The methods of the service; all but inference are functions that HTTP has, too."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from google.protobuf.json_format import ParseDict
from google.protobuf.message import DecodeError
from google.protobuf.message import Message as Protobuf

from models.text.recipe import Tokens
from pipeline.budget.errors import RefusedError
from pipeline.budget.request_needs import SHORT_CODEC_BYTES
from pipeline.execution.given import Arrays
from server.codec.datatypes import datatype
from server.codec.messages import ModelAnswer, Output
from server.codec.raw import raw_bytes, raw_parts
from server.errors import DisconnectedError, InvalidRequestError, ServiceError
from server.faults import FAILURES, Fault
from server.grpc.call import Call, Work
from server.grpc.decoding import GrpcMessage, values_of
from server.grpc.details import prefix
from server.grpc.messages import inference_pb2 as messages
from server.grpc.messages.inference_pb2 import ModelInferResponse, ModelStreamInferResponse
from server.grpc.reserving import COPIES, needed_bytes
from server.protocol import metadata, repository
from server.protocol.administration import check_may_change
from server.protocol.answers import Answer
from server.protocol.errors import reported
from server.protocol.infer import kept_outputs
from server.protocol.serving import Inference, Kept
from server.protocol.texts import with_tokens
from server.requests.exchange import Exchange

# An answer to the message that it is, each tensor copied once.

_RAW_FIELD = ModelInferResponse.RAW_OUTPUT_CONTENTS_FIELD_NUMBER
# The parameter for the header of HTTP.
_CUT = "text_truncated"
_ANSWER_FIELD = ModelStreamInferResponse.INFER_RESPONSE_FIELD_NUMBER


def _encoded(answer: ModelAnswer, in_stream: bool = False, tokens: Tokens | None = None) -> bytes:
    """Return ``answer`` as a ModelInferResponse, ``in_stream`` inside of a ModelStreamInferResponse.

    ``tokens``: of the text in the request; where that has more, a parameter is their count.
    """
    head = _head(answer)
    if tokens is not None and tokens.is_cut:
        head.parameters[_CUT].int64_param = len(tokens.ids)
    if in_stream:
        _mark_final(head)
    parts: list[bytes | memoryview] = [head.SerializeToString()]
    for output in answer.outputs:
        parts.append(prefix(_RAW_FIELD, raw_bytes(output.array)))
        parts += raw_parts(output.array)
    if in_stream:
        parts.insert(0, prefix(_ANSWER_FIELD, sum(map(len, parts))))
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


def _mark_final(response: ModelInferResponse) -> None:
    """Say, as Triton does in streams, that no other response to the same request follows.

    A model answers each request once, so none is empty but for this, also where a client enables those.
    """
    response.parameters["triton_final_response"].bool_param = True


def _failure(fault: Fault, request_id: str = "") -> Answer:
    """Return the answer of a stream to a request that failed, with the id by which its client knows it."""
    response = ModelStreamInferResponse(error_message=fault.message)
    response.infer_response.id = request_id
    response.infer_response.parameters["code"].string_param = fault.code
    _mark_final(response.infer_response)
    return Answer(response.SerializeToString())


# ModelInfer and ModelStreamInfer: a message in, its tensors through the model, a message out.


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
                answer = _failure(reported(exc, call.service.settings.repository))
            await answer.send(exchange)


async def _answer(call: Call, exchange: Exchange, in_stream: bool) -> Answer:
    """Return the answer to the next message; in a stream also where its request fails.

    Raises:
        DisconnectedError: there is none.
    """
    message = await _request_message(call, exchange, in_stream)
    request_id, name, version = message.head.id, message.head.model_name, message.head.model_version
    try:
        async with Inference(call.service, exchange, name, version or None) as model:
            manifest = model.manifest
            with model.reading(names_timeout=True):
                request = message.request(model.use.signature, call.left_seconds)
                del message  # the message goes, its tensors stay
                await exchange.hold(model.use.infer_bytes)
            request, tokens = await with_tokens(model, request)

            def keep(outputs: Arrays) -> Kept[list[Output]]:
                kept = kept_outputs(request.wanted, manifest, "identity", outputs)
                return kept._replace(n_bytes=COPIES * kept.n_bytes, is_raw=True)

            outputs = await model.compute(request, keep)
            answer = ModelAnswer(name, model.pack.version, request.id, outputs)
            return Answer(_encoded(answer, in_stream, tokens))
    except FAILURES as exc:
        if not in_stream or isinstance(exc, DisconnectedError):
            raise
        return _failure(reported(exc, call.service.settings.repository), request_id)


async def _request_message(call: Call, exchange: Exchange, in_stream: bool) -> GrpcMessage:
    """Return the next message.

    Its length is not known before it has come. So a call first holds what a request of its connection takes
    (reserving.py). A stream holds that only when the message has come: a client may pause for long between
    two, and others would lack the memory meanwhile. gRPC does not tell that a message begins.
    """
    models, limit_bytes = call.service.repository.models, exchange.lease.memory.room_bytes
    with exchange.within(call.service.settings.request_timeout):
        if not in_stream:
            exchange.check_room()
            await exchange.hold(min(needed_bytes(models, call.recent_models), limit_bytes))
        message = GrpcMessage(await exchange.part())
        need = COPIES * message.work_bytes + SHORT_CODEC_BYTES
        if models.of(message.model_name):
            call.note_model(message.model_name)
            need = max(need, min(needed_bytes(models, [message.model_name]), limit_bytes))
        await exchange.hold(need)
        return message


# All methods.

Read = TypeVar("Read", bound=Protobuf)


async def read_message(call: Call, exchange: Exchange, kind: type[Read]) -> Read:
    """Return the next message of ``call``, a short one.

    Raises:
        InvalidRequestError: it is not of this ``kind``. DisconnectedError: there is none.
    """
    with exchange.within(call.service.settings.request_timeout):
        message = await exchange.part()
    try:
        return kind.FromString(message)
    except DecodeError:
        raise InvalidRequestError(f"the message is no {kind.DESCRIPTOR.name}") from None


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
            asked = await read_message(call, exchange, self.request)
            fields = await self.answer(call, asked)
            said = ParseDict(dict(fields), self.response(), ignore_unknown_fields=True)
            await Answer(said.SerializeToString()).send(exchange)


async def _live(call: Call, asked: messages.ServerLiveRequest) -> Mapping[str, Any]:
    return await metadata.live()


async def _ready(call: Call, asked: messages.ServerReadyRequest) -> Mapping[str, Any]:
    return {"ready": not await metadata.absence(call.service)}


async def _server(call: Call, asked: messages.ServerMetadataRequest) -> Mapping[str, Any]:
    return await metadata.server_metadata()


async def _model_ready(call: Call, asked: messages.ModelReadyRequest) -> Mapping[str, Any]:
    try:
        await call.service.repository.check_answers(asked.name, asked.version or None)
    except (ServiceError, RefusedError):
        return {"ready": False}  # as Triton, also of a model that is not there
    return {"ready": True}


async def _model(call: Call, asked: messages.ModelMetadataRequest) -> Mapping[str, Any]:
    return await metadata.model_metadata(call.service, asked.name, asked.version or None)


async def _config(call: Call, asked: messages.ModelConfigRequest) -> Mapping[str, Any]:
    found = await metadata.model_config(call.service, asked.name, asked.version or None)
    return {"config": found}


async def _statistics(call: Call, asked: messages.ModelStatisticsRequest) -> Mapping[str, Any]:
    if not asked.name:
        return await metadata.all_statistics(call.service)
    return await metadata.model_statistics(call.service, asked.name, asked.version or None)


async def _index(call: Call, asked: messages.RepositoryIndexRequest) -> Mapping[str, Any]:
    return {"models": await repository.states(call.service, asked.ready)}


async def _load(call: Call, asked: messages.RepositoryModelLoadRequest) -> Mapping[str, Any]:
    check_may_change(call.service, call.key, call.caller)
    await repository.load_model(call.service, asked.model_name, values_of(asked.parameters))
    return {}


async def _unload(call: Call, asked: messages.RepositoryModelUnloadRequest) -> Mapping[str, Any]:
    check_may_change(call.service, call.key, call.caller)
    await repository.unload_model(call.service, asked.model_name, values_of(asked.parameters))
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
