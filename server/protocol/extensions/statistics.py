"""The statistics extension: how many requests each model answered, and where their time went."""

from typing import Any

from models.packs.pack import Pack
from server.context import Context
from server.protocol.attending import Asking
from server.repository.entry import Entry


async def all_statistics(asked: Asking) -> dict[str, Any]:
    """Statistics of all models that serve."""
    serving = [entry for entry in asked.context.repository.entries() if entry.serves]
    named = sorted(serving, key=lambda entry: entry.name)
    packs = [(entry, entry.pack) for entry in named]
    return {
        "model_stats": [
            _of(asked.context, entry, pack) for entry, pack in packs if pack is not None
        ]
    }


async def model_statistics(asked: Asking, name: str, version: str | None = None) -> dict[str, Any]:
    """Statistics of one model, since the server started, also while it was unloaded."""
    entry, pack = await asked.context.repository.described(name, version)
    return {"model_stats": [_of(asked.context, entry, pack)]}


def _of(context: Context, entry: Entry, pack: Pack) -> dict[str, Any]:
    held = entry.fitted.plan.total_bytes if entry.fitted is not None else 0
    return {
        "name": entry.model,
        "version": pack.version,
        **context.metrics.inferences.of(entry.model, pack.version).as_dict(),
        "memory_usage": [{"type": "CPU", "id": 0, "byte_size": held}],
    }
