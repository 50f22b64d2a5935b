"""Offsets for activations in one arena, so that values share memory when they do not share time.

Greedy placement after Pisarchyk and Lee (the baseline of seed 000, Section VI): values in some order,
each at the lowest gap that is free during its whole life. Several orders are tried; the best wins.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

from pipeline.program.lives import Lifetime

ALIGNMENT = 64


@dataclass(frozen=True)
class ArenaPlan:
    """``offsets[i]`` is where value i of the problem lies; ``n_bytes`` is the arena's size."""

    offsets: tuple[int, ...]
    n_bytes: int


_ORDERS: tuple[Callable[[Lifetime], tuple[int, ...]], ...] = (
    lambda life: (-life.n_bytes, life.start),
    lambda life: (life.start, -life.n_bytes),
    lambda life: (-life.n_bytes * (life.end - life.start), life.start),
)


@lru_cache(maxsize=16)  # planners ask for the same pieces again and again
def plan_arena(values: tuple[Lifetime, ...]) -> ArenaPlan:
    """Return the smallest arrangement that the greedy orders find."""
    return min((_place(values, order) for order in _ORDERS), key=lambda plan: plan.n_bytes)


def _place(values: Sequence[Lifetime], order: Callable[[Lifetime], tuple[int, ...]]) -> ArenaPlan:
    offsets = [0] * len(values)
    placed: list[tuple[int, int, Lifetime]] = []
    for index in sorted(range(len(values)), key=lambda i: order(values[i])):
        life = values[index]
        if not life.n_bytes:
            continue
        size = -(-life.n_bytes // ALIGNMENT) * ALIGNMENT
        taken = sorted(
            (start, end)
            for start, end, other in placed
            if other.start < life.end and life.start < other.end
        )
        offsets[index] = _lowest_gap(taken, size)
        placed.append((offsets[index], offsets[index] + size, life))
    return ArenaPlan(tuple(offsets), max((end for _, end, _ in placed), default=0))


def _lowest_gap(taken: Sequence[tuple[int, int]], size: int) -> int:
    position = 0
    for start, end in taken:
        if start - position >= size:
            break
        position = max(position, end)
    return position


def arena_violations(values: Sequence[Lifetime], plan: ArenaPlan) -> list[str]:
    """Judge a plan by brute force: every pair that lives at once, every end. For tests."""
    found = []
    for i, one in enumerate(values):
        if one.n_bytes and plan.offsets[i] + one.n_bytes > plan.n_bytes:
            found.append(f"value {i} ends beyond the arena")
        for j, other in enumerate(values[:i]):
            together = max(one.start, other.start) < min(one.end, other.end)
            ends = (plan.offsets[i] + one.n_bytes, plan.offsets[j] + other.n_bytes)
            if together and max(plan.offsets[i], plan.offsets[j]) < min(ends):
                found.append(f"values {i} and {j} overlap")
    return found
