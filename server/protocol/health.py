"""Server metadata, health and metrics."""

from prometheus_client import CONTENT_TYPE_LATEST

from server.context import Context
from server.failures import reason_of
from server.operation.process import installed_version
from server.protocol.answers import Answer, answered, as_json
from server.protocol.attending import Asking

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


async def server_metadata(asked: Asking) -> dict[str, object]:
    """Name, version, and the extensions of the protocol that are served."""
    return {"name": "layerstream", "version": installed_version(), "extensions": list(EXTENSIONS)}


async def live(asked: Asking) -> dict[str, bool]:
    """The process answers."""
    return {"live": True}


async def ready(asked: Asking) -> Answer:
    """200 when models have been loaded and serve, and the repository is there; else 503 with the reason."""
    reason = await absence(asked.context)
    if not reason:
        return as_json({"ready": True})
    return as_json(
        {"ready": False, "reason": reason_of(reason, asked.context.settings.repository)}, 503
    )


async def absence(context: Context) -> str:
    """Return why it is not ready; empty: models have been loaded and serve, and the repository is there."""
    if context.absence:
        return context.absence
    return "" if await context.repository.presence.is_there() else "the repository is not there"


async def metrics(asked: Asking) -> Answer:
    """Prometheus' text format."""
    return answered(await asked.context.metrics.render(), CONTENT_TYPE_LATEST)
