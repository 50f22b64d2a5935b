"""Inference on JSON tensors: the Open Inference Protocol's infer endpoint."""

from typing import Any

from fastapi import APIRouter, Response
from fastapi import Request as HttpRequest
from numpy.typing import NDArray

from models.packs.pack import Pack
from pipeline.execution.given import Arrays
from pipeline.execution.statistics import SweepStatistics
from server.codec import Request, RequestReader, read_plain, write_response
from server.memory.request_needs import LOOSE_BYTES, infer_bytes, short_infer_bytes
from server.protocol.pieces import respond_in_pieces
from server.protocol.serving import Kept, Parts, context_of, exchange_of, kept_tensors, run_model

router = APIRouter(tags=["inference"])

Outputs = dict[str, NDArray[Any]]


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
            if reader.loose_bytes > LOOSE_BYTES:
                await exchange.hold(max(need + reader.loose_bytes, exchange.lease.held_bytes))
        return reader.finish()

    async def respond(
        asked: Request, outputs: Outputs, statistics: SweepStatistics, pack: Pack
    ) -> Response:
        return respond_in_pieces(
            lambda: write_response(name, pack.version, asked.id, outputs, asked.outputs)
        )

    return await run_model(
        context_of(request), request, name, version, Parts(read, _asked_for, respond)
    )


def _asked_for(asked: Request, outputs: Arrays, pack: Pack) -> Kept[Outputs]:
    """Keep the outputs that are asked for."""
    if not asked.outputs:
        return kept_tensors(outputs)
    return kept_tensors({output.name: outputs[output.name] for output in asked.outputs})
