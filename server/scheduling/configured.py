"""How the settings have one model scheduled."""

from server.scheduling.sweeps import Batching
from server.settings.per_model import of_model
from server.settings.settings import Settings


def batching_of(settings: Settings, model: str) -> Batching:
    """Return how requests to ``model`` share sweeps, as far as its plan has lanes."""
    lanes = of_model(settings.lanes, model, 1)
    preferred = of_model(settings.preferred_lanes, model, lanes)
    return Batching(lanes, (preferred,), of_model(settings.lane_delay, model, 0.0))


def deadline_of(settings: Settings, model: str) -> float | None:
    """Return within how many seconds ``model`` answers a request that does not say; None: no matter."""
    return of_model(settings.deadline, model, None)
