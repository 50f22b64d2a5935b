"""The arena of a plan over time, as boxes: what lies where, from when to when."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Literal

from pipeline.planning.live_ranges import MemoryUse, memory_use
from pipeline.planning.plan import AnyPlan, Holds, PartitionedPlan, Plan, PlanBuffer
from pipeline.program.program import Program
from pipeline.program.steps import Phase, regions_of

Kind = Literal["value", "strip", "weights"]
#: What the page calls it.
_KINDS: dict[Holds, Kind] = {"value": "value", "line_buffer": "strip", "weights": "weights"}


@dataclass(frozen=True, slots=True)
class MemoryBox:
    """Bytes [offset, offset + n_bytes) of the arena in the moments [start, end).

    A moment is a call. Of a region only those of one phase are moments, that which calls most: others are
    like it. Its strips hold rows; its weights are here where they lie in the arena.
    """

    name: str
    kind: Kind
    start: int
    end: int
    offset: int
    n_bytes: int


def arena_boxes(program: Program, plan: AnyPlan) -> list[MemoryBox]:
    """Return all that lies in the arena of ``plan``; nothing where partitions have their own."""
    if isinstance(plan, PartitionedPlan):
        return []
    use = memory_use(program, plan)
    moments = _moments(plan, use)
    names = _Names(program, plan)
    boxes = []
    for index, buffer in enumerate(plan.buffers):
        if buffer.space != "arena" or not buffer.n_bytes:
            continue
        for first, last in _live(use, index):
            start, end = moments[max(first, 0)], moments[last + 1]
            if start < end:
                where = start, end, buffer.offset, buffer.n_bytes
                boxes.append(MemoryBox(names.of(buffer), _KINDS[buffer.holds], *where))
    return boxes


def _live(use: MemoryUse, buffer: int) -> Sequence[tuple[int, int]]:
    """Return the first and the last call of each time that a buffer is live."""
    if buffer in use.uses:
        first, last = use.uses[buffer]
        return [(use.starts[first], use.starts[last + 1] - 1)]
    return use.liveness[buffer].live if buffer in use.liveness else ()


def _moments(plan: Plan, use: MemoryUse) -> list[int]:
    """Return the moment of each call, and twice the one behind all."""
    moments: list[int] = []
    now, position = 0, 0
    for region, run in groupby(
        plan.steps, lambda step: step.region if isinstance(step, Phase) else None
    ):
        steps = range(position, position + len(list(run)))
        drawn = range(use.starts[steps.start], use.starts[steps.stop])
        if region is not None:
            longest = max(steps, key=lambda step: use.starts[step + 1] - use.starts[step])
            drawn = range(use.starts[longest], use.starts[longest + 1])
        calls = range(use.starts[steps.start], use.starts[steps.stop])
        moments += (now + min(max(call - drawn.start, 0), len(drawn)) for call in calls)
        now, position = now + len(drawn), steps.stop
    return [*moments, now, now]


class _Names:
    """What lies in buffers of ``plan``, in words."""

    def __init__(self, program: Program, plan: Plan) -> None:
        self._values = program.values
        self._line_buffers = list(_line_buffers(plan))

    def of(self, buffer: PlanBuffer) -> str:
        match buffer.holds:
            case "value":
                return self._values[buffer.id].name
            case "line_buffer":
                return self._line_buffers[buffer.id]
            case "weights":
                return "weights of a region"


def _line_buffers(plan: Plan) -> Iterator[str]:
    for item in regions_of(plan.steps):
        region = item.plan.region
        for _ in item.plan.strips:
            yield f"strip, pieces {region.first_piece} to {region.end_piece - 1}"
