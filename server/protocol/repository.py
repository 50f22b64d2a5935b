"""The model repository extension: what there is, load and unload while serving."""

import asyncio
from typing import Any

from fastapi import APIRouter, Depends, Request

from server.errors import ForbiddenError
from server.protocol.administration import administrator
from server.protocol.errors import public
from server.protocol.serving import ContextDependency

router = APIRouter(prefix="/v2/repository", tags=["repository"])


async def _changeable(context: ContextDependency) -> None:
    """Let nobody change what is served where the settings say that it stays.

    Raises:
        ForbiddenError: they do.
    """
    if context.settings.model_control == "none":
        raise ForbiddenError("loading and unloading: not with the setting model_control = none")


ADMINISTRATION = [Depends(administrator), Depends(_changeable)]


@router.post("/index")
async def index(context: ContextDependency, request: Request) -> list[dict[str, Any]]:
    """All models on disk or loaded, their state, and why one does not serve."""
    known = [(entry.model, entry) for entry in context.repository.entries()]
    on_disk = await asyncio.to_thread(context.repository.names)
    unknown = [(name, None) for name in {*on_disk}.difference(name for name, _ in known)]
    return [
        {
            "name": name,
            "version": entry.version if entry else None,
            "state": entry.state if entry else "UNAVAILABLE",
            "reason": public(entry.reason, request) if entry else "not loaded",
        }
        for name, entry in sorted([*known, *unknown], key=lambda found: found[0])
    ]


@router.post("/models/{name}/load", dependencies=ADMINISTRATION)
async def load(context: ContextDependency, name: str) -> dict[str, Any]:
    """Load the latest version; 409 with the figures when it does not fit in the budget."""
    entry = await context.repository.load(name)
    context.metrics.expect(name)
    return {"name": name, "state": entry.state}


@router.post("/models/{name}/unload", dependencies=ADMINISTRATION)
async def unload(context: ContextDependency, name: str) -> dict[str, Any]:
    """Finish the model's requests and give its memory back."""
    await context.repository.unload(name)
    return {"name": name, "state": "UNAVAILABLE"}
