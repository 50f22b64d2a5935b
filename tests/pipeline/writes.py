"""A plan's operations in bytes, for the judge of schedules, and what of it lies where."""

from collections.abc import Sequence

from pipeline.planning.plan import Plan, PlanBuffer
from tests.pipeline.schedule.judge import Write

#: Where the judge has the arena: behind every ring.
_ARENA = 1 << 40


def writes(plan: Plan) -> list[tuple[str, list[Write]]]:
    """Return what each stage before the kernels writes, and the kernels that use it."""
    count = len(plan.stages[0])
    targets = read_buffers(plan)
    none = [range(0)] * (count - len(plan.reads))
    if not plan.copies:
        return [("read", _writes(targets, [*plan.users, *none]))]
    steps = [range(copy.read, copy.read + 1) for copy in plan.copies]
    return [
        ("read", _writes(targets, [*steps, *none])),
        ("copy", _writes(plan.weights, plan.users)),
    ]


def read_buffers(plan: Plan) -> list[PlanBuffer]:
    """Return where each read writes, those for the next sweep included."""
    count = len(plan.reads)
    return [plan.buffers[plan.reads[i % count].buffer] for i in range(len(plan.stages[0]))]


def streamed(plan: Plan) -> list[int]:
    """Return the spans that reads bring, in their order."""
    return [span for read in plan.reads for span in read.spans]


def arena_weights(plan: Plan) -> list[PlanBuffer]:
    """Return where in the arena weights of regions lie while these run, in their order."""
    return [buffer for buffer in plan.weights if buffer.space == "arena"]


def _writes(buffers: Sequence[PlanBuffer], users: Sequence[range]) -> list[Write]:
    return [
        Write(buffer.offset + _ARENA * (buffer.space == "arena"), buffer.n_bytes, kernels)
        for buffer, kernels in zip(buffers, users, strict=True)
    ]
