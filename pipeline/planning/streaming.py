"""How weights pass through a ring: sizes, reads, places, and whose kernels use what each brings."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from loader.ring import ReadGroup, RingPlace, group_spans, place, place_ahead, place_in_slots
from pipeline.planning.plan import Choice
from pipeline.program.program import Program
from pipeline.program.steps import Step, in_arena, units
from pipeline.schedule.architectures import Architecture


def spaced(sizes: Sequence[int], ratio: float) -> list[int]:
    """Return the first of ``sizes``, and each that is at least ``ratio`` times the last one returned."""
    kept = list(sizes[:1])
    for size in sizes[1:]:
        if size >= ratio * kept[-1]:
            kept.append(size)
    return kept


# Weights that come and go together: of one piece, or of all layers of a region.


@dataclass(frozen=True, slots=True)
class Unit:
    """The streamed weights of ``steps``: ``spans`` of ``length`` bytes, and ``stored`` in the file.

    ``offset``: where they are among all weights. ``in_arena``: they lie there while these run, and not in
    the ring.
    """

    steps: range
    spans: range
    offset: int
    length: int
    stored: int
    in_arena: bool = False


def streamed_units(
    program: Program, steps: Sequence[Step], kept: Collection[int]
) -> tuple[Unit, ...]:
    """Return the weights of ``steps`` that are streamed where the spans ``kept`` are resident."""
    spans = program.spans
    return tuple(
        Unit(
            users,
            own,
            spans[own.start].offset,
            sum(spans[i].length for i in own),
            sum(spans[i].file_length for i in own),
            in_arena(steps[users.start]),
        )
        for users, own in units(steps)
        if own and not all(span in kept for span in own)
    )


# Rings and the reads into them.

PAGE_BYTES = 4096
# Reads of this size cost the least CPU a byte (docs/explanation/architecture/reading.md); three of them are
# in the ring at once where it is large enough.
READ_BYTES = 4 << 20
READS_IN_RING = 3


@dataclass(frozen=True)
class Streaming:
    """A ring of ``n_bytes``, or two where weights are copied: the disk writes to that of ``staging_bytes``.

    ``read_places``: where it writes; ``copy_places``: of the other ring, none where that is the same.
    ``groups`` of units, each one read; ``users[g]``: the steps that use what read g brings.
    ``read_places`` has those of the next sweep's head, too, and none of reads into the arena.
    """

    n_bytes: int
    groups: tuple[ReadGroup, ...]
    users: tuple[range, ...]
    read_places: tuple[RingPlace | None, ...]
    copy_places: tuple[RingPlace | None, ...]
    staging_bytes: int = 0


def needed_bytes(architecture: Architecture, units: Sequence[Unit]) -> int:
    """Return the least bytes of a ring through which ``units`` can stream."""
    through = (unit.length for unit in units if not unit.in_arena)
    return (architecture.slots or 1) * max(through, default=0)


def loading_bytes(program: Program, architecture: Architecture) -> int:
    """Return where the disk writes resident spans to that are copied, one after the other: the largest.

    Of all spans, resident or not, so that it does not depend on which are; tables do not pass through it.
    """
    if not (architecture.copies or program.expands):
        return 0
    lengths = (
        span.file_length for index, span in enumerate(program.spans) if index not in program.tables
    )
    return max(lengths, default=0)


def streaming(
    architecture: Architecture, choice: Choice, units: Sequence[Unit], loading: int = 0
) -> Streaming:
    """Return how ``units`` stream as is chosen; staging is at least ``loading`` bytes.

    Raises:
        LoaderError: the ring is smaller than what it must hold.
    """
    needed = needed_bytes(architecture, units)
    asked = needed if choice.ring_bytes is None else choice.ring_bytes
    whole = max(sum(unit.length for unit in units if not unit.in_arena), needed)
    n_bytes = min(-(-asked // PAGE_BYTES) * PAGE_BYTES, whole)
    alone = {number for number, unit in enumerate(units) if unit.in_arena}
    groups = _groups(units, _read_limit(architecture, choice, n_bytes, units), alone)
    elsewhere = {number for number, group in enumerate(groups) if group.first_span in alone}
    places = _places(architecture, groups, n_bytes, elsewhere)
    largest_read = max((group.read_bytes for group in groups), default=0)
    staged_bytes = staging_bytes(architecture, units, n_bytes, largest_read, loading)
    read_places = places
    if architecture.copies:
        staged = [replace(group, length=group.read_bytes) for group in groups]
        read_places = _places(architecture, staged, staged_bytes, elsewhere)
    ahead = choice.ahead != "never" and architecture.order == "free"
    users = (
        range(units[group.first_span].steps.start, units[group.end_span - 1].steps.stop)
        for group in groups
    )
    return Streaming(
        n_bytes,
        tuple(groups),
        tuple(users),
        (*read_places, *(place_ahead(read_places) if ahead else ())),
        tuple(places if architecture.copies else ()),
        staged_bytes,
    )


def staging_share(units: Sequence[Unit]) -> float:
    """Return what staging takes beside a ring, as a part of that: what is stored of what is in memory."""
    through = [unit for unit in units if not unit.in_arena]
    length = sum(unit.length for unit in through)
    return sum(unit.stored for unit in through) / length if length else 1.0


def staging_bytes(
    architecture: Architecture,
    units: Sequence[Unit],
    ring_bytes: int,
    largest_read: int,
    loading: int,
) -> int:
    """Return the size of staging: it holds as many weights as the ring does, as they are stored.

    At least it holds reads of ``largest_read``, and what it takes while ``loading``.
    """
    if not architecture.copies:
        return loading
    even = int(ring_bytes * staging_share(units)) // PAGE_BYTES * PAGE_BYTES
    return max(even, (architecture.slots or 1) * largest_read, loading)


def _groups(units: Sequence[Unit], read_bytes: int, alone: Collection[int]) -> list[ReadGroup]:
    parts = [(unit.offset, unit.length) for unit in units]
    if all(unit.stored == unit.length for unit in units):
        return group_spans(parts, read_bytes, alone)
    return group_spans(parts, read_bytes, alone, [unit.stored for unit in units])


def _places(
    architecture: Architecture,
    groups: Sequence[ReadGroup],
    n_bytes: int,
    elsewhere: Collection[int],
) -> list[RingPlace | None]:
    if not architecture.slots:
        return place(groups, n_bytes, elsewhere)
    slot = n_bytes // architecture.slots // PAGE_BYTES * PAGE_BYTES
    return [*place_in_slots(groups, slot, architecture.slots)]


def _read_limit(
    architecture: Architecture, choice: Choice, ring_bytes: int, units: Sequence[Unit]
) -> int:
    """Return the most bytes that one read brings, as they are in memory.

    In slots, a chunk is a step of its own as in the paper.
    """
    if architecture.slots:
        return 0
    if choice.read_bytes is not None:
        return min(choice.read_bytes, ring_bytes)
    most = int(READ_BYTES / max(staging_share(units), 1 / READS_IN_RING))
    return max(min(most, ring_bytes // READS_IN_RING), PAGE_BYTES)
