"""Which models go when one comes that does not fit: the least recently used, and no more than it takes.

Pure. Whether it fits is what ``share_out`` will say, so that none goes for nothing.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from server.memory.budget import Budget
from server.memory.sharing import Activations, Sharer, admission


@dataclass(frozen=True)
class Resident:
    """A loaded model. ``used_at``: when a request used it last, in seconds of one clock.

    ``is_used``: requests use it now; it goes only where idle ones do not suffice, and when these have been
    answered. ``may_go``: nobody has said that it stays.
    """

    sharer: Sharer
    used_at: float
    is_used: bool = False
    may_go: bool = True


def victims(
    newcomer: Sharer,
    loaded: Sequence[Resident],
    absent: Sequence[Sharer],
    budget: Budget,
    activations: Activations,
) -> list[str] | None:
    """Return the names of the models that go, in that order, so that ``newcomer`` fits beside the others.

    ``absent``: models that are served and not loaded; ``budget``: what is there when no model is loaded.
    None: it would not fit if all went that may. With room for it nobody goes.
    """

    def fits(gone: Sequence[Resident]) -> bool:
        staying = [each.sharer for each in loaded if each not in gone]
        waiting = [*absent, *(each.sharer for each in gone)]
        together = [*staying, newcomer, *waiting]
        _, admitted = admission(together, budget, activations, len(staying))
        return set(range(len(staying) + 1)).issubset(admitted)

    candidates = [each for each in loaded if each.may_go]
    candidates.sort(key=lambda each: (each.is_used, each.used_at))
    gone = next((n for n in range(len(candidates) + 1) if fits(candidates[:n])), None)
    return None if gone is None else [each.sharer.name for each in _needed(candidates[:gone], fits)]


def _needed(gone: Sequence[Resident], fits: Callable[[Sequence[Resident]], bool]) -> list[Resident]:
    """Return those of ``gone`` without which it does not fit; who was used last is spared first."""
    needed = list(gone)
    for each in reversed(gone):
        fewer = [other for other in needed if other is not each]
        if fits(fewer):
            needed = fewer
    return needed
