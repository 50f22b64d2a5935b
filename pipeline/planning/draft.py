"""Drafts of plans: what a choice would cost and take, fast enough to try hundreds of them.

A draft leaves out what weights do not change (the arena, offsets) and merges kernels that nothing
separates.
It has the delays of the plan that ``make_plan`` makes of the same choice.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate
from math import inf

from loader.ring import ReadGroup, RingPlace
from pipeline.planning.make import chunk_limit, make_plan, of_weights
from pipeline.planning.plan import Choice, Plan
from pipeline.planning.streaming import (
    PAGE_BYTES,
    Streaming,
    Unit,
    loading_bytes,
    staging_bytes,
    staging_share,
    streamed_units,
    streaming,
)
from pipeline.planning.words import chunk_advice
from pipeline.program.choice import LaterChunks, SameSpans
from pipeline.program.program import PreparedPiece, Program
from pipeline.program.region_plan import Region
from pipeline.program.steps import Phase, Step
from pipeline.program.stopping import go_on
from pipeline.schedule.architectures import ARCHITECTURES, Architecture
from pipeline.schedule.schedule import Stage, Steps, stages
from pipeline.timing.durations import Durations, reads_in_flight
from pipeline.timing.timeline import Timeline, back_to_back, bound, timeline

# The kernels of one chunk size, their weights and their times: what drafts of plans share.


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
        if isinstance(step, PreparedPiece):
            first += step.n_spans


def _spliced(levels: Sequence[Level], starts: Sequence[int]) -> Level:
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


def _level_of(program: Program, plan: Plan, durations: Durations) -> Level:
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


# Drafts.

DurationsOf = Callable[[Plan], Durations]
#: Of a group: in memory, and in the file where that is another one.
_Length = tuple[int, int | None]
# That of a read, and how many are in flight.
_Move = tuple[_Length, int]


@dataclass(frozen=True)
class Draft:
    """What a choice would be. ``users``, ``read_places`` and ``groups`` (of ``units``) as in a plan."""

    choice: Choice
    level: Level
    units: tuple[Unit, ...]
    groups: tuple[ReadGroup, ...]
    weight_bytes: int
    starts: tuple[int, ...]
    stages: tuple[Stage, ...]
    durations: Durations

    @cached_property
    def idle(self) -> Timeline:
        """A request after an idle moment: the head is in the ring."""
        return timeline(self.stages, self.durations, self.stages[0].ahead)

    @cached_property
    def again(self) -> Timeline:
        """A request right after another one."""
        return back_to_back(self.stages, self.durations)

    @property
    def reads_seconds(self) -> float:
        """What the reads take at least that do not come before a request: no delay is shorter."""
        own = self.durations.stages[0][self.stages[0].ahead : len(self.groups)]
        return sum(own) / self.durations.depth

    def slower(self, factor: float) -> "Draft":
        """Return this with reads that take ``factor`` times as long."""
        reads, *others = self.durations.stages
        slow = tuple(factor * seconds for seconds in reads)
        return replace(self, durations=replace(self.durations, stages=(slow, *others)))


#: Returns how long a request takes in a draft.
Judge = Callable[[Draft], float]


def idle_seconds(draft: Draft) -> float:
    """Return the delay after an idle moment."""
    return draft.idle.delay_seconds


def bounded_seconds(draft: Draft) -> float:
    """Return what no sweep exceeds whose operations take no longer than the draft's."""
    return bound(draft.stages, draft.durations)


class Drafts:
    """Makes drafts of one model under an architecture with rings.

    Assumes of ``durations_of`` that a kernel's time depends on the kernel alone, a read's on its bytes and
    how many are in flight, a copy's on its bytes.
    """

    def __init__(
        self,
        program: Program,
        durations_of: DurationsOf,
        architecture: Architecture = ARCHITECTURES["auto"],
        regions: tuple[Region, ...] = (),
    ) -> None:
        self.program = program
        self._durations_of = durations_of
        self._architecture = of_weights(architecture, program)
        self._loading = loading_bytes(program, self._architecture)
        self._regions = regions
        self.same = program.made(SameSpans)
        self._levels: dict[int, Level] = {}
        self._spliced: dict[tuple[int, LaterChunks], Level] = {}
        self._moves: dict[_Move, tuple[float, ...]] = {}

    @property
    def chunk_advice(self) -> str:
        """How a smaller --chunk would help, to end a message with."""
        return chunk_advice(self.program, self._architecture)

    @property
    def all_resident_bytes(self) -> int:
        """Weight memory where all spans stay."""
        return self._loading + self.same.n_bytes(range(len(self.program.spans)))

    @property
    def smallest_bytes(self) -> int:
        """The least weight memory that can run the model: what always stays, and the largest chunk.

        Where weights pass two rings that may be more than all weights in memory.
        """
        finest = self.level(self.program.largest_chunk_bytes)
        streamed = finest.kept_bytes + self.with_staging(finest.largest_bytes, finest.units)
        return min(streamed, self.all_resident_bytes)

    def with_staging(self, ring_bytes: int, units: Sequence[Unit]) -> int:
        """Return what a ring of ``ring_bytes`` for ``units`` takes, its staging included."""
        largest = max((unit.stored for unit in units), default=0)
        return ring_bytes + staging_bytes(
            self._architecture, units, ring_bytes, largest, self._loading
        )

    def largest_ring(self, n_bytes: int, units: Sequence[Unit]) -> int:
        """Return the size of a ring for ``units`` that takes ``n_bytes``, its staging included."""
        if not self._architecture.copies:
            return n_bytes // PAGE_BYTES * PAGE_BYTES
        beside = n_bytes - max(self._loading, *(unit.stored for unit in units), 0)
        even = int(n_bytes / (1 + staging_share(units)))
        ring = max(min(beside, even), 0) // PAGE_BYTES * PAGE_BYTES
        # Staging is whole pages: a few more may fit.
        while self.with_staging(ring + PAGE_BYTES, units) <= n_bytes:
            ring += PAGE_BYTES
        return ring

    def level_of(self, choice: Choice) -> Level:
        """Return the kernels of the chunks that are chosen."""
        limit = chunk_limit(self.program, self._architecture, choice) or 0
        if not choice.later_chunks:
            return self.level(limit)
        key = limit, choice.later_chunks
        if key not in self._spliced:
            starts, limits = zip((0, limit), *choice.later_chunks, strict=True)
            self._spliced[key] = _spliced([self.level(each) for each in limits], starts)
        return self._spliced[key]

    def level(self, chunk_bytes: int) -> Level:
        """Return the kernels of chunks of up to ``chunk_bytes``."""
        if chunk_bytes not in self._levels:
            choice = Choice(chunk_bytes=chunk_bytes, regions=self._regions)
            plan = make_plan(self.program, self._architecture, choice=choice)
            self._levels[chunk_bytes] = _level_of(self.program, plan, self._durations_of(plan))
        return self._levels[chunk_bytes]

    def plan(self, choice: Choice) -> Plan:
        """Return the plan that the draft of ``choice`` is of."""
        choice = replace(choice, regions=self._regions)
        return make_plan(self.program, self._architecture, choice=choice)

    def draft(self, choice: Choice) -> Draft:
        """Return the draft of ``choice``.

        Raises:
            LoaderError: the ring is smaller than what it must hold.
        """
        go_on()
        level = self.level_of(choice)
        kept = set(choice.resident)
        units = [unit for unit in level.units if not kept.issuperset(unit.spans)]
        stream = streaming(self._architecture, choice, units, self._loading)
        rows, starts = self._rows(level, stream, choice.ahead == "idle")
        ends = [*starts[1:], len(level.until) - 1]
        kernels = tuple(
            level.until[end] - level.until[start] for start, end in zip(starts, ends, strict=False)
        )
        groups = [
            stream.groups[read % len(stream.groups)] for read in range(len(stream.read_places))
        ]
        lengths = [(group.length, group.stored_length) for group in groups]
        beside = reads_in_flight(rows, choice.depth)
        moves = self._moves_of(level, list(zip(lengths, beside, strict=True)), len(stream.groups))
        resident = (unit for unit in level.units if kept.issuperset(unit.spans))
        kept_bytes = self.same.n_bytes(span for unit in resident for span in unit.spans)
        return Draft(
            choice,
            level,
            tuple(units),
            stream.groups,
            stream.n_bytes + stream.staging_bytes + level.kept_bytes + kept_bytes,
            starts,
            rows,
            Durations(
                (*(moves or [()] * (len(rows) - 1)), kernels),
                choice.depth,
                level.slowdown,
                level.disturbance,
            ),
        )

    def _rows(
        self, level: Level, stream: Streaming, idle: bool
    ) -> tuple[tuple[Stage, ...], tuple[int, ...]]:
        """Return stages whose kernels are merged, and the first kernel of each."""
        kernels = len(level.until) - 1
        users = stream.users
        cuts = sorted({0, *(cut for item in users for cut in (item.start, item.stop))} - {kernels})
        merged = [
            range(bisect_left(cuts, item.start), bisect_left(cuts, item.stop)) for item in users
        ]
        starts = tuple(cuts) if kernels else ()
        return stages(
            self._architecture,
            Steps(
                merged, len(starts), stream.read_places, stream.copy_places, idle, stream.in_arena
            ),
        ), starts

    def _moves_of(
        self, level: Level, moves: Sequence[_Move], copies: int
    ) -> list[tuple[float, ...]]:
        """Return the seconds of each read, and of so many ``copies`` where there are any."""
        if not moves:
            return []
        unknown = sorted(set(moves) - self._moves.keys(), key=str)
        for depth in {depth for _, depth in unknown}:
            self._ask(level, [length for length, many in unknown if many == depth], depth)
        reads, *others = zip(*(self._moves[move] for move in moves), strict=True)
        return [reads, *(row[:copies] for row in others)]

    def _ask(self, level: Level, lengths: Sequence[_Length], depth: int) -> None:
        """Keep how long reads of ``lengths`` take, and their copies, where ``depth`` are in flight."""
        before = [lengths[0]] * (depth - 1)  # what is in flight beside the first
        asked = self._durations_of(_moving(level.plan, [*before, *lengths], depth)).stages[:-1]
        seconds = zip(*(row[len(before) :] for row in asked), strict=True)
        self._moves |= {(length, depth): row for length, row in zip(lengths, seconds, strict=True)}


def _moving(plan: Plan, lengths: Sequence[_Length], depth: int) -> Plan:
    """Return ``plan`` with one read (and copy) of each length, to ask how long they take."""
    places = tuple(RingPlace(0, length, 0) for length, _ in lengths)
    free = tuple((0,) * len(plan.stages) for _ in lengths)
    return replace(
        plan,
        choice=replace(plan.choice, depth=depth),
        groups=tuple(ReadGroup(0, 0, *length) for length in lengths),
        read_places=places,
        places=places,
        users=tuple(range(0) for _ in lengths),
        stages=tuple(Stage(stage.name, free) for stage in plan.stages),
    )
