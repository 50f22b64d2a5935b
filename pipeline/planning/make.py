"""Make the plan of one model: choose its kernels, place its weights, order its operations."""

from collections.abc import Sequence
from dataclasses import replace

from pipeline.planning.arena import arenas, in_order
from pipeline.planning.buffers import BufferLayout
from pipeline.planning.joined_launches import SMALLEST_LAUNCHES, joined, smallest_launches
from pipeline.planning.plan import Choice, Locations, Plan, PlanError
from pipeline.planning.streaming import (
    PAGE_BYTES,
    Unit,
    loading_bytes,
    needed_bytes,
    streamed_units,
    streaming,
)
from pipeline.planning.words import chunk_advice, sized
from pipeline.program.choice import SameSpans
from pipeline.program.lives import lifetimes, never_whole
from pipeline.program.prepare import with_table
from pipeline.program.program import PreparedPiece, Program
from pipeline.program.region_plan import Region
from pipeline.program.sessions import session_bytes
from pipeline.program.steps import (
    Step,
    choose_steps,
    object_bytes,
    scratch_bytes,
    spans_of,
)
from pipeline.program.stopping import go_on
from pipeline.schedule.architectures import Architecture, with_copies
from pipeline.schedule.schedule import Steps, stages

_MIN_CHUNK_BYTES = 64 << 10
_MAX_CHUNK_BYTES = 4 << 20
_CHUNKS_A_MODEL = 16


def make_plan(
    program: Program,
    architecture: Architecture,
    ring_bytes: int | None = None,
    choice: Choice | None = None,
) -> Plan:
    """Plan one model under ``architecture``.

    ``ring_bytes``: of each ring, short for a ``choice`` of nothing else; None: as the equation says.

    Raises:
        PlanError: the ring is smaller than the largest chunk.
    """
    go_on()
    architecture = of_weights(architecture, program)
    choice = choice or Choice()
    if ring_bytes is not None:
        choice = replace(choice, ring_bytes=ring_bytes)
    if not program.reads_ahead:
        choice = replace(choice, ahead="never")
    regions = choice.regions
    if not reads_into_arena(program, architecture):
        regions = tuple(map(_in_ring, regions))
    limit = chunk_limit(program, architecture, choice)
    steps = _with_tables(program, architecture, choice, choose_steps(program, limit, regions))
    kept = _resident_spans(program, architecture, choice, steps)
    streamed = streamed_units(program, steps, set(kept))
    _check_ring(program, architecture, choice, streamed)
    loading = loading_bytes(program, architecture)
    stream = streaming(architecture, choice, streamed, loading)
    same = program.made(SameSpans)
    resident_bytes = same.n_bytes(kept)
    apart = never_whole(program, steps) if choice.regions else frozenset()
    live_ranges = lifetimes(program, steps, apart, frozenset(kept))
    arena = program.made(arenas)(in_order(live_ranges))
    layout = BufferLayout(program, steps, apart)
    layout.arena(live_ranges, arena.offsets)
    layout.resident(kept, same)
    reads, copies = layout.streamed(streamed, stream)
    order = Steps(
        stream.users, len(steps), stream.read_places, stream.copy_places, choice.ahead == "idle"
    )
    plan = Plan(
        architecture=architecture,
        choice=choice,
        steps=steps,
        runs=(),
        buffers=tuple(layout.buffers),
        values=Locations.of(layout.values),
        spans=Locations.of(layout.spans),
        line_buffers=layout.line_buffers,
        reads=reads,
        copies=copies,
        stages=stages(architecture, order),
        largest_chunk_bytes=max((unit.length for unit in streamed), default=0),
        staging_bytes=stream.staging_bytes,
        ring_bytes=stream.n_bytes,
        resident_bytes=resident_bytes,
        arena_bytes=_arena_bytes(arena.n_bytes, choice.lanes),
        scratch_bytes=scratch_bytes(steps),
        session_bytes=session_bytes(program, steps, choice.lanes),
        object_bytes=object_bytes(program, steps, choice.lanes),
        io_bytes=sum(port.n_bytes for port in program.inputs if port.default is not None),
        tokenizer_bytes=program.tokenizer_bytes,
    )
    if choice.joined_bytes == SMALLEST_LAUNCHES:
        return smallest_launches(program, plan)
    return joined(program, plan, choice.joined_bytes) if choice.joined_bytes else plan


def _with_tables(
    program: Program, architecture: Architecture, choice: Choice, steps: tuple[Step, ...]
) -> tuple[Step, ...]:
    """Return ``steps`` with the tables in memory that are to stay there.

    What comes there through staging stays in the file: staging would be as large.
    """
    if not program.tables or architecture.copies:
        return steps
    stays = (
        program.tables if architecture.resident else program.tables.intersection(choice.resident)
    )
    return tuple(
        with_table(step) if isinstance(step, PreparedPiece) and step.table_span in stays else step
        for step in steps
    )


def of_weights(architecture: Architecture, program: Program) -> Architecture:
    """Return ``architecture`` as it runs a pack: copies expand what is stored otherwise."""
    return with_copies(architecture) if program.expands else architecture


def reads_into_arena(program: Program, architecture: Architecture) -> bool:
    """Return whether the disk writes to where kernels read, and wherever there is room."""
    architecture = of_weights(architecture, program)
    return program.on_host and not (architecture.copies or architecture.slots)


def _in_ring(region: Region) -> Region:
    return replace(region, in_arena=False)


def _arena_bytes(lane_bytes: int, lanes: int) -> int:
    """Return what the arenas of ``lanes`` take; where there are several, each begins on a page."""
    return lane_bytes if lanes == 1 else lanes * (-(-lane_bytes // PAGE_BYTES) * PAGE_BYTES)


def chunk_limit(program: Program, architecture: Architecture, choice: Choice) -> int | None:
    """Return the most streamed weights of one piece; None: layers stay whole."""
    if choice.chunk_bytes is not None:
        return choice.chunk_bytes
    if architecture.resident:
        return None
    even = program.weight_bytes // _CHUNKS_A_MODEL
    limit = min(max(even, _MIN_CHUNK_BYTES), _MAX_CHUNK_BYTES)
    ring = choice.ring_bytes
    return limit if ring is None else min(limit, ring // (architecture.slots or 1))


def _resident_spans(
    program: Program, architecture: Architecture, choice: Choice, steps: Sequence[Step]
) -> list[int]:
    """Return the spans that stay in memory: those of whole pieces, and those that all chunks share."""
    spans = program.spans
    wanted = set(range(len(spans))) if architecture.resident else set(choice.resident)
    kept = {i for i, span in enumerate(spans) if span.resident}
    for step in steps:
        own = spans_of(step)
        if own and wanted.issuperset(own):
            kept.update(own)
    return sorted(kept)


def _check_ring(
    program: Program, architecture: Architecture, choice: Choice, units: Sequence[Unit]
) -> None:
    """Refuse a ring that is smaller than the largest chunk.

    Raises:
        PlanError: it is.
    """
    slots, needed = architecture.slots or 1, needed_bytes(architecture, units)
    if choice.ring_bytes is not None and choice.ring_bytes < needed:
        raise PlanError(
            f"{program.name}: a ring of {sized(choice.ring_bytes)} is smaller than {_count(slots)}the "
            f"largest chunk, {sized(needed // slots)}: give as much{chunk_advice(program, architecture)}"
        )


def _count(slots: int) -> str:
    return f"{slots} times " if slots > 1 else ""
