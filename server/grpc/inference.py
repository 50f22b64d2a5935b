"""ModelInfer and ModelStreamInfer: a message in, its tensors through the model, a message out."""

from models.packs.manifest import Manifest
from pipeline.execution.given import Arrays
from server.codec.messages import ModelAnswer, Output
from server.context import Context
from server.errors import DisconnectedError
from server.failures import FAILURES
from server.grpc.call import Call
from server.grpc.decoding import GrpcMessage, Parts
from server.grpc.encoding import encoded
from server.grpc.messages.inference_pb2 import ModelStreamInferResponse
from server.memory.request_needs import SHORT_CODEC_BYTES, short_infer_bytes, tensor_bytes
from server.protocol.errors import told
from server.protocol.infer import kept_outputs
from server.protocol.serving import Inference, Kept
from server.requests.exchange import Exchange

# gRPC's own buffer and the message that is made of it, the message and its tensors: two at a time.
_COPIES = 2


async def infer(call: Call) -> None:
    """Answer one message."""
    with call.exchange() as exchange:
        await exchange.send(await _answer(call, exchange, in_stream=False))


async def stream(call: Call) -> None:
    """Answer one message after the other, also those that are wrong, until the client has no more."""
    while True:
        with call.exchange() as exchange:
            try:
                message = await _answer(call, exchange, in_stream=True)
            except DisconnectedError:
                return
            except FAILURES as exc:
                if not exchange.is_read:  # none came in time: there is nothing to answer
                    raise
                said = told(exc, call.context.settings.repository)
                message = ModelStreamInferResponse(error_message=said).SerializeToString()
            await exchange.send(message)


async def _answer(call: Call, exchange: Exchange, in_stream: bool) -> bytes:
    """Return the answer to the next message.

    Raises:
        DisconnectedError: there is none.
    """
    asked = await _asked(call.context, exchange, in_stream)
    name, version = asked.head.model_name, asked.head.model_version or None
    async with Inference(call.context, exchange, name, version) as model:
        manifest = model.manifest
        async with model.reading(names_timeout=True):
            request = asked.request(manifest.inputs, manifest.outputs, call.left_seconds)
            del asked  # the message goes, its tensors stay
            await exchange.hold(model.use.infer_bytes)

        def keep(outputs: Arrays) -> Kept[list[Output]]:
            kept = kept_outputs(request.wanted, manifest, "identity", outputs)
            return kept._replace(n_bytes=_COPIES * kept.n_bytes, is_raw=True)

        outputs = await model.compute(request, keep)
        return encoded(ModelAnswer(name, model.pack.version, request.id, outputs), in_stream)


async def _asked(context: Context, exchange: Exchange, in_stream: bool) -> GrpcMessage:
    """Return the next message.

    How long it is, nobody knows before it is there. So what the largest request takes is held first, but in
    a stream only when the message has come: it may be long until then, and others would go without.
    """
    least = min(_largest_bytes(context), exchange.lease.memory.room_bytes)
    async with exchange.within(context.settings.request_timeout):
        if not in_stream:
            exchange.check_room()
            await exchange.hold(least)
        parts = Parts.of(await exchange.part())
        need = _COPIES * parts.work_bytes + SHORT_CODEC_BYTES
        await exchange.hold(max(need, least))
        return parts.asked()


def _largest_bytes(context: Context) -> int:
    """Return what a request with raw tensors takes, to the model whose tensors are largest."""
    packs = [entry.pack for entry in context.repository.entries()]
    return max((_message_bytes(pack.manifest) for pack in packs if pack is not None), default=0)


def _message_bytes(manifest: Manifest) -> int:
    """Return what a message takes, then its tensors: at once, so that no holder waits for more."""
    message = _COPIES * tensor_bytes(manifest.inputs) + SHORT_CODEC_BYTES
    return max(message, short_infer_bytes(manifest))
