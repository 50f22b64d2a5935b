"""Buffer reuse within CNNs, across them, and across partitions (seed 000, Algorithm 1).

Greedy: edge by edge, the buffer that grows least, the first of equal ones; a new one where all are in use.
"""

from collections.abc import Sequence

from papers.applications.application import Application, ApplicationError, CnnBuffer, Held
from papers.applications.lives import EdgeLife, Lives


class _Shared:
    """A buffer as it grows: ``blocks`` are the steps in which its edges or what runs beside them use it."""

    __slots__ = ("blocks", "edges", "size")

    def __init__(self, size: int, held: Held, life: EdgeLife) -> None:
        self.size, self.edges, self.blocks = size, [held], life.blocks

    def add(self, size: int, held: Held, life: EdgeLife) -> None:
        self.size = max(self.size, size)
        self.edges.append(held)
        self.blocks |= life.blocks


def reuse(
    application: Application,
    sizes: Sequence[int] | None = None,
    lives: Sequence[EdgeLife] | None = None,
) -> tuple[CnnBuffer, ...]:
    """Return the buffers B that Algorithm 1 makes.

    ``sizes``: elements of each of ``application.held``; None: of whole tensors. ``lives``: of each, where
    they are known.
    """
    held = application.held
    sizes = [application.elements(item) for item in held] if sizes is None else sizes
    lives = Lives(application).all() if lives is None else lives
    buffers: list[_Shared] = []
    # Edges of one layer begin in the same step: who is in use then is not asked for each of them anew.
    first, free = 0, list[_Shared]()
    for item, size, life in zip(held, sizes, lives, strict=True):
        used = life.used
        if first != used & -used:
            first = used & -used
            free = [each for each in buffers if not each.blocks & first]
        best = _cheapest(free, used, size)
        if best is None:
            buffers.append(_Shared(size, item, life))
            continue
        best.add(size, item, life)
        free.remove(best)
    return tuple(CnnBuffer(each.size, tuple(each.edges)) for each in buffers)


def _cheapest(free: Sequence[_Shared], used: int, size: int) -> _Shared | None:
    """Return the first of those that grow least (lines 26 to 33) and are free in all steps ``used``."""
    best, least = None, 0
    for each in free:
        cost = max(size - each.size, 0)
        if (best is None or cost < least) and not each.blocks & used:
            best, least = each, cost
            if not cost:
                break
    return best


def check(
    application: Application,
    buffers: Sequence[CnnBuffer],
    sizes: Sequence[int] | None = None,
) -> None:
    """Judge buffers by definition: each edge in one, none at once with another, sizes as Eq. 4.

    Raises:
        ApplicationError: they are not that.
    """
    held = application.held
    sizes = [application.elements(item) for item in held] if sizes is None else sizes
    size_of = dict(zip(held, sizes, strict=True))
    lives = dict(zip(held, Lives(application).all(), strict=True))
    if sorted(map(application.label, held)) != sorted(
        application.label(item) for buffer in buffers for item in buffer.edges
    ):
        raise ApplicationError(f"{application.name}: not every edge has one buffer")
    for number, buffer in enumerate(buffers, 1):
        if buffer.size != max(size_of[item] for item in buffer.edges):
            raise ApplicationError(
                f"{application.name}: B{number} is not as large as its largest edge"
            )
        for place, one in enumerate(buffer.edges):
            for other in buffer.edges[:place]:
                if lives[one].meets(lives[other]):
                    names = f"{application.label(other)} and {application.label(one)}"
                    raise ApplicationError(f"{application.name}: {names} use B{number} at once")
