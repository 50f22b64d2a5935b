"""Settings with a value for each model: one for all, or MODEL=VALUE for some."""

from collections.abc import Callable, Mapping
from typing import TypeVar

#: Stands for all models that are not named; no pack can be called so.
ALL = "*"
_LONGEST = 40

T = TypeVar("T")
D = TypeVar("D")


def parse_per_model(value: object, number: Callable[[str], float], example: str = "2") -> object:
    """Return values by model of 2, "2" or "resnet50=2,yolov4=2"; anything else as it is.

    ``number``: makes a value of its text, ValueError where it is none. ``example``: of one.

    Raises:
        ValueError: a text is neither.
    """
    if isinstance(value, int | float) and not isinstance(value, bool):
        return {ALL: value}
    if not isinstance(value, str):
        return value
    found: dict[str, float] = {}
    for part in value.split(","):
        name, equals, text = part.strip().rpartition("=")
        key = name.strip() if equals else ALL
        told = _number(text.strip(), number)
        if not key or told is None:
            raise ValueError(
                f"{part[:_LONGEST]!r}: write {example}, or MODEL={example} for one model"
            )
        if found.setdefault(key, told) != told:
            raise ValueError(f"{part[:_LONGEST]!r} contradicts another one")
    return found


def _number(text: str, number: Callable[[str], float]) -> float | None:
    try:
        return number(text)
    except ValueError:
        return None


def whole(text: str) -> int:
    """Return the whole number that ``text`` is.

    Raises:
        ValueError: it is none.
    """
    if not text.isdecimal():
        raise ValueError(text)
    return int(text)


def of_model(values: Mapping[str, T], model: str, default: D) -> T | D:
    """Return the value of ``model``."""
    return values.get(model, values.get(ALL, default))
