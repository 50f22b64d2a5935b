"""How many workers a model has: one number for all models, or MODEL=NUMBER for some."""

from collections.abc import Mapping

#: Stands for all models that are not named; no pack can be called so.
ALL = "*"
_LONGEST = 40


def parse_workers(value: object) -> object:
    """Return numbers by model of 2, "2" or "resnet50=2,yolov4=2"; anything else as it is.

    Raises:
        ValueError: a text is neither.
    """
    if isinstance(value, int) and not isinstance(value, bool):
        return {ALL: value}
    if not isinstance(value, str):
        return value
    found: dict[str, int] = {}
    for part in value.split(","):
        name, equals, number = part.strip().rpartition("=")
        key = name.strip() if equals else ALL
        if not key or not number.strip().isdecimal():
            raise ValueError(f"{part[:_LONGEST]!r}: write 2, or MODEL=2 for one model")
        if found.setdefault(key, int(number)) != int(number):
            raise ValueError(f"{part[:_LONGEST]!r} contradicts another one")
    return found


def workers_of(workers: Mapping[str, int], model: str) -> int:
    """Return how many workers ``model`` has."""
    return workers.get(model, workers.get(ALL, 1))


def has_several(workers: Mapping[str, int]) -> bool:
    """Return whether any model has more than one."""
    return any(number > 1 for number in workers.values())
