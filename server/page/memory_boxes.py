"""The arena of a plan over time, as boxes: what lies where, from when to when."""

from dataclasses import dataclass
from typing import Literal

from pipeline.planning.plan import Plan
from pipeline.program.lives import lifetimes, never_whole
from pipeline.program.program import Program
from pipeline.program.steps import regions_of

Kind = Literal["value", "strip", "weights"]


@dataclass(frozen=True, slots=True)
class MemoryBox:
    """Bytes [offset, offset + n_bytes) of the arena in the moments [start, end).

    A region is a moment for each of its operators, the same in all of its phases. Its strips hold rows;
    its weights are here where they lie in the arena.
    """

    name: str
    kind: Kind
    start: int
    end: int
    offset: int
    n_bytes: int


def arena_boxes(program: Program, plan: Plan) -> list[MemoryBox]:
    """Return all that lies in the arena of ``plan``; nothing where partitions have their own."""
    if not plan.values:
        return []
    lives = lifetimes(program, plan.steps, never_whole(program, plan.steps), plan.resident)
    named: list[tuple[str, Kind]] = [(value.name, "value") for value in program.values]
    for region in regions_of(plan.steps):
        first, end = region.plan.region.first_piece, region.plan.region.end_piece
        named += [(f"strip, pieces {first} to {end - 1}", "strip")] * len(region.plan.strips)
    named += [("weights of a region", "weights")] * len(plan.arena_weights)
    return [
        MemoryBox(name, kind, life.start, life.end, offset, life.n_bytes)
        for (name, kind), life, offset in zip(
            named, lives, (*plan.values, *plan.arena_weights), strict=True
        )
        if life.n_bytes
    ]
