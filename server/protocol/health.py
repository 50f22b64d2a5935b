"""Server metadata, health and metrics."""

from fastapi import APIRouter, Response
from fastapi.responses import JSONResponse
from prometheus_client import CONTENT_TYPE_LATEST

from server.context import Context
from server.operation.process import installed_version
from server.protocol.errors import public
from server.protocol.serving import ContextDependency

router = APIRouter(tags=["server"])

#: In Triton's words, as far as it has them.
EXTENSIONS = (
    "binary_tensor_data",
    "classification",
    "model_configuration",
    "model_repository",
    "model_repository(unload_dependents)",
    "parameters",
    "statistics",
    "classification_image",
    "detection_image",
    "metrics",
)


@router.get("/v2")
async def server_metadata() -> dict[str, object]:
    """Name, version, and the extensions of the protocol that are served."""
    return {"name": "layerstream", "version": installed_version(), "extensions": list(EXTENSIONS)}


@router.get("/v2/health/live")
async def live() -> dict[str, bool]:
    """The process answers."""
    return {"live": True}


@router.get("/v2/health/ready")
async def ready(context: ContextDependency) -> JSONResponse:
    """200 when models have been loaded and serve, and the repository is there; else 503 with the reason."""
    reason = await absence(context)
    if not reason:
        return JSONResponse({"ready": True})
    return JSONResponse(
        {"ready": False, "reason": public(reason, context.settings.repository)}, 503
    )


async def absence(context: Context) -> str:
    """Return why it is not ready; empty: models have been loaded and serve, and the repository is there."""
    if context.absence:
        return context.absence
    return "" if await context.repository.presence.is_there() else "the repository is not there"


@router.get("/metrics")
async def metrics(context: ContextDependency) -> Response:
    """Prometheus' text format."""
    return Response(await context.metrics.render(), media_type=CONTENT_TYPE_LATEST)
