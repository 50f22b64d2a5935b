"""The plan of one model: where every byte lies and what that adds up to, before any is taken."""

from dataclasses import asdict, dataclass
from typing import Any

from loader.ring import Group, Place, group_spans, place
from models.manifest import Manifest
from pipeline.architectures import Architecture
from pipeline.planning.arena import lifetimes, plan_arena, roots
from pipeline.schedule import Stage

# Reads of this size cost the least CPU a byte (docs/architecture.md, "Measured"); three of them are
# in the ring at once where it is large enough.
READ_BYTES = 4 << 20
_READS_IN_RING = 3
# More ring than this gained nothing in any measurement.
USEFUL_RING_BYTES = _READS_IN_RING * READ_BYTES
_PAGE_BYTES = 4096


class PlanError(Exception):
    """What was asked for cannot be planned; the message has the figures."""


@dataclass(frozen=True)
class Plan:
    """Frozen and JSON-serialisable. All sizes in bytes.

    ``streamed`` lists the spans that pass through the ring, ``groups`` and ``places`` how. ``resident``
    lists the others. ``spans[i]`` is the offset of span i in the buffer it belongs to, ring or resident;
    ``values[i]`` that of value i in the arena.
    """

    architecture: Architecture
    ring_bytes: int
    resident_bytes: int
    arena_bytes: int
    scratch_bytes: int
    session_bytes: int
    io_bytes: int
    streamed: tuple[int, ...]
    groups: tuple[Group, ...]
    places: tuple[Place, ...]
    resident: tuple[int, ...]
    spans: tuple[int, ...]
    values: tuple[int, ...]
    stages: tuple[Stage, ...]

    @property
    def weight_bytes(self) -> int:
        return self.ring_bytes + self.resident_bytes

    @property
    def memory(self) -> dict[str, int]:
        """Bytes by kind, the kinds of the budget and of the metrics."""
        return {
            "ring": self.ring_bytes,
            "resident": self.resident_bytes,
            "arena": self.arena_bytes,
            "scratch": self.scratch_bytes,
            "io": self.io_bytes,
            "sessions": self.session_bytes,
        }

    @property
    def total_bytes(self) -> int:
        return sum(self.memory.values())

    @property
    def read_bytes(self) -> int:
        """Bytes read from the disk in each sweep."""
        return sum(group.length for group in self.groups)

    def as_dict(self) -> dict[str, Any]:
        """Return what users want to know: sizes and names, not every offset."""
        return {
            "architecture": self.architecture.name,
            "total_bytes": self.total_bytes,
            "weight_bytes": self.weight_bytes,
            **{f"{kind}_bytes": n_bytes for kind, n_bytes in self.memory.items()},
            "read_bytes": self.read_bytes,
            "reads": [asdict(group) for group in self.groups],
        }


def make_plan(
    manifest: Manifest, architecture: Architecture, ring_bytes: int | None = None
) -> Plan:
    """Plan one model under ``architecture`` with a ring of ``ring_bytes`` (None: as much as helps).

    Raises:
        PlanError: the ring is smaller than the largest chunk.
    """
    spans = manifest.spans
    kept = [i for i, span in enumerate(spans) if span.resident or architecture.resident]
    streamed = [i for i in range(len(spans)) if i not in set(kept)]
    largest = max((spans[i].length for i in streamed), default=0)
    ring = useful_ring_bytes(manifest, architecture) if ring_bytes is None else ring_bytes
    ring = min(_page_aligned(ring), sum(spans[i].length for i in streamed))
    if ring < largest:
        raise PlanError(
            f"{manifest.name}: a ring of {ring_bytes} bytes is smaller than the largest chunk "
            f"({largest} bytes); compile with a smaller --chunk for less"
        )
    read_bytes = max(min(READ_BYTES, ring // _READS_IN_RING), _PAGE_BYTES)
    groups = group_spans([(spans[i].offset, spans[i].length) for i in streamed], read_bytes)
    places = place(groups, ring)
    arena = plan_arena(lifetimes(manifest))
    ports = sum(port.n_bytes for port in (*manifest.inputs, *manifest.outputs))
    return Plan(
        architecture=architecture,
        ring_bytes=ring,
        resident_bytes=sum(spans[i].length for i in kept),
        arena_bytes=arena.n_bytes,
        scratch_bytes=manifest.scratch_bytes,
        session_bytes=manifest.session_bytes,
        io_bytes=ports,
        streamed=tuple(streamed),
        groups=tuple(groups),
        places=tuple(places),
        resident=tuple(kept),
        spans=_span_offsets(manifest, kept, streamed, groups, places),
        values=tuple(arena.offsets[root] + offset for root, offset in roots(manifest)),
        stages=_stages(manifest, streamed, groups, places),
    )


def useful_ring_bytes(manifest: Manifest, architecture: Architecture) -> int:
    """Return the ring beyond which more memory does not help."""
    if architecture.resident:
        return 0
    return max(USEFUL_RING_BYTES, manifest.largest_chunk_bytes)


def _page_aligned(n_bytes: int) -> int:
    return -(-n_bytes // _PAGE_BYTES) * _PAGE_BYTES


def _span_offsets(
    manifest: Manifest,
    kept: list[int],
    streamed: list[int],
    groups: list[Group],
    places: list[Place],
) -> tuple[int, ...]:
    """Return where each span lies: kept ones behind each other, streamed ones in their group's place."""
    offsets = [0] * len(manifest.spans)

    def put(spans: list[int], position: int) -> None:
        for span in spans:
            offsets[span] = position
            position += manifest.spans[span].length

    put(kept, 0)
    for group, item in zip(groups, places, strict=True):
        put(streamed[group.first_span : group.end_span], item.offset)
    return tuple(offsets)


def kernels_of(manifest: Manifest, streamed: list[int], groups: list[Group]) -> list[range]:
    """Return, for each read, the pieces [first, end) that use what it brought."""
    user = {piece.span: index for index, piece in enumerate(manifest.pieces)}
    return [
        range(user[streamed[group.first_span]], user[streamed[group.end_span - 1]] + 1)
        for group in groups
    ]


def _stages(
    manifest: Manifest, streamed: list[int], groups: list[Group], places: list[Place]
) -> tuple[Stage, ...]:
    """Turn reads and places into the numbers that the schedule works with (pipeline/schedule.py)."""
    kernels = kernels_of(manifest, streamed, groups)
    needs = [0] * len(manifest.pieces)
    for read, users in enumerate(kernels):
        for piece in users:
            needs[piece] = read + 1
    # A piece without weights depends on nothing but its turn.
    room = tuple(kernels[item.after - 1].stop if item.after else 0 for item in places)
    return (
        Stage("read", (0,) * len(groups), room),
        Stage("kernel", tuple(needs), (0,) * len(needs)),
    )
