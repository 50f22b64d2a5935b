"""Make the plan of one model: choose its kernels, place its weights, order its operations."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from loader.ring import Group, Place, group_spans, place, place_ahead, place_in_slots
from models.packs.manifest import Manifest
from pipeline.planning.advice import chunk_advice
from pipeline.planning.arena import plan_arena
from pipeline.planning.plan import Choice, Plan, PlanError
from pipeline.planning.units import Unit, streamed_units
from pipeline.planning.words import sized
from pipeline.program.lives import lifetimes, never_whole, placed
from pipeline.program.steps import (
    Step,
    choose_steps,
    object_bytes,
    scratch_bytes,
    session_bytes,
    spans_of,
)
from pipeline.schedule.architectures import Architecture
from pipeline.schedule.constraints import Steps, stages

# Reads of this size cost the least CPU a byte (docs/measurements.md); three of them are
# in the ring at once where it is large enough.
READ_BYTES = 4 << 20
READS_IN_RING = 3
_PAGE_BYTES = 4096
_MIN_CHUNK_BYTES = 64 << 10
_MAX_CHUNK_BYTES = 4 << 20
_CHUNKS_A_MODEL = 16


@dataclass(frozen=True)
class _Buffers:
    """Where streamed weights pass: a ring, or two of the same size where they are copied."""

    n_bytes: int
    groups: list[Group]
    read_places: list[Place]
    copy_places: list[Place]


def make_plan(
    manifest: Manifest,
    architecture: Architecture,
    ring_bytes: int | None = None,
    choice: Choice | None = None,
) -> Plan:
    """Plan one model under ``architecture``.

    ``ring_bytes``: of each ring, short for a ``choice`` of nothing else; None: as the equation says.

    Raises:
        PlanError: the ring is smaller than the largest chunk.
    """
    choice = choice or Choice()
    if ring_bytes is not None:
        choice = replace(choice, ring_bytes=ring_bytes)
    steps = choose_steps(manifest, chunk_limit(manifest, architecture, choice), choice.regions)
    kept = _resident_spans(manifest, architecture, choice, steps)
    streamed = streamed_units(manifest, steps, set(kept))
    largest = max((unit.length for unit in streamed), default=0)
    buffers = _buffers(manifest, architecture, choice, streamed)
    count = len(buffers.groups)
    users = [
        range(streamed[group.first_span].steps.start, streamed[group.end_span - 1].steps.stop)
        for group in buffers.groups
    ]
    order = Steps(
        users, len(steps), buffers.read_places, buffers.copy_places, choice.ahead == "idle"
    )
    shown = buffers.copy_places if architecture.copies else buffers.read_places[:count]
    resident_bytes = sum(manifest.spans[i].length for i in kept)
    apart = never_whole(manifest, steps) if choice.regions else frozenset()
    arena = plan_arena(lifetimes(manifest, steps, apart))
    return Plan(
        architecture=architecture,
        choice=choice,
        steps=steps,
        largest_chunk_bytes=largest,
        staging_bytes=buffers.n_bytes if architecture.copies else 0,
        ring_bytes=buffers.n_bytes,
        resident_bytes=resident_bytes,
        arena_bytes=_arena_bytes(arena.n_bytes, choice.lanes),
        scratch_bytes=scratch_bytes(steps),
        session_bytes=session_bytes(manifest, steps, choice.lanes),
        object_bytes=object_bytes(manifest, steps, choice.lanes),
        io_bytes=sum(port.n_bytes for port in manifest.inputs if port.default is not None),
        streamed=tuple(span for unit in streamed for span in unit.spans),
        groups=tuple(_in_spans(buffers.groups, streamed)),
        read_places=tuple(buffers.read_places),
        places=tuple(shown),
        resident=tuple(kept),
        spans=_span_offsets(manifest, kept, streamed, buffers.groups, shown),
        values=(
            *(arena.offsets[root] + offset for root, offset in placed(manifest, steps, apart)),
            *arena.offsets[len(manifest.values) :],
        ),
        users=tuple(users),
        stages=stages(architecture, order),
    )


def _arena_bytes(lane_bytes: int, lanes: int) -> int:
    """Return what the arenas of ``lanes`` take; where there are several, each begins on a page."""
    return lane_bytes if lanes == 1 else lanes * (-(-lane_bytes // _PAGE_BYTES) * _PAGE_BYTES)


def chunk_limit(manifest: Manifest, architecture: Architecture, choice: Choice) -> int | None:
    """Return the most streamed weights of one piece; None: layers stay whole."""
    if choice.chunk_bytes is not None:
        return choice.chunk_bytes
    if architecture.resident:
        return None
    even = manifest.weight_bytes // _CHUNKS_A_MODEL
    limit = min(max(even, _MIN_CHUNK_BYTES), _MAX_CHUNK_BYTES)
    ring = choice.ring_bytes
    return limit if ring is None else min(limit, ring // (architecture.slots or 1))


def _resident_spans(
    manifest: Manifest, architecture: Architecture, choice: Choice, steps: Sequence[Step]
) -> list[int]:
    """Return the spans that stay in memory: those of whole pieces, and those that all chunks share."""
    spans = manifest.spans
    wanted = set(range(len(spans))) if architecture.resident else set(choice.resident)
    kept = {i for i, span in enumerate(spans) if span.resident}
    for step in steps:
        own = spans_of(step)
        if own and wanted.issuperset(own):
            kept.update(own)
    return sorted(kept)


def _buffers(
    manifest: Manifest, architecture: Architecture, choice: Choice, units: Sequence[Unit]
) -> _Buffers:
    """Size and fill the buffers that streamed weights pass.

    Raises:
        PlanError: they are smaller than the largest chunk.
    """
    slots = architecture.slots or 1
    needed = slots * max((unit.length for unit in units), default=0)
    asked = needed if choice.ring_bytes is None else choice.ring_bytes
    if asked < needed:
        raise PlanError(
            f"{manifest.name}: a ring of {sized(asked)} is smaller than {_count(slots)}the largest "
            f"chunk, {sized(needed // slots)}: give as much{chunk_advice(manifest, architecture)}"
        )
    whole = max(sum(unit.length for unit in units), needed)
    n_bytes = min(-(-asked // _PAGE_BYTES) * _PAGE_BYTES, whole)
    parts = [(unit.offset, unit.length) for unit in units]
    groups = group_spans(parts, read_limit(architecture, choice, n_bytes))
    if architecture.slots:
        places = place_in_slots(groups, n_bytes // slots // _PAGE_BYTES * _PAGE_BYTES, slots)
    else:
        places = place(groups, n_bytes)
    copies = places if architecture.copies else []
    return _Buffers(n_bytes, groups, with_head(architecture, choice, places), copies)


def with_head(architecture: Architecture, choice: Choice, places: Sequence[Place]) -> list[Place]:
    """Return where all reads of a sweep write: ``places``, and those of the next sweep's head."""
    ahead = choice.ahead != "never" and not architecture.copies
    return [*places, *(place_ahead(places) if ahead else [])]


def _count(slots: int) -> str:
    return f"{slots} times " if slots > 1 else ""


def read_limit(architecture: Architecture, choice: Choice, ring_bytes: int) -> int:
    """Return the most bytes of one read: in slots, a chunk is a step of its own as in the paper."""
    if architecture.slots:
        return 0
    if choice.read_bytes is not None:
        return min(choice.read_bytes, ring_bytes)
    return max(min(READ_BYTES, ring_bytes // READS_IN_RING), _PAGE_BYTES)


def _in_spans(groups: Sequence[Group], units: Sequence[Unit]) -> list[Group]:
    """Return ``groups`` of units as groups of positions in the list of streamed spans."""
    ends = [0]
    for unit in units:
        ends.append(ends[-1] + len(unit.spans))
    return [Group(ends[group.first_span], ends[group.end_span], group.length) for group in groups]


def _span_offsets(
    manifest: Manifest,
    kept: Sequence[int],
    units: Sequence[Unit],
    groups: Sequence[Group],
    places: Sequence[Place],
) -> tuple[int, ...]:
    """Return where each span lies: kept ones behind each other, streamed ones in their group's place."""
    offsets = [0] * len(manifest.spans)

    def put(spans: Sequence[int], position: int) -> None:
        for span in spans:
            offsets[span] = position
            position += manifest.spans[span].length

    put(kept, 0)
    for group, item in zip(groups, places, strict=True):
        own = units[group.first_span : group.end_span]
        put([span for unit in own for span in unit.spans], item.offset)
    return tuple(offsets)
