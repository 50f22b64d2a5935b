"""The buffers of a plan: what lies in each, and in which one everything of the network lies."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from pipeline.planning.plan import Holds, Location, PlanBuffer, PlanCopy, PlanRead, Space
from pipeline.planning.streaming import Streaming, Unit
from pipeline.program.choice import SameSpans
from pipeline.program.lives import Lifetime, placed, taken_by_rows
from pipeline.program.program import Program
from pipeline.program.steps import Step, regions_of, units


@dataclass
class BufferLayout:
    """Buffers of ``program``, one by one; ``apart``: values that exist as their parts only."""

    program: Program
    steps: Sequence[Step]
    apart: frozenset[int]
    buffers: list[PlanBuffer] = field(default_factory=list)
    values: list[Location | None] = field(default_factory=list)
    spans: list[Location | None] = field(default_factory=list)
    line_buffers: range = range(0)
    #: Where in the arena weights of regions lie while these run, in the order of their reads.
    _weights: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.spans = [None] * len(self.program.spans)

    def arena(self, live_ranges: Sequence[Lifetime], offsets: Sequence[int]) -> None:
        """Add what lies in the arena: values, line buffers, then weights, as ``lifetimes`` lists them."""
        values = self.program.values
        roots: dict[int, int] = {}
        for index, (life, offset) in enumerate(zip(live_ranges, offsets, strict=False)):
            if index < len(values) and life.start < life.end and not values[index].is_loose:
                roots[index] = self._add("value", index, "arena", offset, life.n_bytes)
        for index in sorted(taken_by_rows(self.program, self.steps)):
            roots[index] = self._add("value", index, "request", 0, values[index].n_bytes)
        self.values = [
            Location(roots[root], offset) if root in roots else None
            for root, offset in placed(self.program, self.steps, self.apart)
        ]
        count = sum(len(region.plan.strips) for region in regions_of(self.steps))
        self.line_buffers = range(len(self.buffers), len(self.buffers) + count)
        rest = list(zip(live_ranges, offsets, strict=True))[len(values) :]
        for index, (life, offset) in enumerate(rest[:count]):
            self._add("line_buffer", index, "arena", offset, life.n_bytes)
        self._weights = [offset for _, offset in rest[count:]]

    def resident(self, spans: Sequence[int], same: SameSpans) -> None:
        """Add resident ``spans``, each after the one before; those that are the same are there once.

        Spans of one kernel share a buffer: they are one operand where chunks are merged.
        """
        not_first = {same.first(span) for _, run in units(self.steps) for span in run[1:]}
        there: dict[int, Location] = {}
        end = 0
        for span in sorted(spans, key=lambda span: (same.first(span), span)):
            first, length = same.first(span), self.program.spans[span].length
            if first not in there:
                before = there.get(first - 1) if first in not_first else None
                if before is None:
                    there[first] = Location(self._add("weights", span, "resident", end, 0), 0)
                else:
                    offset = end - self.buffers[before.buffer].offset
                    there[first] = Location(before.buffer, offset)
                end += length
                self._grow(there[first].buffer, end)
            self.spans[span] = there[first]

    def streamed(
        self, weights: Sequence[Unit], stream: Streaming
    ) -> tuple[tuple[PlanRead, ...], tuple[PlanCopy, ...]]:
        """Add what ``stream`` loads of ``weights``; return its reads and copies."""
        reads: list[PlanRead] = []
        copies: list[PlanCopy] = []
        in_arena = iter(self._weights)
        for index, group in enumerate(stream.groups):
            spans = tuple(
                span for unit in weights[group.first_span : group.end_span] for span in unit.spans
            )
            slot = stream.read_places[index]
            if slot is None:
                buffer = self._add("weights", spans[0], "arena", next(in_arena), group.length)
            else:
                space: Space = "staging" if stream.copy_places else "ring"
                buffer = self._add("weights", spans[0], space, slot.offset, slot.length)
            reads.append(PlanRead(spans, buffer, group.read_bytes))
            if stream.copy_places and (copied := stream.copy_places[index]) is not None:
                buffer = self._add("weights", spans[0], "ring", copied.offset, copied.length)
                copies.append(PlanCopy(index, buffer))
            self._fill(buffer, spans)
        return tuple(reads), tuple(copies)

    def _fill(self, buffer: int, spans: Sequence[int]) -> None:
        """Note that ``spans`` lie in a buffer, each after the one before."""
        offset = 0
        for span in spans:
            self.spans[span] = Location(buffer, offset)
            offset += self.program.spans[span].length

    def _grow(self, buffer: int, end: int) -> None:
        """Have a buffer end at ``end`` of its space."""
        old = self.buffers[buffer]
        self.buffers[buffer] = old._replace(n_bytes=end - old.offset)

    def _add(self, holds: Holds, item: int, space: Space, offset: int, n_bytes: int) -> int:
        self.buffers.append(PlanBuffer(holds, item, space, offset, n_bytes))
        return len(self.buffers) - 1
