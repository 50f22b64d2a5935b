"""How the settings have one model scheduled."""

from server.settings.per_model import of_model
from server.settings.settings import Settings


def deadline_of(settings: Settings, model: str) -> float | None:
    """Return within how many seconds ``model`` answers a request that does not say; None: no matter."""
    return of_model(settings.deadline, model, None)
