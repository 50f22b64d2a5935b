"""The plan of one model: where every byte lies and what that adds up to, before any is taken."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from pydantic import NonNegativeInt, PositiveInt

from loader.ring import ReadGroup, RingPlace
from pipeline.program.region_plan import Region
from pipeline.program.steps import Step
from pipeline.program.work import macs_ratio
from pipeline.schedule.architectures import Architecture
from pipeline.schedule.schedule import Stage


class PlanError(Exception):
    """What was asked for cannot be planned; the message has the figures."""


Ahead = Literal["never", "idle", "tail"]


@dataclass(frozen=True)
class Choice:
    """What a planner decides beside the architecture; None takes the default. Sizes in bytes.

    ``ring_bytes``: of each ring. ``chunk_bytes``: the most weights of one kernel; ``later_chunks``: of
    layers from a piece of the program on, (piece, bytes), ascending. ``read_bytes``: the most of one read.
    ``depth``: reads in flight. ``resident``: spans kept beside those that always are.
    ``ahead``: whether the head of the next sweep is read into the ring, and when: in the ``idle`` time
    after a sweep, or already beside its ``tail`` as the ring empties. ``regions``: what runs on rows.
    ``lanes``: requests that one sweep can carry. ``joined_bytes``: the most that sessions may take beside
    those of single kernels, for short ones that nothing separates to run as one. A file of plans is read
    with these limits.
    """

    ring_bytes: NonNegativeInt | None = None
    chunk_bytes: NonNegativeInt | None = None
    read_bytes: NonNegativeInt | None = None
    depth: PositiveInt = 2
    resident: tuple[NonNegativeInt, ...] = ()
    ahead: Ahead = "never"
    regions: tuple[Region, ...] = ()
    lanes: PositiveInt = 1
    later_chunks: tuple[tuple[NonNegativeInt, NonNegativeInt], ...] = ()
    joined_bytes: NonNegativeInt = 0


@dataclass(frozen=True)
class Plan:
    """Frozen and JSON-serialisable. All sizes in bytes.

    ``steps``: the kernels, or phases of regions. ``streamed`` lists the spans that pass through the ring,
    ``groups`` and ``places`` how; with a copy stage the disk writes to ``read_places`` of the staging
    buffer first. ``resident`` lists the other spans. ``spans[i]`` is the offset of span i in the buffer it
    belongs to, ring or resident; ``values[i]`` that of value i in the arena, then those of the regions'
    strips; each lane has an arena like that. What is placed behind the ring's end lies in the
    arena, of the first lane: weights of a region while it runs. ``users[g]``: the steps that use what read
    g brings. ``runs``: of steps, each at least two, that are one launch.
    ``largest_chunk_bytes``: the most streamed weights of one step, s_max of the equations.
    """

    architecture: Architecture
    choice: Choice
    steps: tuple[Step, ...]
    largest_chunk_bytes: int
    staging_bytes: int
    ring_bytes: int
    resident_bytes: int
    arena_bytes: int
    scratch_bytes: int
    session_bytes: int
    object_bytes: int
    io_bytes: int
    streamed: tuple[int, ...]
    groups: tuple[ReadGroup, ...]
    read_places: tuple[RingPlace, ...]
    places: tuple[RingPlace, ...]
    resident: tuple[int, ...]
    spans: tuple[int, ...]
    values: tuple[int, ...]
    users: tuple[range, ...]
    runs: tuple[range, ...]
    stages: tuple[Stage, ...] = field(repr=False)

    @property
    def launches(self) -> int:
        """How many launches a sweep of one lane is."""
        return len(self.steps) - sum(len(run) - 1 for run in self.runs)

    @property
    def arena_weights(self) -> tuple[int, ...]:
        """Where in the arena weights of regions lie while these run, in their order."""
        behind = (place.offset - self.ring_bytes for place in self.places)
        return tuple(offset for offset in behind if offset >= 0)

    @property
    def weight_bytes(self) -> int:
        return self.staging_bytes + self.ring_bytes + self.resident_bytes

    @property
    def lane_bytes(self) -> int:
        """The arena of one lane; they lie one behind the other."""
        return self.arena_bytes // self.choice.lanes

    @property
    def memory(self) -> dict[str, int]:
        """Bytes by kind, the kinds of the budget and of the metrics."""
        return {
            "staging": self.staging_bytes,
            "ring": self.ring_bytes,
            "resident": self.resident_bytes,
            "arena": self.arena_bytes,
            "scratch": self.scratch_bytes,
            "io": self.io_bytes,
            "sessions": self.session_bytes,
            "objects": self.object_bytes,
        }

    @property
    def total_bytes(self) -> int:
        return sum(self.memory.values())

    @property
    def read_bytes(self) -> int:
        """Bytes read from the disk for each sweep."""
        return sum(group.read_bytes for group in self.groups)

    @property
    def equation_bytes(self) -> int:
        """The weight memory that the architecture's equation gives, with chunks in place of layers."""
        base = self.resident_bytes if self.architecture.resident else self.largest_chunk_bytes
        return self.architecture.factor * base

    def as_dict(self) -> dict[str, Any]:
        """Return what is shown to users: sizes and names, not every offset."""
        return {
            "architecture": self.architecture.name,
            "total_bytes": self.total_bytes,
            "weight_bytes": self.weight_bytes,
            **{f"{kind.removesuffix('s')}_bytes": taken for kind, taken in self.memory.items()},
            "largest_chunk_bytes": self.largest_chunk_bytes,
            "read_bytes": self.read_bytes,
            "reads": [asdict(group) for group in self.groups],
            "regions": [asdict(region) for region in self.choice.regions],
            "macs_ratio": macs_ratio(self.steps),
            "lanes": self.choice.lanes,
            "launches": self.launches,
        }


# The plan of a network whose partitions compute at once: a plan for each, and the edges between them.
#
# Partitions share no memory: what one uses while it runs, another uses at the same moment for another
# frame (seed 000, Algorithm 1: never one buffer for two partitions of one set of J). An edge between two
# has two buffers: one is written for a frame while the other is read for the frame before.

#: Of each edge between partitions.
BUFFERS = 2


@dataclass(frozen=True)
class PipelinePlan(Plan):
    """Sums over ``partitions``, which begin at piece 0 and at each of ``cuts``; sizes in bytes.

    ``edges``: one buffer of the edge at each cut; all are counted in ``arena_bytes``. Engines run the plans
    of partitions: here are no steps, and nothing lies anywhere.
    """

    cuts: tuple[int, ...]
    partitions: tuple[Plan, ...]
    edges: tuple[int, ...]

    @property
    def edge_bytes(self) -> int:
        """All buffers of all edges."""
        return BUFFERS * sum(self.edges)

    @property
    def launches(self) -> int:
        return sum(plan.launches for plan in self.partitions)

    @property
    def read_bytes(self) -> int:
        return sum(plan.read_bytes for plan in self.partitions)

    def as_dict(self) -> dict[str, Any]:
        return {
            **super().as_dict(),
            "cuts": list(self.cuts),
            "edge_bytes": self.edge_bytes,
            "partitions": [plan.as_dict() for plan in self.partitions],
        }


def pipeline_plan(
    partitions: Sequence[Plan], cuts: Sequence[int], edges: Sequence[int]
) -> PipelinePlan:
    """Return the plan of ``partitions``, which begin at piece 0 and at ``cuts``; ``edges``: bytes there."""
    first = partitions[0]
    return PipelinePlan(
        architecture=first.architecture,
        choice=Choice(),
        steps=(),
        largest_chunk_bytes=max(plan.largest_chunk_bytes for plan in partitions),
        staging_bytes=sum(plan.staging_bytes for plan in partitions),
        ring_bytes=sum(plan.ring_bytes for plan in partitions),
        resident_bytes=sum(plan.resident_bytes for plan in partitions),
        arena_bytes=sum(plan.arena_bytes for plan in partitions) + BUFFERS * sum(edges),
        scratch_bytes=sum(plan.scratch_bytes for plan in partitions),
        session_bytes=sum(plan.session_bytes for plan in partitions),
        object_bytes=sum(plan.object_bytes for plan in partitions),
        io_bytes=sum(plan.io_bytes for plan in partitions),
        streamed=(),
        groups=(),
        read_places=(),
        places=(),
        resident=(),
        spans=(),
        values=(),
        users=(),
        runs=(),
        stages=(Stage("kernel", ()),),
        cuts=tuple(cuts),
        partitions=tuple(partitions),
        edges=tuple(edges),
    )
