"""Settings with a value for each model: one for all, or MODEL=VALUE for some."""

from collections.abc import Callable, Mapping
from typing import TypeVar

from server.errors import shown

#: Stands for all models that are not named; no pack can be called so.
ALL = "*"
_LONGEST = 40

T = TypeVar("T")
D = TypeVar("D")


def parse_per_model(value: object, number: Callable[[str], float], example: str = "2") -> object:
    """Return the values by model that ``value`` is: 2, "2" or "resnet50=2,yolov4=2"; else ``value`` itself.

    ``number``: makes a value of its text; raises ValueError where that is not one. ``example``: a value for
    the error message.

    Raises:
        ValueError: a text is of none of these forms.
    """
    if isinstance(value, int | float) and not isinstance(value, bool):
        return {ALL: value}
    if not isinstance(value, str):
        return value
    values: dict[str, float] = {}
    for part in value.split(","):
        name, equals, text = part.strip().rpartition("=")
        key = name.strip() if equals else ALL
        number_of_part = _number(text.strip(), number)
        if not key or number_of_part is None:
            raise ValueError(
                f"{part[:_LONGEST]!r}: write {example}, or MODEL={example} for one model"
            )
        if values.setdefault(key, number_of_part) != number_of_part:
            raise ValueError(f"{part[:_LONGEST]!r} contradicts another one")
    return values


def _number(text: str, number: Callable[[str], float]) -> float | None:
    try:
        return number(text)
    except ValueError:
        return None


def whole(text: str) -> int:
    """Return the whole number that ``text`` is.

    Raises:
        ValueError: it is not one.
    """
    if not text.isdecimal():
        raise ValueError(text)
    return int(text)


def of_model(values: Mapping[str, T], model: str, default: D) -> T | D:
    """Return the value of ``model``."""
    return values.get(model, values.get(ALL, default))


#: No machine has use for more threads.
MOST_THREADS = 1024
#: The limit for one model: each worker takes a core.
MOST_WORKERS = 64


def parse_workers(value: object) -> object:
    """Return the numbers by model that ``value`` is; as ``parse_per_model``, for whole numbers."""
    return parse_per_model(value, whole)


def workers_of(workers: Mapping[str, int], model: str) -> int:
    """Return how many workers ``model`` has."""
    return of_model(workers, model, 1)


def has_several(workers: Mapping[str, int]) -> bool:
    """Return whether any model has more than one worker."""
    return any(number > 1 for number in workers.values())


#: The limit for one sweep: each lane takes an arena.
MOST_LANES = 64


def check_lanes(lanes: Mapping[str, int], workers: Mapping[str, int]) -> None:
    """Check that no model has several lanes and several workers.

    Raises:
        ValueError: a model has; the message names it.
    """
    for model in {**lanes, **workers}:
        if of_model(lanes, model, 1) > 1 and of_model(workers, model, 1) > 1:
            raise ValueError(f"{shown(model)} has workers, whose sweeps carry one request each")


def check_preferred(preferred: Mapping[str, int], lanes: Mapping[str, int]) -> None:
    """Check that sweeps can carry as many requests as are preferred.

    Raises:
        ValueError: those of a model cannot; the message names it.
    """
    for model in {**preferred, **lanes}:
        most = of_model(lanes, model, 1)
        wanted = of_model(preferred, model, most)
        if wanted > most:
            raise ValueError(f"{wanted} of {shown(model)}, whose sweeps carry {most} (lanes)")
