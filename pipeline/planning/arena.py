"""Where activations lie in one arena, so that they share memory when they do not share time.

The problem itself is in pipeline/planning/offsets. Planners place the same values again and again, and must
do so alike: so the search for what the heuristic does not find ends after so many nodes, not after a time.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

from pipeline.planning.offsets.problem import LiveBuffer, Problem
from pipeline.planning.offsets.solve import place
from pipeline.program.lives import Lifetime
from pipeline.program.program import Program

# At most 0.2 s. Of the networks of the zoo, whole, none needs a search (docs/explanation/offsets.md).
_NODES = 2000


@dataclass(frozen=True)
class ArenaPlan:
    """``offsets[i]`` is where value i of the problem lies; ``n_bytes`` is the arena's size.

    ``lower_bound_bytes``: no arrangement takes less.
    """

    offsets: tuple[int, ...]
    n_bytes: int
    lower_bound_bytes: int = 0


def plan_arena(values: tuple[Lifetime, ...]) -> ArenaPlan:
    """Return the smallest arrangement that is found; the same for the same values."""
    placed = place(arena_problem(values), seconds=math.inf, nodes=_NODES)
    return ArenaPlan(placed.offsets, placed.n_bytes, placed.lower_bound_bytes)


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


def arena_problem(values: Sequence[Lifetime]) -> Problem:
    """Return the problem of placing ``values``, in their order."""
    return Problem(
        tuple(LiveBuffer(life.n_bytes, life.start, life.end, life.alignment) for life in values)
    )
