"""What the packs of a repository need at least, so that one that loads leaves the others their place."""

import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Generic, NamedTuple, TypeVar

from models.packs.pack import find_pack
from server.failures import FAILURES
from server.memory.holdings import Holding, sum_bytes
from server.memory.request_needs import Need

# What tells whether a file is still the one that was read: device, inode, size, time of change.
_Seen = tuple[int, int, int, int]


T = TypeVar("T")


class Minimum(NamedTuple):
    """What a model needs at least: ``memory`` of its smallest plan, bytes by kind, and its requests.

    ``alone``: it takes no turns with others.
    """

    memory: Mapping[str, int]
    need: Need
    alone: bool = False

    def has_room(self, request_bytes: int) -> bool:
        """Return whether a request could be answered where all together hold so many bytes."""
        return self.need.tight_bytes <= request_bytes


def least_together(minima: Iterable[Minimum], in_turns: bool) -> int:
    """Return the bytes that models take together at least, at once or ``in_turns``."""
    return sum_bytes(
        {
            str(number): Holding(each.memory, in_turns and not each.alone)
            for number, each in enumerate(minima)
        }
    )


class Minima(Generic[T]):
    """Asks ``least`` of a folder once, and again when the manifest there is another file.

    What a name needed before, as another version, is not kept: each upload brings one.
    """

    def __init__(self, least: Callable[[Path], T]) -> None:
        self._least = least
        self._known: dict[str, tuple[_Seen, T]] = {}

    def of(self, name: str, folder: Path) -> T | None:
        """Return what ``name``, the latest version in ``folder``, needs; None: it cannot be served."""
        try:
            seen = _seen((find_pack(folder) / "manifest.json").stat())
            known = self._known.get(name)
            if known is None or known[0] != seen:
                known = self._known[name] = seen, self._least(folder)
        except FAILURES:
            return None
        return known[1]


def _seen(found: os.stat_result) -> _Seen:
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns
