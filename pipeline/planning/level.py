"""The kernels of one chunk size, their weights and their times: what drafts of plans share."""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate
from math import inf

from models.packs.records.pieces import Piece
from pipeline.planning.plan import Plan
from pipeline.planning.units import Unit, streamed_units
from pipeline.program.program import Program
from pipeline.program.steps import Phase, Step
from pipeline.timing.durations import Durations


@dataclass(frozen=True)
class Level:
    """The kernels of one chunk size of ``program``. ``kept_bytes``: what is resident whatever is chosen.

    ``until[p]``: seconds of kernels [0, p).
    """

    program: Program
    plan: Plan
    units: tuple[Unit, ...]
    kept_bytes: int
    until: tuple[float, ...]
    slowdown: float
    disturbance: float

    @cached_property
    def streamable_bytes(self) -> int:
        return sum(unit.length for unit in self.units)

    @cached_property
    def largest_bytes(self) -> int:
        """The least ring."""
        return max((unit.length for unit in self.units if not unit.in_arena), default=0)

    @cached_property
    def first_pieces(self) -> list[int]:
        """The program's piece with which each step begins."""
        return list(first_pieces(self.program, self.plan.steps))


def first_pieces(program: Program, steps: Sequence[Step]) -> Iterator[int]:
    """Yield the program's piece with which each step begins; of a region's phases that of the region."""
    first, inside = program.own.start, None
    for step in steps:
        region = step.region if isinstance(step, Phase) else None
        if inside is not None and region is not inside:
            first = max(inside.plan.region.pieces) + 1
        inside = region
        yield first
        if isinstance(step, Piece):
            first += step.n_spans


def spliced(levels: Sequence[Level], starts: Sequence[int]) -> Level:
    """Return a level with the steps of ``levels[n]`` from the program's piece ``starts[n]`` on.

    Each start is the first piece of a layer, the first one that of the program. The plan is that of the
    first level.
    """
    units: list[Unit] = []
    seconds: list[float] = []
    for number, (level, start) in enumerate(zip(levels, starts, strict=True)):
        first = bisect_left(level.first_pieces, start)
        after = starts[number + 1] if number + 1 < len(starts) else inf
        end = bisect_left(level.first_pieces, after)
        moved = len(seconds) - first
        seconds += (level.until[step + 1] - level.until[step] for step in range(first, end))
        units += (
            replace(unit, steps=range(unit.steps.start + moved, unit.steps.stop + moved))
            for unit in level.units
            if first <= unit.steps.start < end
        )
    until = tuple(accumulate(seconds, initial=0.0))
    return replace(levels[0], units=tuple(units), until=until)


def level_of(program: Program, plan: Plan, durations: Durations) -> Level:
    """Return the level of ``plan``, which keeps no more resident than it must."""
    return Level(
        program,
        plan,
        streamed_units(program, plan.steps, set(plan.resident)),
        plan.resident_bytes,
        tuple(accumulate(durations.stages[-1], initial=0.0)),
        durations.slowdown,
        durations.disturbance,
    )
