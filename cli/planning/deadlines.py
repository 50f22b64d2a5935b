"""Delays that ``plan`` is asked for: one for all packs, or one a model."""

import math
import re
from collections.abc import Sequence

import typer

from pipeline.planning.words import milliseconds

_DELAY = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*(ms|s)")


def seconds_of(text: str | None, option: str = "--delay") -> float | None:
    """Return the seconds of 800ms or 1.5s; None stays None.

    Raises:
        typer.BadParameter: it is not a time above 0.
    """
    if text is None:
        return None
    match = _DELAY.fullmatch(text.strip())
    seconds = float(match[1]) * (1e-3 if match[2] == "ms" else 1.0) if match else 0.0
    if not seconds or math.isinf(seconds):
        raise typer.BadParameter(
            f"{text[:40]!r} is not a time; write 800ms or 1.5s", param_hint=option
        )
    return seconds


def deadlines_of(texts: Sequence[str], models: Sequence[str]) -> dict[str, float]:
    """Return the seconds of each of MODEL=50ms.

    Raises:
        typer.BadParameter: one is not of that form, names no model of ``models``, or contradicts another.
    """
    found: dict[str, float] = {}
    for text in texts:
        name, equals, time = text.partition("=")
        seconds = seconds_of(time, "--deadline") if equals else None
        if seconds is None:
            raise typer.BadParameter(f"{text[:40]!r}: write MODEL=50ms", param_hint="--deadline")
        if name not in models:
            raise typer.BadParameter(
                f"{name[:40]!r} is none of the packs: {', '.join(sorted(set(models)))}",
                param_hint="--deadline",
            )
        if found.setdefault(name, seconds) != seconds:
            raise typer.BadParameter(
                f"{name!r} has two: {milliseconds(found[name])} and {milliseconds(seconds)}",
                param_hint="--deadline",
            )
    return found
