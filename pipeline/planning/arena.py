"""Where activations lie in one arena, so that they share memory when they do not share time.

Knows nothing of networks: two values that live in a common moment share no byte, and the arena is as small
as possible (docs/explanation/offsets.md). Several orders of values are tried, with two ways to place them:

*Gaps*: values in an order, each in the lowest gap that is free for its whole life, after Pisarchyk and
Lee ("Efficient Memory Management for Deep Neural Net Inference"). *Skyline*: again and again the value
that can lie lowest on top of those placed; the order decides between equals. A skyline takes a few vector
operations for each value, so many are tried; their best is an order for gaps, where nothing lies higher.

Invariant: the same values lie in the same places, whenever and wherever they are asked for.
"""

from bisect import insort
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from random import Random
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from pipeline.program.lives import Lifetime
from pipeline.program.program import Program


@dataclass(frozen=True)
class ArenaPlan:
    """``offsets[i]`` is where value i of those that were given lies; ``n_bytes`` is the arena's size."""

    offsets: tuple[int, ...]
    n_bytes: int


def plan_arena(values: Sequence[Lifetime]) -> ArenaPlan:
    """Return the smallest arrangement that is found.

    It takes no less than the most that lives at once, and ends the search where that is reached.
    """
    enough = most_alive(values)
    offsets = [0] * len(values)
    for indices in _apart(values):
        part = [values[index] for index in indices]
        for index, offset in zip(indices, _placed(part, enough), strict=True):
            offsets[index] = offset
    return ArenaPlan(tuple(offsets), _end(values, offsets))


def most_alive(values: Sequence[Lifetime]) -> int:
    """Return the most bytes that live at once: no arrangement takes less."""
    change: dict[int, int] = defaultdict(int)
    for life in values:
        if life.takes_room:
            change[life.start] += life.padded_bytes
            change[life.end] -= life.padded_bytes
    live = most = 0
    for moment in sorted(change):
        live += change[moment]
        most = max(most, live)
    return most


def arenas(program: Program) -> Callable[[tuple[Lifetime, ...]], ArenaPlan]:
    """Return ``plan_arena`` for values of ``program``: a planner asks for the same again soon, or never."""
    return lru_cache(maxsize=8)(plan_arena)


def in_order(values: Sequence[Lifetime]) -> tuple[Lifetime, ...]:
    """Return ``values`` in moments that are counted only where one begins or ends.

    Their arrangement is the same, and so it is the same question however layers are cut.
    """
    moments = sorted({life.start for life in values} | {life.end for life in values})
    number = dict(zip(moments, range(len(moments)), strict=True))
    return tuple(
        Lifetime(life.n_bytes, number[life.start], number[life.end], life.alignment)
        for life in values
    )


def _end(values: Sequence[Lifetime], offsets: Sequence[int]) -> int:
    """Return where the last value ends."""
    pairs = zip(values, offsets, strict=True)
    return max((at + life.padded_bytes for life, at in pairs if life.takes_room), default=0)


def _apart(values: Sequence[Lifetime]) -> list[list[int]]:
    """Return the indices of values that take room, in parts between which nothing lives on."""
    order = sorted(
        (i for i, life in enumerate(values) if life.takes_room), key=lambda i: values[i].start
    )
    parts: list[list[int]] = []
    end = 0
    for index in order:
        if not parts or values[index].start >= end:
            parts.append([])
        parts[-1].append(index)
        end = max(end, values[index].end) if len(parts[-1]) > 1 else values[index].end
    return parts


# A part as arrays over sections of time: a section stands for moments in which the same values live.
#
# One whose values all live in a neighbour too says nothing of its own and is left out, so what remains are
# the largest sets of values that meet.

Ints: TypeAlias = NDArray[np.int64]
Bools: TypeAlias = NDArray[np.bool_]
Floats: TypeAlias = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class _Sections:
    """Values 0..n-1 by start, of ``size`` bytes; value i lives in sections [first[i], end[i]).

    ``indices[i]``: its place in the sequence given. ``meets[i, j]``: both live in some section. ``load``:
    bytes of each section. ``ranges``: first and end of each value one after the other.
    """

    indices: tuple[int, ...]
    first: Ints
    end: Ints
    size: Ints
    ranges: Ints
    meets: Bools
    load: Ints


def _divide(values: Sequence[Lifetime]) -> _Sections:
    """Return the sections of ``values``, all of which take room."""
    order = sorted(range(len(values)), key=lambda i: (values[i].start, values[i].end, i))
    chosen = [values[i] for i in order]
    start, stop = (np.array([getattr(life, name) for life in chosen]) for name in ("start", "end"))
    inside = np.array([(start <= moment) & (moment < stop) for moment in _peaks(chosen)])
    first = inside.argmax(axis=0).astype(np.int64)
    end = first + inside.sum(axis=0)
    meets = (first[:, None] < end) & (first < end[:, None])
    np.fill_diagonal(meets, False)
    size = np.array([life.padded_bytes for life in chosen])
    ranges = np.stack((first, end), axis=1).ravel()
    return _Sections(tuple(order), first, end, size, ranges, meets, inside @ size)


def _peaks(values: Sequence[Lifetime]) -> list[int]:
    """Return the moments after which something ends before anything else starts."""
    events = sorted({(life.start, 1) for life in values} | {(life.end, 0) for life in values})
    return [
        moment
        for (moment, starts), (_, next_starts) in pairwise(events)
        if starts and not next_starts
    ]


# The placement of a part: several orders, the best of all.

SKYLINES = 80  # after those without noise; fewer where there are many values
STEPS = 60_000  # of them together
NOISE = 0.1  # of the logarithm of a key
FORWARD = 0.3  # added to it where a value came too late
_FAR = 1 << 60  # beyond every offset


def _placed(values: Sequence[Lifetime], enough: int) -> list[int]:
    """Return offsets, the best of several or the first that need no more than ``enough`` bytes."""
    sections = _divide(values)
    best: list[int] = []
    least = 0
    meets = [row.nonzero()[0].tolist() for row in sections.meets]
    chosen = [values[index] for index in sections.indices]
    for order in _orders(sections, enough):
        offsets = _in_gaps(chosen, order, meets)
        n_bytes = _end(chosen, offsets)
        if not best or n_bytes < least:
            best, least = offsets, n_bytes
        if least <= enough:
            break
    return [offset for _, offset in sorted(zip(sections.indices, best, strict=True))]


def _orders(sections: _Sections, enough: int) -> Iterator[list[int]]:
    yield np.argsort(-sections.size, kind="stable").tolist()
    for key in _keys(sections)[:2]:
        yield np.argsort(_ranks(key)).tolist()
    yield np.argsort(_best_skyline(sections, enough), kind="stable").tolist()


def _keys(sections: _Sections) -> list[Floats]:
    """Return by what large values may go before small ones, as logarithms, so that noise is relative.

    Sections times bytes, sections, bytes, and the first where most lives.
    """
    lives = (sections.end - sections.first).astype(float)
    loads = np.maximum.reduceat(np.append(sections.load, 0), sections.ranges)[::2].astype(float)
    area = lives * sections.size
    return [np.log(key) for key in (area, lives, sections.size, loads**8 * area)]


def _ranks(key: Floats) -> Ints:
    """Return 0 for the largest key, 1 for the next, and so on."""
    found = np.empty(len(key), np.int64)
    found[np.argsort(-key, kind="stable")] = np.arange(len(key))
    return found


def _best_skyline(sections: _Sections, enough: int) -> Ints:
    """Return the offsets of the lowest skyline of several; alignments play no part.

    The best key goes on, with noise; what ended above the peak comes earlier from then on.
    """
    count = len(sections.size)
    noises = _noises(count)
    tried = [
        (offsets, key) for key in _keys(sections) for offsets in [_skyline(sections, _ranks(key))]
    ]
    best, key = min(tried, key=lambda one: _height(sections, one[0]))
    latest, peak = best, sections.load.max()
    for _ in range(min(SKYLINES, STEPS // count)):
        if _height(sections, best) <= enough:
            break
        key = key + FORWARD * (latest + sections.size > peak)
        latest = _skyline(sections, _ranks(key + next(noises)))
        best = min(best, latest, key=lambda offsets: _height(sections, offsets))
    return best


def _noises(count: int) -> Iterator[Floats]:
    """Yield so many numbers at a time; of the standard library, since NumPy's generators take 2.5 MB."""
    generator = Random(0)  # noqa: S311  no secret
    while True:
        yield np.array([generator.gauss(0, NOISE) for _ in range(count)])


def _height(sections: _Sections, offsets: Ints) -> int:
    return int((offsets + sections.size).max())


def _skyline(sections: _Sections, rank: Ints) -> Ints:
    n = len(rank)
    place = rank.copy()  # lowest offset * n + rank: one minimum finds the next
    tops = sections.size * n
    offsets = np.zeros(n, np.int64)
    for _ in range(n):
        value = int(place.argmin())
        offset = place[value] // n
        offsets[value] = offset
        np.maximum(place, offset * n + tops[value] + rank, out=place, where=sections.meets[value])
        place[value] = _FAR
    return offsets


def _in_gaps(
    values: Sequence[Lifetime], order: Sequence[int], meets: Sequence[Sequence[int]]
) -> list[int]:
    taken: list[list[tuple[int, int]]] = [[] for _ in values]
    offsets = [-1] * len(values)
    for index in order:
        offsets[index] = at = _lowest_gap(taken[index], values[index])
        span = (at, at + values[index].padded_bytes)
        for other in meets[index]:
            if offsets[other] < 0:
                insort(taken[other], span)
    return offsets


def _lowest_gap(taken: Sequence[tuple[int, int]], value: Lifetime) -> int:
    """Return the lowest aligned offset of a gap between ``taken``, which is sorted."""
    size, alignment, at = value.padded_bytes, value.alignment, 0
    for start, end in taken:
        if start - at >= size:
            break
        if end > at:
            at = -(-end // alignment) * alignment
    return at
