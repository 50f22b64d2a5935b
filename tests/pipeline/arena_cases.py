"""Values to be placed in an arena, for tests, and a judge of where they lie."""

import random
from collections.abc import Sequence

from pipeline.planning.arena import ArenaPlan
from pipeline.program.lives import Lifetime


def violations(values: Sequence[Lifetime], plan: ArenaPlan) -> list[str]:
    """Return what is wrong with any pair, alignment or end. Empty: the plan is valid.

    It shares no code with the planner.
    """
    if len(plan.offsets) != len(values):
        return [f"{len(plan.offsets)} offsets for {len(values)} values"]
    messages = []
    placed = list(zip(values, plan.offsets, strict=True))
    for i, (value, at) in enumerate(placed):
        if at < 0 or at % value.alignment:
            messages.append(f"value {i} lies at {at}")
        if _lives(value) and at + _room(value) > plan.n_bytes:
            messages.append(f"value {i} ends beyond the arena")
        for j, (other, other_at) in enumerate(placed[:i]):
            together = value.start < other.end and other.start < value.end
            apart = at + _room(value) <= other_at or other_at + _room(other) <= at
            if _lives(value) and _lives(other) and together and not apart:
                messages.append(f"values {j} and {i} overlap")
    return messages


def _lives(value: Lifetime) -> bool:
    return value.n_bytes > 0 and value.end > value.start


def _room(value: Lifetime) -> int:
    return value.n_bytes + -value.n_bytes % value.alignment


def crowded(count: int, seed: int) -> list[Lifetime]:
    """Return a rectangle of bytes and steps cut into values: all of it is needed, and it is enough."""
    rng = random.Random(seed)
    cut = [(0, 1024, 0, count // 2)]
    while len(cut) < count:
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
    return [Lifetime((high - low) * 1024, start, end) for low, high, start, end in cut]


def mixed(count: int, seed: int) -> list[Lifetime]:
    """Return a quarter long lives among short ones, sizes of a few bytes to thousands of times as many."""
    rng = random.Random(seed)
    steps = rng.choice([count // 4, count, 2 * count])
    lives = []
    for _ in range(count):
        length = (
            rng.uniform(0.2, 0.9) * steps if rng.random() < 0.25 else rng.expovariate(20 / steps)
        )
        length = max(1, min(int(length), steps))
        start = rng.randint(0, steps - length)
        size = int(64 * min(2.0**12, rng.paretovariate(rng.choice([0.8, 1.2, 2.0])))) * rng.randint(
            1, 16
        )
        lives.append(Lifetime(size, start, start + length))
    return lives
