"""The smallest plan of a model, whatever it takes: budgets are refused, and named, by it."""

from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache, partial
from itertools import accumulate

from pipeline.planning.joined_launches import joinable_bytes, smallest_launches
from pipeline.planning.make import make_plan
from pipeline.planning.plan import Choice, Plan, PlanError
from pipeline.planning.streaming import spaced, streamed_units
from pipeline.program.choice import (
    SameSpans,
    choose_pieces,
    chunk_sizes,
    finest_positions,
    ring_bytes,
)
from pipeline.program.program import Program
from pipeline.program.region_plan import Region
from pipeline.schedule.architectures import Architecture

#: A size of chunks that leaves each layer whole.
UNDIVIDED = 1 << 62
_RATIO = 1.5
# Of a few variants, with the chunks that were chosen, and with those that are best.
_MOST_PLANS = 16


def smallest_plan(
    program: Program,
    architecture: Architecture,
    regions: tuple[Region, ...] = (),
    chunk_bytes: int | None = None,
) -> Plan:
    """Return the plan of the least memory that can run the model, ``regions`` on rows.

    Of the sizes of chunks: small ones stream through a small ring, but each takes a binding. With
    ``chunk_bytes`` that is decided.
    """
    if chunk_bytes is not None:
        return make_plan(
            program, architecture, choice=Choice(chunk_bytes=chunk_bytes, regions=regions)
        )
    finest = program.largest_chunk_bytes
    sizes = [*spaced([finest, *sorted(chunk_sizes(program))], _RATIO), UNDIVIDED]
    best: Plan | None = None
    for size in sizes:
        if best is not None and _ring_alone_takes(program, best, size):
            break  # and that of larger ones even more
        plan = make_plan(program, architecture, choice=Choice(chunk_bytes=size, regions=regions))
        if best is None or plan.total_bytes < best.total_bytes:
            best = plan
    assert best is not None
    return best


def _ring_alone_takes(program: Program, best: Plan, chunk_bytes: int) -> bool:
    """Return whether larger chunks cannot be better: what all plans have, and their ring, take as much."""
    if best.architecture.resident:
        return False
    inside = {piece for region in best.choice.regions for piece in region.pieces}
    pieces = choose_pieces(program, chunk_bytes)
    ring = max(
        (
            ring_bytes(program, piece)
            for piece, at in zip(pieces, finest_positions(program, pieces), strict=True)
            if at.start not in inside
        ),
        default=0,
    )
    return best.arena_bytes + best.resident_bytes + best.io_bytes + ring >= best.total_bytes


class SmallestPlans:
    """The smallest plans of a model; the last ones are kept, as a search needs them again and again."""

    def __init__(self, program: Program, architecture: Architecture) -> None:
        self.program = program
        self.architecture = architecture
        self._made = lru_cache(maxsize=_MOST_PLANS)(partial(smallest_plan, program, architecture))

    def of(self, regions: tuple[Region, ...] = (), chunk_bytes: int | None = None) -> Plan:
        """Return the plan of the least memory as ``smallest_plan`` does."""
        return self._made(regions, chunk_bytes)


def smaller_plans(program: Program, plan: Plan) -> Iterator[Plan]:
    """Yield ``plan`` as fewer launches take less, also with weights kept, or a ring, that allow these.

    Kernels of a launch share what a session takes, and a launch ends where weights are waited for. What
    takes more than that could save is not tried.
    """
    plan = _with_shared(program, plan)
    smallest = smallest_launches(program, plan)
    yield smallest
    saved = joinable_bytes(program, plan.steps)
    if not saved or not plan.ring_bytes:
        return
    for resident, ring in _more_weights(program, plan, saved):
        for chunk in {plan.choice.chunk_bytes, UNDIVIDED}:
            choice = replace(
                plan.choice,
                chunk_bytes=chunk,
                resident=resident,
                ring_bytes=ring,
                read_bytes=ring or plan.ring_bytes,
            )
            try:
                candidate = make_plan(program, plan.architecture, choice=choice)
            except PlanError:  # the largest chunk needs a larger ring
                continue
            if (
                candidate.total_bytes - joinable_bytes(program, candidate.steps)
                < smallest.total_bytes
            ):
                smallest = min(
                    smallest,
                    smallest_launches(program, candidate),
                    key=lambda item: item.total_bytes,
                )
                yield smallest


def _with_shared(program: Program, plan: Plan) -> Plan:
    """Return ``plan`` with weights that layers share resident instead of streamed, if it takes no more.

    They are there once and read once, where a ring of as much memory is filled anew for each layer.
    """
    same = program.made(SameSpans)
    units = streamed_units(program, plan.steps, set(plan.resident))
    groups = {spans for unit in units if len(spans := same.with_same(unit.spans)) > len(unit.spans)}
    if plan.architecture.tuned != "auto" or not groups:
        return plan
    best, ring = plan, plan.ring_bytes + plan.staging_bytes
    resident = set(plan.choice.resident)
    for spans in sorted(groups, key=lambda spans: (-same.n_bytes(spans), spans)):
        resident.update(spans)
        if same.n_bytes(resident) - plan.resident_bytes > ring:
            break
        choice = replace(plan.choice, resident=tuple(sorted(resident)))
        candidate = make_plan(program, plan.architecture, choice=choice)
        if candidate.total_bytes <= best.total_bytes and candidate.read_bytes < best.read_bytes:
            best = candidate
    return best


def _more_weights(
    program: Program, plan: Plan, most: int
) -> Iterator[tuple[tuple[int, ...], int | None]]:
    """Yield the spans that stay, from the smallest on, or rings, that take up to ``most`` bytes more."""
    streamed = [
        number
        for number, span in enumerate(program.spans)
        if not span.resident and number not in program.tables
    ]
    lengths = sorted(program.spans[number].length for number in streamed)
    ring = plan.ring_bytes + plan.staging_bytes
    sums = zip(lengths, accumulate(lengths), strict=True)
    kept = [length for length, sum_ in sums if sum_ <= most + ring]
    if plan.architecture.tuned == "auto":
        for length in sorted({*spaced(kept, _RATIO), *kept[-1:]}):
            yield tuple(n for n in streamed if program.spans[n].length <= length), None
    rings = [size for size in accumulate(lengths[::-1]) if ring < size <= most + ring]
    for size in sorted({*spaced([plan.ring_bytes, *rings], _RATIO), *rings[-1:]}):
        yield (), size
