"""Inference on JSON tensors: the Open Inference Protocol's infer endpoint."""

import asyncio
from collections.abc import Mapping
from typing import Any

from fastapi import APIRouter, Request
from numpy.typing import NDArray
from starlette.requests import ClientDisconnect

from models.pack import Pack
from server.errors import DisconnectedError
from server.protocol.serving import ContextDependency, run_model
from server.tensors import parse_request, to_arrays, to_json

router = APIRouter(tags=["inference"])


@router.post("/v2/models/{name}/infer")
@router.post("/v2/models/{name}/versions/{version}/infer")
async def infer(
    context: ContextDependency, request: Request, name: str, version: str | None = None
) -> dict[str, Any]:
    """Run the model on the tensors of the body."""
    context.repository.get(name, version)  # an unknown model is said before its body is read
    try:
        body = await request.body()
    except ClientDisconnect as exc:
        raise DisconnectedError("the client went away while sending") from exc
    wanted = None
    identity = None

    async def prepare(pack: Pack) -> Mapping[str, NDArray[Any]]:
        nonlocal wanted, identity
        # Parsing megabytes of numbers would hold up every other request of the event loop.
        parsed = await asyncio.to_thread(parse_request, body)
        wanted, identity = parsed.outputs, parsed.id
        return await asyncio.to_thread(to_arrays, parsed.inputs, pack.manifest.inputs)

    answer, pack = await run_model(context, request, name, version, prepare)
    outputs = await asyncio.to_thread(to_json, answer.outputs, wanted)
    response = {"model_name": name, "model_version": pack.version, "outputs": outputs}
    return response if identity is None else {**response, "id": identity}
