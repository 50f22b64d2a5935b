"""Variants that take turns, so that what else the machine does meets all of them alike."""

import json
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NoReturn, TypeVar

Given = TypeVar("Given")


def rotated(items: Sequence[Given], turn: int) -> list[Given]:
    """Return ``items``, another one first each ``turn``: what runs after a cold neighbour pays for it."""
    first = turn % len(items)
    return [*items[first:], *items[:first]]


def in_turns(
    players: Mapping[str, Callable[[], Given]], rounds: int, warm_up: int = 0
) -> dict[str, list[Given]]:
    """Let each of ``players`` play once a round; return by name what each round gave.

    What ``warm_up`` rounds before these give is left out.
    """
    found: dict[str, list[Given]] = {name: [] for name in players}
    for turn in range(-warm_up, rounds):
        for name in rotated(list(players), turn):
            given = players[name]()
            if turn >= 0:
                found[name].append(given)
    return found


def end(document: Any, holds: bool = True, lines: Iterable[str] | None = None) -> NoReturn:
    """Print ``document`` as JSON, or ``lines`` instead; end the program, with 1 unless it ``holds``."""
    print(json.dumps(document, indent=2) if lines is None else "\n".join(lines))
    sys.exit(0 if holds else 1)
