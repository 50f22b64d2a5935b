"""How many workers a model has."""

from collections.abc import Mapping

from server.settings.per_model import of_model, parse_per_model, whole

#: More threads than any machine has use for.
MOST_THREADS = 1024
#: Of one model: each has a core.
MOST_WORKERS = 64


def parse_workers(value: object) -> object:
    """Return numbers by model of 2, "2" or "resnet50=2,yolov4=2"; anything else as it is.

    Raises:
        ValueError: a text is neither.
    """
    return parse_per_model(value, whole)


def workers_of(workers: Mapping[str, int], model: str) -> int:
    """Return how many workers ``model`` has."""
    return of_model(workers, model, 1)


def has_several(workers: Mapping[str, int]) -> bool:
    """Return whether any model has more than one."""
    return any(number > 1 for number in workers.values())
