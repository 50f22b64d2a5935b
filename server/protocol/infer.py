"""Inference on JSON tensors: the Open Inference Protocol's infer endpoint."""

import asyncio
from collections.abc import Mapping
from typing import Any

from fastapi import APIRouter, Request
from numpy.typing import NDArray
from starlette.requests import ClientDisconnect

from models.pack import Pack
from server.errors import DisconnectedError, TooLargeError
from server.protocol.serving import ContextDependency, run_model
from server.tensors import (
    RequestedOutput,
    body_limit,
    check_outputs,
    check_values,
    parse_request,
    to_arrays,
    to_json,
)
from server.worker import Answer

router = APIRouter(tags=["inference"])


@router.post("/v2/models/{name}/infer")
@router.post("/v2/models/{name}/versions/{version}/infer")
async def infer(
    context: ContextDependency, request: Request, name: str, version: str | None = None
) -> dict[str, Any]:
    """Run the model on the tensors of the body."""
    wanted: list[RequestedOutput] | None = None
    identity: str | None = None

    async def prepare(pack: Pack) -> Mapping[str, NDArray[Any]]:
        nonlocal wanted, identity
        body = await _body(request, body_limit(pack.manifest.inputs))
        check_values(body, pack.manifest.inputs)
        # Parsing megabytes of numbers would hold up every other request of the event loop. As Python
        # objects they take forty bytes each: one request at a time may have them.
        async with context.parsing:
            parsed = await asyncio.to_thread(parse_request, body)
            wanted, identity = parsed.outputs, parsed.id
            check_outputs(wanted, pack.manifest.outputs)
            return await asyncio.to_thread(to_arrays, parsed.inputs, pack.manifest.inputs)

    async def respond(answer: Answer, pack: Pack) -> dict[str, Any]:
        outputs = await asyncio.to_thread(to_json, answer.outputs, wanted)
        response = {"model_name": name, "model_version": pack.version, "outputs": outputs}
        return response if identity is None else {**response, "id": identity}

    return await run_model(context, request, name, version, prepare, respond)


async def _body(request: Request, limit: int) -> bytes:
    """Return the body; not by request.body(), which would keep it until the answer is sent.

    Raises:
        TooLargeError: it is over ``limit`` bytes. DisconnectedError: the client went away.
    """
    body = bytearray()
    try:
        async for chunk in request.stream():
            body += chunk
            if len(body) > limit:
                raise TooLargeError(f"the body is over this model's limit of {limit} bytes")
        return bytes(body)
    except ClientDisconnect as exc:
        raise DisconnectedError("the client went away while sending") from exc
