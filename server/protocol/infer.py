"""Inference on JSON tensors: the Open Inference Protocol's infer endpoint."""

from collections.abc import Mapping
from typing import Any

from fastapi import APIRouter
from fastapi import Request as HttpRequest
from fastapi.responses import Response, StreamingResponse
from numpy.typing import NDArray
from starlette.requests import ClientDisconnect

from models.pack import Pack
from server.codec import Request, RequestReader, write_response
from server.errors import DisconnectedError
from server.protocol.serving import ContextDependency, run_model
from server.worker import Answer

router = APIRouter(tags=["inference"])


@router.post("/v2/models/{name}/infer")
@router.post("/v2/models/{name}/versions/{version}/infer")
async def infer(
    context: ContextDependency, request: HttpRequest, name: str, version: str | None = None
) -> Response:
    """Run the model on the tensors of the body."""
    asked: Request | None = None

    async def prepare(pack: Pack) -> Mapping[str, NDArray[Any]]:
        nonlocal asked
        asked = await _read(request, RequestReader(pack.manifest.inputs, pack.manifest.outputs))
        return asked.inputs

    async def respond(answer: Answer, pack: Pack) -> Response:
        assert asked is not None
        pieces = write_response(name, pack.version, asked.id, answer.outputs, asked.outputs)
        return StreamingResponse(pieces, media_type="application/json")

    return await run_model(context, request, name, version, prepare, respond)


async def _read(request: HttpRequest, reader: RequestReader) -> Request:
    """Return the infer request in the body; raises as ``reader``.

    Raises:
        DisconnectedError: the client went away.
    """
    try:
        async for chunk in request.stream():
            reader.feed(chunk)
    except ClientDisconnect as exc:
        raise DisconnectedError("the client went away while sending") from exc
    return reader.finish()
