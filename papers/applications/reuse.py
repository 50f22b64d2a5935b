"""Buffer reuse within CNNs, across them, and across partitions (seed 000, Algorithm 1).

Greedy: edge by edge, the buffer that grows least, the first of equal ones; a new one where all are in use.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from papers.applications.application import Application, ApplicationError, CnnBuffer, Held

# When edges use memory: which of them must not share a buffer (seed 000, Algorithm 1, lines 8 to 18).
#
# Every step of every partition is a bit. Where the paper looks up one interval of steps in one partition,
# an edge between partitions uses memory in all of them: where they work on consecutive frames its buffers
# are always in use, where they run one after the other from its source to its target.


class EdgeLife(NamedTuple):
    """Steps as bits: when an edge is ``used``, and what it ``blocks``, with all that runs at once."""

    used: int
    blocks: int

    def meets(self, other: "EdgeLife") -> bool:
        """Return whether two edges may be in use at the same time."""
        return bool(self.used & other.blocks)


class Lives:
    """The lives of what buffers hold in ``application``."""

    def __init__(self, application: Application) -> None:
        self._partitions = application.partitions
        self._cnns = [partition.cnn for partition in application.partitions]
        numbers = range(len(self._cnns))
        self._beside = [[x for x in numbers if application.parallel(p, x)] for p in numbers]
        self._ends = [_ends(application, held) for held in application.held]

    def all(self, steps: Sequence[Sequence[int]] | None = None) -> list[EdgeLife]:
        """Return the lives of all that is held, in its order.

        ``steps``: for each partition the step of each of its layers, in their order; None: of its schedule.
        """
        if steps is None:
            steps = [
                [at for at, layers in enumerate(item.schedule) for _ in layers]
                for item in self._partitions
            ]
        counts = [max(own) + 1 for own in steps]
        starts = [sum(counts[:number]) for number in range(len(counts))]
        masks = [_bits(start, count) for start, count in zip(starts, counts, strict=True)]
        beside = [_union(masks[x] for x in others) for others in self._beside]
        lives = []
        for start, source, end, target, copy in self._ends:
            first, last = steps[start][source], steps[end][target]
            if start == end:
                used = ((2 << (last - first)) - 1) << (starts[start] + first)
                lives.append(EdgeLife(used, used | beside[start]))
                continue
            passed = [p for p in range(start, end + 1) if self._cnns[p] == self._cnns[start]]
            used = _union(masks[p] for p in passed)
            if not copy:
                used &= ~_bits(starts[start], first)
                used &= ~_bits(starts[end] + last + 1, counts[end] - last - 1)
            lives.append(EdgeLife(used, used | _union(beside[p] for p in passed)))
        return lives


def _ends(application: Application, held: Held) -> tuple[int, int, int, int, int]:
    """Return partition and place of a held edge's source, those of its target, and its copy."""
    edge = application.edge(held)
    start, end = (
        application.first_step(held.cnn, layer)[0] for layer in (edge.source, edge.target)
    )
    source = application.partitions[start].layers.index(edge.source)
    target = application.partitions[end].layers.index(edge.target)
    return start, source, end, target, held.copy


def _bits(start: int, count: int) -> int:
    return ((1 << count) - 1) << start


def _union(masks: Iterable[int]) -> int:
    found = 0
    for mask in masks:
        found |= mask
    return found


# Algorithm 1: edge by edge, which buffer an edge is given.


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
    items = application.held
    sizes = [application.elements(item) for item in items] if sizes is None else sizes
    lives = Lives(application).all() if lives is None else lives
    buffers: list[_Shared] = []
    # Edges of one layer begin in the same step: which buffers are free then is found once for all of them.
    first, free = 0, list[_Shared]()
    for item, size, life in zip(items, sizes, lives, strict=True):
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
    items = application.held
    sizes = [application.elements(item) for item in items] if sizes is None else sizes
    size_of = dict(zip(items, sizes, strict=True))
    lives = dict(zip(items, Lives(application).all(), strict=True))
    if sorted(map(application.label, items)) != sorted(
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
