"""What has changed in a repository between looks at it. Pure.

A model counts once two looks in a row have seen the same of it: what is being copied there changes from
look to look.
"""

from collections.abc import Collection, Mapping, Set
from dataclasses import dataclass

from server.repository.layout.seen import Seen

#: What is seen of each model that is there, by name.
Sight = Mapping[str, Seen]


@dataclass(frozen=True)
class Changes:
    """Models that are new or others than before, and models that are gone; by name."""

    come: tuple[str, ...] = ()
    gone: tuple[str, ...] = ()


class Changing:
    """Compares looks. ``settled``: what was seen of the models as they are served."""

    def __init__(self, settled: Sight) -> None:
        self._settled = dict(settled)
        self._before = dict(settled)
        self._missing: Set[str] = set()

    def look(self, now: Sight, known: Collection[str] = ()) -> Changes:
        """Return what is another than what was settled, and is as at the look before; it is settled now.

        ``known``: what else was there before this look.
        """
        come = tuple(
            name
            for name, seen in sorted(now.items())
            if seen != self._settled.get(name) and seen == self._before.get(name)
        )
        missing = (self._settled.keys() | known) - now.keys()
        gone = tuple(sorted(missing & self._missing))
        self._before, self._missing = dict(now), missing.difference(gone)
        self._settled.update((name, now[name]) for name in come)
        for name in gone:
            self._settled.pop(name, None)
        return Changes(come, gone)
