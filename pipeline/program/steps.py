"""The steps of a sweep: pieces of a program, in the chunks that were chosen, and phases of regions.

This is what a plan is about and an engine runs: variants of a part of a network, chunks joined to one
kernel or its layers on rows, become other steps here.
"""

import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from pipeline.program.choice import (
    choose_pieces,
    finest_positions,
)
from pipeline.program.program import PreparedPiece, Program
from pipeline.program.region_plan import Region, RegionError, RegionPlan
from pipeline.program.regions import plan_region
from pipeline.program.row_network import RowNetwork

# What a copy of rows takes in Python: two views, and what holds them. Measured 450 bytes.
MOVE_BYTES = 512
# What Python's objects take beside these: of a program for each piece and value, of plan and engine for
# each step (docs/research/process.md).
_RECORD_BYTES = 700
STEP_BYTES = 2800
# Plans of regions that are kept of a model, or as many as one choice has: planners ask for few again and
# again, in the same order.
_MOST_PLANS = 24


@dataclass(frozen=True, eq=False, slots=True)
class RegionSteps:
    """A region of ``program``: its plan, its weights, where its strips are numbered from.

    ``span`` and ``n_spans``: weights that are there for all of its phases.
    """

    program: Program
    plan: RegionPlan
    span: int | None
    n_spans: int
    first_strip: int

    @property
    def network(self) -> RowNetwork:
        """The network that the plan is of; only planners need it."""
        return row_network(self.program)


@dataclass(frozen=True, slots=True)
class Phase:
    """Phase ``number`` of a region: what it does is one step, which nothing interrupts."""

    region: RegionSteps
    number: int

    @property
    def span(self) -> int | None:
        return self.region.span

    @property
    def n_spans(self) -> int:
        return self.region.n_spans

    @property
    def scratch_bytes(self) -> int:
        """Return what plain convolutions and gates allocate; the blocked layout and elements nothing."""
        return self.region.plan.scratch_bytes


Step = PreparedPiece | Phase


def choose_steps(
    program: Program,
    chunk_bytes: int | None,
    regions: Sequence[Region] = (),
) -> tuple[Step, ...]:
    """Return the steps of a sweep: ``regions`` phase by phase, the rest in chunks as ``choose_pieces``.

    Raises:
        RegionError: pieces of a region do not run on rows.
    """
    pieces = choose_pieces(program, chunk_bytes)
    if not regions:
        return pieces
    if any(region.end_piece > program.own.stop for region in regions):
        raise RegionError(f"a region ends after the last piece, {program.own.stop - 1}")
    program.made(_RegionPlans).room_for(len(regions))
    inside = {piece: region for region in regions for piece in region.pieces}
    steps: list[Step] = []
    strips = 0
    numbered = zip(pieces, finest_positions(program, pieces), strict=True)
    for region, run in groupby(numbered, lambda item: inside.get(item[1].start)):
        if region is None:
            steps.extend(piece for piece, _ in run)
            continue
        run_pieces = [piece for piece, _ in run]
        phases = _phases(program, region, run_pieces, strips)
        strips += len(phases[0].region.plan.strips)
        steps.extend(phases)
    return tuple(steps)


def _phases(
    program: Program, region: Region, pieces: Sequence[PreparedPiece], first_strip: int
) -> list[Phase]:
    plan = planned_region(program, region)
    spans = [piece for piece in pieces if piece.span is not None]
    first = spans[0].span if spans else None
    count = sum(piece.n_spans for piece in spans) or 1
    region_steps = RegionSteps(program, plan, first, count, first_strip)
    return [Phase(region_steps, number) for number in range(len(plan.phases))]


def row_network(program: Program) -> RowNetwork:
    """Return the part of ``program`` that runs on rows; made once."""
    return program.made(RowNetwork)


def planned_region(program: Program, region: Region) -> RegionPlan:
    """Return the plan of ``region``; made once."""
    return program.made(_RegionPlans).plan(region)


class _RegionPlans:
    """Plans of regions of ``program``: the last ones that planners asked for.

    Thread-safe, as ``Program.made`` is.
    """

    def __init__(self, program: Program) -> None:
        self._network = row_network(program)
        self._plans: dict[Region, RegionPlan] = {}
        self._most = _MOST_PLANS
        self._changing = threading.Lock()

    def room_for(self, regions: int) -> None:
        """Keep the plans of so many regions at least."""
        with self._changing:
            self._most = max(self._most, regions)

    def plan(self, region: Region) -> RegionPlan:
        """Return the plan of ``region``, and let go of the oldest ones that are too many."""
        plan = self._plans.get(region)
        if plan is None:
            plan = plan_region(self._network, region)
            with self._changing:
                while len(self._plans) >= self._most:
                    del self._plans[next(iter(self._plans))]
                self._plans[region] = plan
        return plan


def spans_of(step: Step) -> range:
    """Return the spans whose weights ``step`` needs, beside those that always stay."""
    return range(0) if step.span is None else range(step.span, step.span + step.n_spans)


def in_arena(step: Step) -> bool:
    """Return whether the weights of ``step`` lie in the arena while it, or all of its region, runs."""
    return isinstance(step, Phase) and step.region.plan.region.in_arena


def units(steps: Sequence[Step]) -> Iterator[tuple[range, range]]:
    """Yield the steps that need the same streamed weights, and these: one piece, or all of a region."""
    position = 0
    for _, run in groupby(steps, lambda step: step.region if isinstance(step, Phase) else step):
        same_steps = list(run)
        if isinstance(same_steps[0], Phase):
            yield range(position, position + len(same_steps)), spans_of(same_steps[0])
        else:
            for index, piece in enumerate(same_steps, position):
                yield range(index, index + 1), spans_of(piece)
        position += len(same_steps)


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


def regions_of(steps: Sequence[Step]) -> list[RegionSteps]:
    """Return the regions of ``steps``, each once, in order."""
    return list(dict.fromkeys(step.region for step in steps if isinstance(step, Phase)))


def scratch_bytes(steps: Sequence[Step]) -> int:
    """Return what any one of ``steps`` allocates at most while it runs."""
    return max((step.scratch_bytes for step in steps), default=0)


def reserved_scratch(steps: Sequence[Step], n_bytes: int) -> int:
    """Return how much of the ``n_bytes`` that are counted for ``steps`` a device should reserve.

    What kernels unroll is a block or two. What was measured may be many, which lie in a heap between those
    of requests and leave holes: these are better mapped each time.
    """
    others = [step for step in steps if not _is_measured(step)]
    return n_bytes if len(others) == len(steps) else scratch_bytes(others)


def _is_measured(step: Step) -> bool:
    unrolled = step.unrolled if isinstance(step, PreparedPiece) else None
    return unrolled is not None and unrolled.measured_bytes > 0


def object_bytes(program: Program, steps: Sequence[Step], lanes: int = 1) -> int:
    """Return about what Python's objects take of a model that runs ``steps``, beside its sessions."""
    records = len(program.own) + len(program.values)
    return _RECORD_BYTES * records + lanes * STEP_BYTES * len(steps)
