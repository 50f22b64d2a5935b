"""Metadata and readiness of one model."""

from typing import Any

from fastapi import APIRouter
from starlette.convertors import Convertor, register_url_convertor

from models.packs.records.ports import Port
from server.codec.datatypes import datatype
from server.protocol.extensions.config import PLATFORM
from server.protocol.serving import ContextDependency

router = APIRouter(tags=["models"])


class _NoAction(Convertor[str]):
    """A name or a version, and none with an action behind it: that is a path of its own."""

    regex = "(?:(?!:(?:classify|detect)$)[^/])+"

    def convert(self, value: str) -> str:
        return value

    def to_string(self, value: str) -> str:
        return value


register_url_convertor("no_action", _NoAction())


def _tensor(port: Port) -> dict[str, Any]:
    return {"name": port.name, "datatype": datatype(port.dtype), "shape": list(port.shape)}


def _milliseconds(seconds: float | None) -> float | None:
    return None if seconds is None else seconds * 1e3


@router.get("/v2/models/{name:no_action}")
@router.get("/v2/models/{name}/versions/{version:no_action}")
async def model_metadata(
    context: ContextDependency, name: str, version: str | None = None
) -> dict[str, Any]:
    """Inputs and outputs, and how the model is held in memory."""
    entry, pack = await context.repository.described(name, version)
    fitted = entry.fitted
    plan = fitted.plan if fitted else None
    return {
        "name": name,
        "versions": context.repository.versions(name),
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


@router.get("/v2/models/{name}/ready")
@router.get("/v2/models/{name}/versions/{version}/ready")
async def model_ready(
    context: ContextDependency, name: str, version: str | None = None
) -> dict[str, Any]:
    """200 when requests are answered; 409 when it was refused for want of memory, 503 otherwise."""
    await context.repository.check_answers(name, version)
    return {"name": name, "ready": True}
