"""Ways to stream a network within so many bytes for weights: rings, reads, chunks, resident spans.

Few of each, since estimates order no more of them; what is best is measured.
"""

from collections.abc import Iterator
from itertools import islice, product

from loader.errors import LoaderError
from pipeline.planning.make import make_plan
from pipeline.planning.plan import Choice, Plan, PlanError
from pipeline.planning.smallest import UNDIVIDED
from pipeline.planning.streaming import PAGE_BYTES, READ_BYTES, READS_IN_RING, loading_bytes
from pipeline.program.choice import SameSpans
from pipeline.program.program import Program

#: More ring than this gained nothing: three of the largest reads.
USEFUL_RING_BYTES = READS_IN_RING * READ_BYTES
# Rings, as parts of what is there for weights, and reads that each holds, the most promising first: large
# rings are read ahead of a request, and what they leave keeps weights in memory; large reads cost less a
# byte, small ones come earlier.
_STREAMS = tuple(product((READS_IN_RING, 2 * READS_IN_RING, 2), (1.0, 0.5, 0.25)))


def streams(
    program: Program, smallest: Plan, weight_bytes: int, most: int | None = None
) -> Iterator[Plan]:
    """Yield the first ``most`` plans with up to ``weight_bytes`` for weights, the rest as in ``smallest``.

    At least ``smallest`` itself; None: all there are. Of ``auto`` some that give the ring more, others that
    keep the last layers in memory, where weights are large and quick to compute with. Where all
    weights fit, only that one.
    """
    architecture, regions = smallest.architecture, smallest.choice.regions
    if architecture.tuned == "auto" and weight_bytes >= all_weight_bytes(program, smallest):
        choice = Choice(chunk_bytes=UNDIVIDED, resident=tuple(_streamed(program)), regions=regions)
        yield make_plan(program, architecture, choice=choice)
        return
    yield smallest
    if architecture.resident:
        return
    for choice in islice(_choices(program, smallest, weight_bytes), most and most - 1):
        try:
            plan = make_plan(program, architecture, choice=choice)
        except (
            LoaderError,
            PlanError,
        ):  # what is stored of a read is more than its share of the ring
            continue
        if plan.weight_bytes <= weight_bytes:  # staging may be a larger part of a larger ring
            yield plan


def _choices(program: Program, smallest: Plan, weight_bytes: int) -> Iterator[Choice]:
    architecture = smallest.architecture
    same, streamed = program.made(SameSpans), _streamed(program)
    is_auto = architecture.tuned == "auto"
    # With each byte of the ring comes so much where the disk writes to.
    ratio = 1 + smallest.staging_bytes / max(smallest.ring_bytes, 1)
    room = weight_bytes - smallest.resident_bytes
    largest = int(room / ratio)
    useful = min(largest, USEFUL_RING_BYTES)
    rings = [(READS_IN_RING, useful)]
    if is_auto:
        rings += ((reads, int(part * largest)) for reads, part in _STREAMS)
    tried = set[tuple[int, int]]()
    for reads, n_bytes in rings:
        ring = n_bytes // PAGE_BYTES * PAGE_BYTES
        read = min(ring // reads, READ_BYTES)
        if ring <= smallest.ring_bytes or (ring, read) in tried:
            continue
        tried.add((ring, read))
        yield Choice(
            ring,
            max(read, program.largest_chunk_bytes),
            read if is_auto else None,
            resident=_last(same, streamed, room - int(ratio * ring)) if is_auto else (),
            ahead=architecture.ahead if program.reads_ahead else "never",
            regions=smallest.choice.regions,
        )


def all_weight_bytes(program: Program, smallest: Plan) -> int:
    """Return the ``weight_bytes`` from which on ``streams`` keeps all weights in memory."""
    streamed_bytes = program.made(SameSpans).n_bytes(_streamed(program))
    loading = loading_bytes(program, smallest.architecture)
    return smallest.resident_bytes + streamed_bytes + loading


def _streamed(program: Program) -> list[int]:
    return [index for index, span in enumerate(program.spans) if not span.resident]


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
