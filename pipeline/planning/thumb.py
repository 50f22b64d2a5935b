"""Plans without a profile: what fits in so many bytes, by rules that held in every measurement."""

from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache, partial
from itertools import accumulate

from pipeline.planning.joined_launches import joinable_bytes, joined
from pipeline.planning.make import make_plan
from pipeline.planning.plan import Choice, Plan, PlanError
from pipeline.planning.streaming import READ_BYTES, READS_IN_RING, loading_bytes, spaced
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

# More ring than this gained nothing: three of the largest reads.
USEFUL_RING_BYTES = READS_IN_RING * READ_BYTES
_WHOLE = 1 << 62
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
    sizes = [*spaced([finest, *sorted(chunk_sizes(program))], _RATIO), _WHOLE]
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
    smallest = joined(program, plan, 0)
    yield smallest
    saved = joinable_bytes(program, plan.steps)
    if not saved or not plan.ring_bytes:
        return
    for resident, ring in _more_weights(program, plan, saved):
        for chunk in {plan.choice.chunk_bytes, _WHOLE}:
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
                    smallest, joined(program, candidate, 0), key=lambda item: item.total_bytes
                )
                yield smallest


def _more_weights(
    program: Program, plan: Plan, most: int
) -> Iterator[tuple[tuple[int, ...], int | None]]:
    """Yield the spans that stay, from the smallest on, or rings, that take up to ``most`` bytes more."""
    streamed = [number for number, span in enumerate(program.spans) if not span.resident]
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


def rule_of_thumb(
    least: SmallestPlans, weight_bytes: int, regions: tuple[Region, ...] = ()
) -> Plan:
    """Return a plan with up to ``weight_bytes`` for weights, or the smallest one.

    The ring comes first, up to what is useful; ``auto`` keeps the last layers in what is left, where
    weights are large and quick to compute with.
    """
    program, architecture = least.program, least.architecture
    smallest = least.of(regions)
    if architecture.resident:
        return smallest
    # With each byte of the ring comes so much where the disk writes to.
    ratio = 1 + smallest.staging_bytes / max(smallest.ring_bytes, 1)
    room = weight_bytes - smallest.resident_bytes
    ring = min(int(room / ratio), USEFUL_RING_BYTES)
    if architecture.tuned != "auto":
        return _in_ring(program, architecture, ring, smallest)
    streamed = [i for i, span in enumerate(program.spans) if not span.resident]
    same = program.made(SameSpans)
    if room >= same.n_bytes(streamed) + loading_bytes(program, architecture):
        choice = Choice(chunk_bytes=_WHOLE, resident=tuple(streamed), regions=regions)
        return make_plan(program, architecture, choice=choice)
    kept = _last(same, streamed, room - int(ratio * ring))
    return _in_ring(program, architecture, ring, smallest, kept)


def _in_ring(
    program: Program,
    architecture: Architecture,
    ring_bytes: int,
    smallest: Plan,
    kept: tuple[int, ...] = (),
) -> Plan:
    if ring_bytes <= smallest.ring_bytes:
        return smallest
    chunk = max(ring_bytes // READS_IN_RING, program.largest_chunk_bytes)
    choice = Choice(
        ring_bytes // 4096 * 4096,
        chunk,
        resident=kept,
        ahead=architecture.ahead,
        regions=smallest.choice.regions,
    )
    return make_plan(program, architecture, choice=choice)


def _last(same: SameSpans, streamed: list[int], n_bytes: int) -> tuple[int, ...]:
    """Return the last of the ``streamed`` spans that fit in ``n_bytes``, and all that are the same."""
    kept = set[int]()
    for index in reversed(streamed):
        if index not in kept:
            n_bytes -= same.n_bytes([index])
            if n_bytes < 0:
                break
            kept.update(same.with_same([index]))
    return tuple(sorted(kept))
