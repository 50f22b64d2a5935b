"""A placement of a problem: bound, heuristic, and a search where these two do not meet."""

import time
from collections import defaultdict
from collections.abc import Callable, Sequence

from pipeline.planning.offsets.exact import Limit, search
from pipeline.planning.offsets.heuristic import greedy
from pipeline.planning.offsets.problem import (
    LiveBuffer,
    Placement,
    Problem,
    arena_bytes,
    components,
    divide,
)

SECONDS = 0.8
NODES = 1_000_000
SEARCHED = 2000  # buffers of a part that a search may have: it holds two tables of all pairs


def place(
    problem: Problem,
    seconds: float = SECONDS,
    nodes: int = NODES,
    clock: Callable[[], float] = time.monotonic,
) -> Placement:
    """Return the smallest placement found; with a capacity, the first that fits in it.

    The search ends after ``seconds`` of ``clock`` (0: no search) or ``nodes``, whichever comes first. Where
    time ended it, another run may find another placement; with ``seconds=math.inf`` all find the same.
    Where the bound exceeds the capacity, nothing fits in it.
    """
    bound = lower_bound(problem)
    offsets = [buffer.pin or 0 for buffer in problem.buffers]
    limit = Limit(nodes, clock, clock() + seconds)
    parts = [
        _Part(indices, [problem.buffers[i] for i in indices], bound, problem.capacity)
        for indices in components(problem.buffers)
    ]
    hard = [part for part in parts if part.worth_a_search]
    hard.sort(key=lambda part: len(part.indices))  # what the small ones leave is for the large ones
    for index, part in enumerate(hard):
        with limit.share(1 / (len(hard) - index)) as granted:
            part.improve(granted)
    for part in parts:
        for i, offset in zip(part.indices, part.offsets, strict=True):
            offsets[i] = offset
    bound = max((bound, *(part.bound for part in hard)))
    method = "search" if any(part.searched for part in hard) else "heuristic"
    n_bytes = arena_bytes(problem.buffers, offsets)
    return Placement(tuple(offsets), n_bytes, bound, method)


class _Part:
    """Buffers that no step separates: the least bytes known to be needed, and the best placement yet."""

    def __init__(
        self,
        indices: Sequence[int],
        buffers: Sequence[LiveBuffer],
        bound: int,
        capacity: int | None,
    ) -> None:
        self.indices = indices
        self.bound = bound
        self.searched = False
        self._buffers = buffers
        self._sections = divide(buffers)
        self._capacity = capacity
        self._enough = max(bound, capacity or 0)
        self._take(greedy(buffers, self._sections, self._enough))

    def _take(self, offsets: list[int]) -> None:
        self.offsets = offsets
        self.n_bytes = arena_bytes(self._buffers, offsets)

    @property
    def worth_a_search(self) -> bool:
        possible = self._capacity is None or self._capacity >= self.bound
        return possible and self.n_bytes > self._enough and len(self._buffers) <= SEARCHED

    def improve(self, limit: Limit) -> None:
        """Search for what is enough; without a capacity then halve what is open, then go down by units."""
        unit = self._sections.unit
        if self._capacity is not None:
            self._reach(self._capacity // unit, limit, 1)
            return
        lowest = self._enough // unit
        self._reach(lowest, limit, 1 / 2)
        while lowest + 1 < self.n_bytes // unit and not limit.reached:
            aim = (lowest + self.n_bytes // unit) // 2
            if not self._reach(aim, limit, 1 / 4):
                lowest = aim
        while self.n_bytes > self.bound and not limit.reached:
            self._reach(self.n_bytes // unit - 1, limit, 1)

    def _reach(self, units: int, limit: Limit, share: float) -> bool:
        """Search for a placement in ``units`` with a share of the limit; return whether one was found."""
        with limit.share(share) as granted:
            answer = search(self._sections, units, granted)
        if answer.offsets is not None:
            self._take(self._sections.bytes_of(answer.offsets))
            self.searched = True
        elif answer.proven:
            self.bound = max(self.bound, (units + 1) * self._sections.unit)
        return answer.offsets is not None


def lower_bound(problem: Problem) -> int:
    """Return the largest live set of any step with padded sizes, or where the highest pin ends."""
    change: dict[int, int] = defaultdict(int)
    highest = 0
    for buffer in problem.buffers:
        if not buffer.takes_room:
            continue
        change[buffer.start] += buffer.padded_bytes
        change[buffer.end] -= buffer.padded_bytes
        if buffer.pin is not None:
            highest = max(highest, buffer.pin + buffer.padded_bytes)
    live = 0
    for step in sorted(change):
        live += change[step]
        highest = max(highest, live)
    return highest
