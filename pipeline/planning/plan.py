"""The plan of one model: where every byte lies and what that adds up to, before any is taken.

The memory of a plan is *spaces*, in which *buffers* lie, and *reserves* for what has no buffer: scratch of
kernels, sessions, objects of Python, and values that inputs have by default. What happens is three queues,
reads, copies and steps: each operation waits for so many of every queue to end. Which bytes steps read and
write is in calls.py; validate.py derives from that how long each buffer lives, and checks that the plan
can run so.
"""

from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from itertools import accumulate
from struct import Struct
from typing import Any, Literal, NamedTuple, Self

from models.records import NonNegativeInt, PositiveInt
from pipeline.program.program import PreparedPiece
from pipeline.program.region_plan import Region
from pipeline.program.steps import Step, spans_of
from pipeline.program.work import macs_ratio
from pipeline.schedule.architectures import Architecture
from pipeline.schedule.schedule import Stage


class PlanError(Exception):
    """What was asked for cannot be planned; the message has the figures."""


class InvalidPlanError(PlanError):
    """A plan that cannot run as it says, a fault of the program; the message says what is wrong."""


Ahead = Literal["never", "idle", "tail"]
# What each shape of a network has for itself; all else is there once, as large as one of them needs.
_ADDED = frozenset({"sessions", "objects"})


@dataclass(frozen=True)
class Choice:
    """What a planner decides beside the architecture; None takes the default. Sizes in bytes.

    ``ring_bytes``: of each ring. ``chunk_bytes``: the most weights of one kernel. ``read_bytes``: the most
    of one read. ``depth``: reads in flight. ``resident``: spans kept beside those that always are.
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
    joined_bytes: NonNegativeInt = 0


# What a plan is made of: buffers, where things lie in them, and what moves weights.

#: Memory in which buffers lie. Each lane has an arena of its own; a ``request`` is the caller's memory, of
#: which rows are taken as they are needed; an ``edge`` lies between two partitions. ``staging``: the disk
#: writes there what is copied before use.
Space = Literal["staging", "ring", "resident", "arena", "request", "edge"]
#: What lies in a buffer: a value, and all that lie in it; rows or channels of values; weights.
Holds = Literal["value", "line_buffer", "weights"]


class PlanBuffer(NamedTuple):
    """Bytes [offset, offset + n_bytes) of ``space``.

    ``id``: of the value, of the line buffer among all of the plan, of the first span of the weights; of an
    edge the piece before which it lies.
    """

    holds: Holds
    id: int
    space: Space
    offset: int
    n_bytes: int

    @property
    def end(self) -> int:
        return self.offset + self.n_bytes


class Location(NamedTuple):
    """``offset`` bytes after where buffer ``buffer`` of a plan begins, by its index."""

    buffer: int
    offset: int


@dataclass(frozen=True, slots=True)
class Locations:
    """Locations by index, of as many things as there are values or spans: in 12 bytes each.

    ``buffers``: 4 bytes each, -1 where there is no location; ``offsets``: 8.
    """

    buffers: bytes
    offsets: bytes

    @classmethod
    def of(cls, locations: Iterable[Location | None]) -> Self:
        pairs = [location or (-1, 0) for location in locations]
        buffers, offsets = zip(*pairs, strict=True) if pairs else ((), ())
        return cls(array("i", buffers).tobytes(), array("q", offsets).tobytes())

    def __getitem__(self, index: int) -> Location | None:
        (buffer,) = _BUFFER.unpack_from(self.buffers, index * _BUFFER.size)
        (offset,) = _OFFSET.unpack_from(self.offsets, index * _OFFSET.size)
        return None if buffer < 0 else Location(buffer, offset)

    def __len__(self) -> int:
        return len(self.buffers) // _BUFFER.size

    def __iter__(self) -> Iterator[Location | None]:
        return map(self.__getitem__, range(len(self)))


_BUFFER, _OFFSET = Struct("=i"), Struct("=q")


class PlanRead(NamedTuple):
    """``n_bytes`` of the file, those of ``spans``, come to a buffer."""

    spans: tuple[int, ...]
    buffer: int
    n_bytes: int


class PlanCopy(NamedTuple):
    """What read ``read`` has loaded comes to a buffer as kernels use it."""

    read: int
    buffer: int


@dataclass(frozen=True)
class Plan:
    """Frozen and serialisable. All sizes in bytes.

    ``steps``: the kernels, or phases of regions; ``runs``: of steps, each at least two, that are one
    launch. ``values[i]`` and ``spans[i]``: where value i and span i lie, None where the plan gives them
    no buffer: what is not used, what exists in parts only, and values of unknown size. ``line_buffers``:
    the indices of those of all regions, in order. ``reads`` of an inference, and with a copy stage
    ``copies`` of what they load. ``stages``: what reads, copies and steps wait for; reads after the last
    of ``reads`` are the first ones again, for the next inference. ``largest_chunk_bytes``: the most
    streamed weights of one step, s_max of the equations. ``others``: plans of the other shapes of the
    network, which run in the same memory, one at a time (shapes.py); ``session_bytes`` and ``object_bytes``
    of each are what it adds.
    """

    architecture: Architecture
    choice: Choice
    steps: tuple[Step, ...]
    runs: tuple[range, ...]
    buffers: tuple[PlanBuffer, ...] = field(repr=False)
    values: Locations = field(repr=False)
    spans: Locations = field(repr=False)
    line_buffers: range
    reads: tuple[PlanRead, ...]
    copies: tuple[PlanCopy, ...]
    stages: tuple[Stage, ...] = field(repr=False)
    largest_chunk_bytes: int
    staging_bytes: int
    ring_bytes: int
    resident_bytes: int
    arena_bytes: int
    scratch_bytes: int
    session_bytes: int
    object_bytes: int
    io_bytes: int
    tokenizer_bytes: int = 0
    others: tuple["Plan", ...] = field(default=(), repr=False)

    @property
    def launches(self) -> int:
        """How many launches a sweep of one lane is."""
        return len(self.steps) - sum(len(run) - 1 for run in self.runs)

    @property
    def resident(self) -> tuple[int, ...]:
        """The spans that stay in memory."""
        return tuple(
            span
            for span, location in enumerate(self.spans)
            if location is not None and self.buffers[location.buffer].space == "resident"
        )

    def offset(self, location: Location | None) -> int:
        """Return where in its space something lies.

        Raises:
            InvalidPlanError: it has no buffer.
        """
        if location is None:
            raise InvalidPlanError("the plan has no buffer for what a step or a port uses")
        return self.buffers[location.buffer].offset + location.offset

    @property
    def weights(self) -> list[PlanBuffer]:
        """Where kernels find what each read loads."""
        return [self.buffers[moved.buffer] for moved in self.copies or self.reads]

    @property
    def users(self) -> tuple[range, ...]:
        """For each read the steps that use what it loads."""
        loads = {span: index for index, read in enumerate(self.reads) for span in read.spans}
        users = [range(0)] * len(self.reads)
        for step, spans in enumerate(map(spans_of, self.steps)):
            for read in {loads[span] for span in spans if span in loads}:
                users[read] = range(users[read].start if users[read] else step, step + 1)
        return tuple(users)

    @property
    def reads_rows(self) -> bool:
        """Whether a step reads rows of a table, which are no part of ``reads``."""
        return any(
            isinstance(step, PreparedPiece) and step.table_span is not None for step in self.steps
        )

    @property
    def weight_bytes(self) -> int:
        if self.others:
            memory = self.memory
            return memory["staging"] + memory["ring"] + memory["resident"]
        return self.staging_bytes + self.ring_bytes + self.resident_bytes

    @property
    def partitions(self) -> tuple["Plan", ...]:
        """The plans that run at once: it is the only one."""
        return (self,)

    @property
    def cuts(self) -> tuple[int, ...]:
        """The pieces before which further partitions begin."""
        return ()

    @property
    def batch_size(self) -> int:
        """Requests that one inference can compute."""
        return self.choice.lanes

    @property
    def regions(self) -> tuple[Region, ...]:
        return self.choice.regions

    @property
    def lane_bytes(self) -> int:
        """The arena of one lane; they lie one behind the other."""
        return self.arena_bytes // self.choice.lanes

    @property
    def memory(self) -> dict[str, int]:
        """Bytes by kind, the kinds of the budget and of the metrics; with those of ``others``."""
        if self.others:
            kinds = [self.shape_memory, *(plan.shape_memory for plan in self.others)]
            return {
                kind: (sum if kind in _ADDED else max)(memory[kind] for memory in kinds)
                for kind in kinds[0]
            }
        return self.shape_memory

    @property
    def shape_memory(self) -> dict[str, int]:
        """Bytes by kind, without those of other shapes."""
        return {
            "staging": self.staging_bytes,
            "ring": self.ring_bytes,
            "resident": self.resident_bytes,
            "arena": self.arena_bytes,
            "scratch": self.scratch_bytes,
            "io": self.io_bytes,
            "sessions": self.session_bytes,
            "objects": self.object_bytes,
            # Of models that take texts alone.
            **({"tokenizer": self.tokenizer_bytes} if self.tokenizer_bytes else {}),
        }

    @property
    def total_bytes(self) -> int:
        return sum(self.memory.values())

    @property
    def read_bytes(self) -> int:
        """Bytes read from the disk for each sweep."""
        return sum(read.n_bytes for read in self.reads)

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
            "reads": len(self.reads),
            "regions": [asdict(region) for region in self.choice.regions],
            "macs_ratio": macs_ratio(self.steps),
            "lanes": self.choice.lanes,
            "launches": self.launches,
            **({"shapes": [plan.as_dict() for plan in self.others]} if self.others else {}),
        }


# The plan of a network whose partitions compute at once: a plan for each, and the buffers between them.
#
# Partitions share no memory: what one uses while it runs, another uses at the same moment for another
# frame (seed 000, Algorithm 1: never one buffer for two partitions of one set of J). An edge between two
# has two buffers: one is written for a frame while the other is read for the frame before.

#: Of each edge between partitions.
BUFFERS = 2


@dataclass(frozen=True)
class PartitionedPlan:
    """``partitions``, which begin at piece 0 and at each of ``cuts``, and the buffers of their edges."""

    cuts: tuple[int, ...]
    partitions: tuple[Plan, ...]
    edges: tuple[PlanBuffer, ...]

    @property
    def architecture(self) -> Architecture:
        return self.partitions[0].architecture

    @property
    def batch_size(self) -> int:
        """Requests that one inference of a partition can compute."""
        return 1

    @property
    def regions(self) -> tuple[Region, ...]:
        """Those of all partitions."""
        return tuple(region for plan in self.partitions for region in plan.regions)

    @property
    def edge_bytes(self) -> int:
        """All buffers of all edges."""
        return sum(buffer.n_bytes for buffer in self.edges)

    @property
    def memory(self) -> dict[str, int]:
        """Bytes by kind, as of a plan; edges are counted with the arenas."""
        kinds = self.partitions[0].memory
        memory = {kind: sum(plan.memory.get(kind, 0) for plan in self.partitions) for kind in kinds}
        return {**memory, "arena": memory["arena"] + self.edge_bytes}

    @property
    def total_bytes(self) -> int:
        return sum(self.memory.values())

    @property
    def weight_bytes(self) -> int:
        return sum(plan.weight_bytes for plan in self.partitions)

    @property
    def arena_bytes(self) -> int:
        return self.memory["arena"]

    @property
    def scratch_bytes(self) -> int:
        return self.memory["scratch"]

    @property
    def session_bytes(self) -> int:
        return sum(plan.session_bytes for plan in self.partitions)

    @property
    def object_bytes(self) -> int:
        return sum(plan.object_bytes for plan in self.partitions)

    @property
    def tokenizer_bytes(self) -> int:
        return sum(plan.tokenizer_bytes for plan in self.partitions)

    @property
    def io_bytes(self) -> int:
        return sum(plan.io_bytes for plan in self.partitions)

    @property
    def read_bytes(self) -> int:
        return sum(plan.read_bytes for plan in self.partitions)


AnyPlan = Plan | PartitionedPlan


def partitioned(
    partitions: Sequence[Plan], cuts: Sequence[int], edges: Sequence[int]
) -> PartitionedPlan:
    """Return the plan of ``partitions``, which begin at piece 0 and at ``cuts``; ``edges``: bytes there."""
    ends = [
        (cut, n_bytes) for cut, n_bytes in zip(cuts, edges, strict=True) for _ in range(BUFFERS)
    ]
    starts = accumulate((n_bytes for _, n_bytes in ends), initial=0)
    buffers = (
        PlanBuffer("value", cut, "edge", start, n_bytes)
        for start, (cut, n_bytes) in zip(starts, ends, strict=False)
    )
    return PartitionedPlan(tuple(cuts), tuple(partitions), tuple(buffers))
