"""Problems of offsets for tests, and the least bytes they need by brute force."""

import random
from collections.abc import Sequence

from pipeline.planning.offsets.problem import LiveBuffer, OffsetsError, Problem


def small_problem(seed: int) -> Problem:
    """Return up to nine buffers, often crowded; some problems have alignments, some pins."""
    rng = random.Random(seed)
    steps, largest = rng.choice([3, 6, 12]), rng.choice([4, 12, 100])
    alignments = rng.choice([(1,), (1,), (4,), (1, 2, 8), (64,)])
    pins = rng.random() < 0.3
    buffers: list[LiveBuffer] = []
    for _ in range(rng.randint(0, 9)):
        start, end = sorted(rng.choices(range(steps + 1), k=2))
        alignment = rng.choice(alignments)
        pin = alignment * rng.randint(0, 12) if pins and rng.random() < 0.3 else None
        wanted = LiveBuffer(
            rng.randint(0, largest), start, end + (rng.random() < 0.9), alignment, pin
        )
        buffers.append(wanted)
        try:
            Problem(tuple(buffers))
        except OffsetsError:
            buffers.pop()
    return Problem(tuple(buffers))


def least_bytes(problem: Problem) -> int:
    """Return the least bytes of all placements.

    Some best placement has nothing to push down; buffers taken by offset, each then lies on those before.
    """
    buffers = [b for b in problem.buffers if b.n_bytes and b.start < b.end]
    if not buffers:
        return 0
    best = [1 + sum(b.n_bytes + b.alignment + (b.pin or 0) for b in buffers)]
    _stack(buffers, [], 0, 0, best, _peak(buffers))
    return best[0]


def _peak(buffers: Sequence[LiveBuffer]) -> int:
    """Return the most bytes that live at once: a placement that takes no more is the best."""
    return max(sum(_padded(b) for b in buffers if b.start <= a.start < b.end) for a in buffers)


def _padded(buffer: LiveBuffer) -> int:
    return -(-buffer.n_bytes // buffer.alignment) * buffer.alignment


def _stack(
    left: Sequence[LiveBuffer],
    placed: list[tuple[int, LiveBuffer]],
    last: int,
    height: int,
    best: list[int],
    enough: int,
) -> None:
    if best[0] == enough or (height >= best[0] and left):
        return
    if not left:
        best[0] = min(best[0], height)
    for index, buffer in enumerate(left):
        rest = 0
        for below, other in placed:
            if other.start < buffer.end and buffer.start < other.end:
                rest = max(rest, below)
        at = -(-rest // buffer.alignment) * buffer.alignment
        if buffer.pin is not None:
            if at > buffer.pin:
                continue
            at = buffer.pin
        if at < last:
            continue
        remaining = [*left[:index], *left[index + 1 :]]
        top = at + _padded(buffer)
        highest = max(height, top)
        _stack(remaining, [*placed, (top, buffer)], at, highest, best, enough)


def crowded(n_buffers: int, seed: int) -> Problem:
    """Return a rectangle of bytes and steps cut into buffers: all of it is needed, and it is enough."""
    rng = random.Random(seed)
    cut = [(0, 1024, 0, n_buffers // 2)]
    while len(cut) < n_buffers:
        areas = [(high - low) * (end - start) for low, high, start, end in cut]
        low, high, start, end = cut.pop(rng.choices(range(len(cut)), areas)[0])
        if (rng.random() < 0.6 or end - start < 2) and high - low > 1:
            middle = rng.randint(low + 1, high - 1)
            cut += [(low, middle, start, end), (middle, high, start, end)]
        elif end - start > 1:
            middle = rng.randint(start + 1, end - 1)
            cut += [(low, high, start, middle), (low, high, middle, end)]
        else:
            cut.append((low, high, start, end))
    rng.shuffle(cut)
    return Problem(
        tuple(LiveBuffer((high - low) * 1024, start, end) for low, high, start, end in cut)
    )


def mixed(n_buffers: int, seed: int) -> Problem:
    """Return a quarter long lives among short ones, sizes of a few bytes to thousands of times as many."""
    rng = random.Random(seed)
    steps = rng.choice([n_buffers // 4, n_buffers, 2 * n_buffers])
    buffers = []
    for _ in range(n_buffers):
        length = (
            rng.uniform(0.2, 0.9) * steps if rng.random() < 0.25 else rng.expovariate(20 / steps)
        )
        length = max(1, min(int(length), steps))
        start = rng.randint(0, steps - length)
        size = int(64 * min(2.0**12, rng.paretovariate(rng.choice([0.8, 1.2, 2.0])))) * rng.randint(
            1, 16
        )
        buffers.append(LiveBuffer(size, start, start + length, 64))
    return Problem(tuple(buffers))
