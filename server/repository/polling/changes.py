"""What has changed in a repository between looks at it. Pure.

A model counts once two looks in a row have seen the same of it: what is being copied there changes from
look to look.
"""

from collections.abc import Mapping
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

    def look(self, now: Sight) -> Changes:
        """Return what is another than what was settled, and is as at the look before; it is settled now."""
        come = tuple(
            name
            for name, seen in sorted(now.items())
            if seen != self._settled.get(name) and seen == self._before.get(name)
        )
        known = self._settled.keys() - now.keys()
        gone = tuple(sorted(name for name in known if name not in self._before))
        self._before = dict(now)
        self._settled.update((name, now[name]) for name in come)
        for name in gone:
            del self._settled[name]
        return Changes(come, gone)
