"""Settings with a value for each model: one for all, or MODEL=VALUE for some."""

from collections.abc import Callable, Mapping
from typing import TypeVar, overload

from models.sizes import parse_size

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


@overload
def parse_pins(value: str) -> dict[str, int]: ...
@overload
def parse_pins(value: object) -> object: ...
def parse_pins(value: object) -> object:
    """Return the bytes by model that ``value`` is: "yolov4=64MiB,resnet50"; 0: all that one may take.

    Anything but text, or a mapping of text, is returned as it is.

    Raises:
        ValueError: a size is none, or a model is there twice.
    """
    if isinstance(value, str):
        segments = [item.strip().partition("=") for item in value.split(",") if item.strip()]
        value = {name.strip(): size.strip() for name, _, size in segments}
        if len(value) < len(segments):
            raise ValueError("a model is named twice")
    if not isinstance(value, dict):
        return value
    return {
        name: (parse_size(size) if size else 0) if isinstance(size, str) else size
        for name, size in value.items()
    }


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


def has_several(workers: Mapping[str, int]) -> bool:
    """Return whether any model has more than one worker."""
    return any(number > 1 for number in workers.values())


#: The limit for one sweep: each lane takes an arena.
MOST_LANES = 64
