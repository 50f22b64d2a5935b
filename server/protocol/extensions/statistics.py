"""The statistics extension: how many requests each model answered, and where their time went."""

from typing import Any

from fastapi import APIRouter

from models.packs.pack import Pack
from server.context import Context
from server.protocol.serving import ContextDependency
from server.repository.entry import Entry

router = APIRouter(tags=["models"])


@router.get("/v2/models/stats")
async def all_statistics(context: ContextDependency) -> dict[str, Any]:
    """Of all models that serve."""
    serving = [entry for entry in context.repository.entries() if entry.serves]
    named = sorted(serving, key=lambda entry: entry.name)
    packs = [(entry, entry.pack) for entry in named]
    return {"model_stats": [_of(context, entry, pack) for entry, pack in packs if pack is not None]}


@router.get("/v2/models/{name}/stats")
@router.get("/v2/models/{name}/versions/{version}/stats")
async def model_statistics(
    context: ContextDependency, name: str, version: str | None = None
) -> dict[str, Any]:
    """Of one model, since the server started, also while it was unloaded."""
    return {"model_stats": [_of(context, *context.repository.get(name, version))]}


def _of(context: Context, entry: Entry, pack: Pack) -> dict[str, Any]:
    held = entry.fitted.plan.total_bytes if entry.fitted is not None else 0
    return {
        "name": entry.model,
        "version": pack.version,
        **context.metrics.inferences.of(entry.model, pack.version).as_dict(),
        "memory_usage": [{"type": "CPU", "id": 0, "byte_size": held}],
    }
