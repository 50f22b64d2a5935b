"""How requests to a model share sweeps: as the settings say, or else its config.pbtxt."""

from server.repository.layout.slots import Slot
from server.scheduling.sweeps import ALONE, Batching
from server.settings.lanes import MOST_LANES
from server.settings.per_model import of_model
from server.settings.settings import Settings
from server.settings.workers import workers_of


def batching_of(settings: Settings, slot: Slot) -> Batching:
    """Return how requests to what is in ``slot`` share sweeps, as far as its plan has lanes."""
    own = _configured(slot) if workers_of(settings.workers, slot.model) == 1 else ALONE
    lanes = of_model(settings.lanes, slot.model, None)
    if lanes is None:
        return own
    preferred = of_model(settings.preferred_lanes, slot.model, lanes)
    return Batching(lanes, (preferred,), of_model(settings.lane_delay, slot.model, 0.0))


def _configured(slot: Slot) -> Batching:
    """Return what the configuration says: a sweep carries up to ``max_batch_size`` requests."""
    batching, most = slot.config.batching, slot.config.max_batch_size
    if batching is None or not most:
        return ALONE
    lanes = min(most, MOST_LANES)
    preferred = tuple(size for size in batching.preferred_sizes if size <= lanes)
    return Batching(lanes, preferred or (lanes,), batching.most_queue_seconds)
