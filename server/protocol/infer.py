"""Inference on JSON tensors: the Open Inference Protocol's infer endpoint."""

from fastapi import APIRouter, Response
from fastapi import Request as HttpRequest

from models.packs.pack import Pack
from server.codec import Request, RequestReader, read_plain, write_response
from server.memory.request_needs import CODEC_BYTES, infer_bytes, short_infer_bytes
from server.protocol.pieces import respond_in_pieces
from server.protocol.serving import context_of, exchange_of, run_model
from server.repository.worker import Answer

router = APIRouter(tags=["inference"])


@router.post("/v2/models/{name}/infer")
@router.post("/v2/models/{name}/versions/{version}/infer")
async def infer(request: HttpRequest, name: str, version: str | None = None) -> Response:
    """Run the model on the tensors of the body."""
    exchange = exchange_of(request)

    async def read(pack: Pack) -> Request:
        manifest = pack.manifest
        need, short = infer_bytes(manifest), short_infer_bytes(manifest)
        part = await exchange.part(need, short)
        if exchange.is_read:
            plain = read_plain(part, manifest.inputs, manifest.outputs)
            if plain is not None:
                return plain
        reader = RequestReader(manifest.inputs, manifest.outputs)
        reader.feed(part)
        while not exchange.is_read:
            reader.feed(await exchange.part(need, short))
            if reader.held_bytes + CODEC_BYTES > exchange.lease.held_bytes:
                await exchange.hold(reader.held_bytes + need)
        return reader.finish()

    async def respond(asked: Request, answer: Answer, pack: Pack) -> Response:
        return respond_in_pieces(
            lambda: write_response(name, pack.version, asked.id, answer.outputs, asked.outputs)
        )

    return await run_model(context_of(request), request, name, version, read, respond)
