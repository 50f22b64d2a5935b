"""Metadata and readiness of one model."""

from typing import Any

from models.packs.records.ports import Port
from server.codec.datatypes import datatype
from server.protocol.attending import Asking
from server.protocol.extensions.config import PLATFORM


def _tensor(port: Port) -> dict[str, Any]:
    return {"name": port.name, "datatype": datatype(port.dtype), "shape": list(port.shape)}


def _milliseconds(seconds: float | None) -> float | None:
    return None if seconds is None else seconds * 1e3


async def model_metadata(asked: Asking, name: str, version: str | None = None) -> dict[str, Any]:
    """Inputs and outputs, and how the model is held in memory."""
    entry, pack = await asked.context.repository.described(name, version)
    fitted = entry.fitted
    plan = fitted.plan if fitted else None
    return {
        "name": name,
        "versions": asked.context.repository.models.versions(name),
        "platform": PLATFORM,
        "inputs": [_tensor(port) for port in pack.manifest.inputs],
        "outputs": [_tensor(port) for port in pack.manifest.outputs],
        "parameters": {
            "weight_bytes": pack.manifest.weight_bytes,
            "architecture": plan.architecture.name if plan else None,
            "memory_bytes": plan.memory if plan else None,
            "predicted_ms": _milliseconds(fitted.predicted_seconds) if fitted else None,
            "bound_ms": _milliseconds(fitted.bound_seconds) if fitted else None,
        },
    }


async def model_ready(asked: Asking, name: str, version: str | None = None) -> dict[str, Any]:
    """200 when requests are answered; 409 when it was refused for want of memory, 503 otherwise."""
    await asked.context.repository.check_answers(name, version)
    return {"name": name, "ready": True}
