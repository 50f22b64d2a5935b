"""Ways through a network: between two places its pieces run whole, or as a region on rows or channels.

All activations of a sweep share an arena, all weights a ring, all kernels scratch: what counts of a way are
the most bytes that any of its parts needs of these, and the sum of their seconds and of what they bind.
Weights of a region that the ring cannot hold lie in the arena while it runs, if they may. For many limits
at once, dynamic programming over the places finds the way of the least sum.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.program.lives import PAGE_BYTES
from pipeline.program.region_plan import Region
from pipeline.program.stopping import go_on

Numbers = NDArray[np.int64]
Times = NDArray[np.float64]

# More of them would take more memory than all else that planning needs.
_LIMITS_AT_ONCE = 64
#: More than any arena: what cannot run.
NO_ARENA = 1 << 60
# Sums of thousands of seconds differ by less, as a part of them, whatever order they are added in.
_EXACT = 1e-11


@dataclass(frozen=True)
class RegionEnds:
    """Regions that end at one place, an item of each array for each.

    ``start``: numbers of the places where they begin. ``arena``, ``scratch`` and ``ring``: bytes that they
    need of these, the weights in the ring; ``bound``: bytes of kernels and copies that they bind.
    """

    start: Numbers
    arena: Numbers
    scratch: Numbers
    ring: Numbers
    bound: Numbers
    seconds: Times
    cuts: NDArray[np.object_]

    def followed_by(self, others: "RegionEnds") -> "RegionEnds":
        """Return these and ``others``, which end at the same place."""
        return RegionEnds(*map(np.concatenate, zip(self._columns, others._columns, strict=True)))

    def those(self, which: NDArray[np.bool_]) -> "RegionEnds":
        """Return some of these."""
        return RegionEnds(*(column[which] for column in self._columns))

    def beginning(self, places: Numbers) -> "RegionEnds":
        """Return these with ``start`` as the position in ``places``, ascending numbers."""
        return replace(self, start=np.searchsorted(places, self.start))

    @property
    def _columns(self) -> tuple[NDArray[Any], ...]:
        return self.start, self.arena, self.scratch, self.ring, self.bound, self.seconds, self.cuts


@dataclass(frozen=True)
class Whole:
    """The pieces from each place to the next, run whole: an item for each place but the last.

    ``scratch``, ``ring`` and ``bound``: for each ring that is asked about, [rings, places - 1].
    """

    arena: Numbers
    scratch: Numbers
    ring: Numbers
    bound: Numbers
    seconds: Times


@dataclass(frozen=True)
class MemoryLimits:
    """At most so many bytes of ring and scratch, an item of each array for each of several limits.

    ``levels``: the number of the ring whose chunks the pieces that run whole have.
    """

    rings: Numbers
    levels: Numbers
    scratch: Numbers

    def those(self, which: Any) -> "MemoryLimits":
        """Return some of these, or each several times."""
        return MemoryLimits(self.rings[which], self.levels[which], self.scratch[which])

    def __len__(self) -> int:
        return len(self.rings)


@dataclass(frozen=True, slots=True)
class Way:
    """Regions, the rest whole; ``level``: the number of the ring whose chunks the rest has.

    ``held``: the largest weights of a region in the ring.
    """

    regions: tuple[Region, ...]
    level: int
    arena: int
    scratch: int
    ring: int
    held: int
    bound: int
    seconds: float


def most_from(each: Numbers, place: int) -> Numbers:
    """Return the most of ``each`` from every place before number ``place`` up to that."""
    most: Numbers = np.maximum.accumulate(each[place - 1 :: -1])[::-1]
    return most


class Ways:
    """The best ways along ``places`` with regions of ``edges``, by the number of the place they end at.

    ``into_arena``: weights may be read into the arena.
    """

    def __init__(
        self, places: Sequence[int], whole: Whole, edges: dict[int, RegionEnds], into_arena: bool
    ) -> None:
        self._places = places
        self._whole = whole
        self._edges = edges
        self._into_arena = into_arena
        self._regions: dict[tuple[int, int, bool], Region] = {}

    def worth(self, most_seconds_a_byte: float) -> "Ways":
        """Return these without regions that the same pieces beat within any limit where they run whole.

        They need no more of arena and scratch, and take less time whatever a bound byte counts, up to so
        many seconds. About half of all regions are such.
        """
        whole = self._whole
        bound = np.concatenate([[0], np.cumsum(whole.bound.max(axis=0, initial=0))])
        seconds = np.concatenate([[0.0], np.cumsum(whole.seconds)])
        scratch = whole.scratch.max(axis=0, initial=0)
        better_edges = {}
        for place, edges in self._edges.items():
            arena = most_from(whole.arena, place)[edges.start]
            better = edges.arena >= arena
            better &= edges.scratch >= most_from(scratch, place)[edges.start]
            for price in (0.0, most_seconds_a_byte):
                # By more than sums of numbers are exact to.
                margin = _EXACT * (seconds[-1] + price * bound[-1])
                together = seconds[place] + price * bound[place] + margin
                before = seconds[edges.start] + price * bound[edges.start]
                better &= together - before < edges.seconds + price * edges.bound
            better_edges[place] = edges.those(~better)
        return Ways(self._places, whole, better_edges, self._into_arena)._with_few_places()

    def _with_few_places(self) -> "Ways":
        """Return these with no places but such where regions begin or end: all between is whole anyway."""
        last = len(self._places) - 1
        edges = {place: item for place, item in self._edges.items() if len(item.start)}
        starts = [item.start.tolist() for item in edges.values()]
        # np.unique would import numpy.ma, 1 MB.
        kept = np.array(sorted({0, last, *edges}.union(*starts)), np.int64)
        if not last:
            return self
        whole, firsts = self._whole, kept[:-1]
        few = Whole(
            np.maximum.reduceat(whole.arena, firsts),
            np.maximum.reduceat(whole.scratch, firsts, axis=1),
            np.maximum.reduceat(whole.ring, firsts, axis=1),
            np.add.reduceat(whole.bound, firsts, axis=1),
            np.add.reduceat(whole.seconds, firsts),
        )
        number = {place: index for index, place in enumerate(kept.tolist())}
        return Ways(
            [self._places[place] for place in kept],
            few,
            {number[place]: item.beginning(kept) for place, item in edges.items()},
            self._into_arena,
        )

    def least_arena(self, limits: MemoryLimits) -> Numbers:
        """Return the least arena of any way within each of ``limits``; ``NO_ARENA``: there is none."""
        best = np.full((len(limits), len(self._places)), NO_ARENA)
        best[:, 0] = 0
        for place in range(1, len(self._places)):
            go_on()
            needed = self._whole_arena(place - 1, limits)
            best[:, place] = np.maximum(best[:, place - 1], needed)
            edges = self._edges.get(place)
            if edges is not None and len(edges.start):
                through = np.maximum(best[:, edges.start], self._arena_within(edges, limits))
                best[:, place] = np.minimum(best[:, place], through.min(axis=1))
        least: Numbers = best[:, -1]
        return least

    def _whole_arena(self, place: int, limits: MemoryLimits) -> Numbers:
        """Return what pieces behind ``place`` need of the arena whole, within each of ``limits``."""
        is_too_much = self._whole.scratch[limits.levels, place] > limits.scratch
        return np.where(is_too_much, NO_ARENA, self._whole.arena[place])

    def _arena_within(self, edges: RegionEnds, limits: MemoryLimits) -> Numbers:
        """Return what each of ``edges`` needs of the arena within each of ``limits``, [limits, edges]."""
        weights = edges.ring + PAGE_BYTES if self._into_arena else np.array(NO_ARENA)
        arena = edges.arena + np.where(edges.ring > limits.rings[:, None], weights, 0)
        return np.where(edges.scratch > limits.scratch[:, None], NO_ARENA, arena)

    def best(self, limits: MemoryLimits, arenas: Numbers, seconds_a_byte: Times) -> list[Way]:
        """Return the way of the least seconds within each of ``limits`` and arenas, if there is any.

        A bound byte counts as so many seconds.
        """
        parts = [
            slice(first, first + _LIMITS_AT_ONCE)
            for first in range(0, len(limits), _LIMITS_AT_ONCE)
        ]
        return [
            way
            for part in parts
            for way in self._best(limits.those(part), arenas[part], seconds_a_byte[part])
        ]

    def _best(self, limits: MemoryLimits, arenas: Numbers, seconds_a_byte: Times) -> list[Way]:
        count = len(limits)
        pairs = np.stack([limits.rings, limits.scratch])
        _, firsts, which = np.unique(pairs, axis=1, return_index=True, return_inverse=True)
        distinct = limits.those(firsts)
        cost = np.full((count, len(self._places)), np.inf)
        cost[:, 0] = 0
        taken = np.full((count, len(self._places)), -1, np.int32)  # -1: whole
        whole = self._whole
        for place in range(1, len(self._places)):
            go_on()
            before = place - 1
            cost[:, place] = cost[:, before] + whole.seconds[before]
            cost[:, place] += seconds_a_byte * whole.bound[limits.levels, before]
            cost[arenas < self._whole_arena(before, limits), place] = np.inf
            edges = self._edges.get(place)
            if edges is None or not len(edges.start):
                continue
            each = cost.take(edges.start, axis=1)
            each += edges.seconds
            each += seconds_a_byte[:, None] * edges.bound
            needed = self._arena_within(edges, distinct)[which.reshape(-1)]
            np.copyto(each, np.inf, where=needed > arenas[:, None])
            choice = each.argmin(axis=1)
            least_costs = each[np.arange(count), choice]
            better = least_costs < cost[:, place]
            taken[better, place] = choice[better]
            cost[better, place] = least_costs[better]
        possible = np.flatnonzero(np.isfinite(cost[:, -1]))
        return self._taken(taken[possible], limits.those(possible))

    def _taken(self, taken: NDArray[np.int32], limits: MemoryLimits) -> list[Way]:
        """Return the ways that were ``taken`` to each place, from the last one back, within ``limits``."""
        regions: list[list[Region]] = [[] for _ in taken]
        levels, rings = limits.levels, limits.rings
        at = np.full(len(taken), len(self._places) - 1)
        arena, scratch, ring, held, bound = np.zeros((5, len(taken)), np.int64)
        seconds = np.zeros(len(taken))
        for place in range(len(self._places) - 1, 0, -1):
            here = np.flatnonzero(at == place)
            whole = here[taken[here, place] < 0]
            before = place - 1
            at[whole] = before
            arena[whole] = np.maximum(arena[whole], self._whole.arena[before])
            scratch[whole] = np.maximum(scratch[whole], self._whole.scratch[levels[whole], before])
            ring[whole] = np.maximum(ring[whole], self._whole.ring[levels[whole], before])
            bound[whole] += self._whole.bound[levels[whole], before]
            seconds[whole] += self._whole.seconds[before]
            through = here[taken[here, place] >= 0]
            if not len(through):
                continue
            edges, numbers = self._edges[place], taken[through, place]
            weights = edges.ring[numbers]
            in_arena = weights > rings[through]
            needed = edges.arena[numbers] + np.where(in_arena, weights + PAGE_BYTES, 0)
            arena[through] = np.maximum(arena[through], needed)
            scratch[through] = np.maximum(scratch[through], edges.scratch[numbers])
            held[through] = np.maximum(held[through], np.where(in_arena, 0, weights))
            bound[through] += edges.bound[numbers]
            seconds[through] += edges.seconds[numbers]
            at[through] = edges.start[numbers]
            each = zip(through.tolist(), numbers.tolist(), in_arena.tolist(), strict=True)
            for way, number, inside in each:
                regions[way].append(self._region(place, number, inside))
        ring = np.maximum(ring, held)
        columns = (levels, arena, scratch, ring, held, bound, seconds)
        return [
            Way(tuple(reversed(taken_to)), *numbers)
            for taken_to, *numbers in zip(
                regions, *(column.tolist() for column in columns), strict=True
            )
        ]

    def _region(self, place: int, number: int, in_arena: bool) -> Region:
        """Return edge ``number`` of those that end at ``place``; ways have many in common."""
        key = place, number, in_arena
        if key not in self._regions:
            edges = self._edges[place]
            first, end = self._places[edges.start[number]], self._places[place]
            self._regions[key] = Region(first, end, edges.cuts[number], in_arena)
        return self._regions[key]
