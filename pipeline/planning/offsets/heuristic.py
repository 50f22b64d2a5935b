"""A fast placement: several orders of buffers, two ways to place them, the best of all.

*Gaps*: buffers in an order, each in the lowest gap that is free for its whole life, after Pisarchyk and
Lee ("Efficient Memory Management for Deep Neural Net Inference"). *Skyline*: again and again the buffer
that can lie lowest on top of those placed; the order decides between equals. A skyline takes a few vector
operations for each buffer, so many are tried; their best is an order for gaps, where nothing lies higher.
"""

from bisect import insort
from collections.abc import Iterator, Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from pipeline.planning.offsets.problem import FAR, Ints, LiveBuffer, Sections, arena_bytes

SKYLINES = 80  # after those without noise; fewer where there are many buffers
STEPS = 60_000  # of them together
NOISE = 0.1  # of the logarithm of a key
FORWARD = 0.3  # added to it where a buffer came too late

Floats: TypeAlias = NDArray[np.float64]


def greedy(buffers: Sequence[LiveBuffer], part: Sections, enough: int) -> list[int]:
    """Return offsets in bytes, the best of several or the first that need no more than ``enough`` bytes.

    ``part``: the sections of ``buffers``, which all take room and whose pins do not contradict each other.
    """
    best: list[int] = []
    least = 0
    meets = [row.nonzero()[0].tolist() for row in part.meets]
    chosen = [buffers[index] for index in part.indices]
    for order in _orders(part, enough):
        pins_first = sorted(order, key=lambda i: chosen[i].pin is None)
        offsets = _in_gaps(chosen, pins_first, meets)
        n_bytes = arena_bytes(chosen, offsets)
        if not best or n_bytes < least:
            best, least = offsets, n_bytes
        if least <= enough:
            break
    return [offset for _, offset in sorted(zip(part.indices, best, strict=True))]


def _orders(part: Sections, enough: int) -> Iterator[list[int]]:
    yield np.argsort(-part.size, kind="stable").tolist()
    for key in keys(part)[:2]:
        yield np.argsort(ranks(key)).tolist()
    yield np.argsort(_best_skyline(part, enough), kind="stable").tolist()


def keys(part: Sections) -> list[Floats]:
    """Return by what large buffers may go before small ones, as logarithms, so that noise is relative.

    Sections times bytes, sections, bytes, and the first where most lives.
    """
    sections = (part.end - part.first).astype(float)
    loads = np.maximum.reduceat(np.append(part.load, 0), part.ranges)[::2].astype(float)
    area = sections * part.size
    return [np.log(key) for key in (area, sections, part.size, loads**8 * area)]


def ranks(key: Floats) -> Ints:
    """Return 0 for the largest key, 1 for the next, and so on."""
    ranking = np.empty(len(key), np.int64)
    ranking[np.argsort(-key, kind="stable")] = np.arange(len(key))
    return ranking


def _best_skyline(part: Sections, enough: int) -> Ints:
    """Return the offsets in units of the lowest skyline of several; pins and alignments play no part.

    The best key goes on, with noise; what ended above the peak comes earlier from then on.
    """
    noises = _noises(part.n_buffers)
    tried = [(offsets, key) for key in keys(part) for offsets in [_skyline(part, ranks(key))]]
    best, key = min(tried, key=lambda one: _height(part, one[0]))
    latest, peak = best, part.load.max()
    for _ in range(min(SKYLINES, STEPS // part.n_buffers)):
        if _height(part, best) * part.unit <= enough:
            break
        key = key + FORWARD * (latest + part.size > peak)
        latest = _skyline(part, ranks(key + next(noises)))
        best = min(best, latest, key=lambda offsets: _height(part, offsets))
    return best


def _noises(count: int) -> Iterator[Floats]:
    """Yield so many numbers at a time. Most problems need none, and NumPy's generators take 2.5 MB."""
    random = np.random.default_rng(0)
    while True:
        yield random.normal(0, NOISE, count)


def _height(part: Sections, offsets: Ints) -> int:
    return int((offsets + part.size).max())


def _skyline(part: Sections, rank: Ints) -> Ints:
    n = part.n_buffers
    place = rank.copy()  # lowest offset * n + rank: one minimum finds the next
    tops = part.size * n
    offsets = np.zeros(n, np.int64)
    for _ in range(n):
        buffer = int(place.argmin())
        offset = place[buffer] // n
        offsets[buffer] = offset
        np.maximum(place, offset * n + tops[buffer] + rank, out=place, where=part.meets[buffer])
        place[buffer] = FAR
    return offsets


def _in_gaps(
    buffers: Sequence[LiveBuffer], order: Sequence[int], meets: Sequence[Sequence[int]]
) -> list[int]:
    taken: list[list[tuple[int, int]]] = [[] for _ in buffers]
    offsets = [-1] * len(buffers)
    for index in order:
        buffer = buffers[index]
        at = _lowest_gap(taken[index], buffer) if buffer.pin is None else buffer.pin
        offsets[index] = at
        span = (at, at + buffer.padded_bytes)
        for other in meets[index]:
            if offsets[other] < 0:
                insort(taken[other], span)
    return offsets


def _lowest_gap(taken: Sequence[tuple[int, int]], buffer: LiveBuffer) -> int:
    """Return the lowest aligned offset of a gap between ``taken``, which is sorted."""
    size, alignment, at = buffer.padded_bytes, buffer.alignment, 0
    for start, end in taken:
        if start - at >= size:
            break
        if end > at:
            at = -(-end // alignment) * alignment
    return at
