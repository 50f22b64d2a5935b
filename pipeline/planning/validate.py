"""Whether a plan can run, judged by buffers and waits alone, and nothing of how it was made.

No two buffers that are live in one moment share a byte; every byte lies in its buffer, and every buffer in
its space; weights come before they are used, and after the last use of what lay there; sizes are those that
are promised; and whatever has ended, something may start until all has ended. Live ranges are not stored in
a plan: they are derived of what calls read and write (live_ranges.py).
"""

from collections.abc import Iterator, Sequence
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from pipeline.planning.live_ranges import MemoryUse, Moments, memory_use, named
from pipeline.planning.plan import AnyPlan, InvalidPlanError, PartitionedPlan, Plan, PlanBuffer
from pipeline.program.partitions import Cuts
from pipeline.program.program import Program
from pipeline.program.steps import scratch_bytes
from pipeline.schedule.schedule import Stage

Ints = NDArray[np.int64]
#: Faults that a message lists.
_MAX_LISTED = 3


def validate(program: Program, plan: AnyPlan) -> None:
    """Check ``plan``, which is of ``program``.

    Raises:
        InvalidPlanError: it cannot run so.
    """
    _raise_any(program, violations(program, plan))


def validate_edges(program: Program, plan: PartitionedPlan) -> None:
    """Check what lies between the partitions of ``plan``; those are checked as they are opened.

    Raises:
        InvalidPlanError: they cannot run so.
    """
    _raise_any(program, _edges(program, plan))


def _raise_any(program: Program, violated: Iterator[str]) -> None:
    faults = list(violated)
    if faults:
        more = f"; and {len(faults) - _MAX_LISTED} more" if len(faults) > _MAX_LISTED else ""
        raise InvalidPlanError(f"{program.name}: {'; '.join(faults[:_MAX_LISTED])}{more}")


def violations(program: Program, plan: AnyPlan) -> Iterator[str]:
    """Yield what is wrong with ``plan``, in words; nothing where it can run."""
    if isinstance(plan, PartitionedPlan):
        yield from _edges(program, plan)
        for partition, single in zip(Cuts(program).parts(plan.cuts), plan.partitions, strict=True):
            yield from violations(partition, single)
        return
    yield from _sizes(program, plan)
    use = memory_use(program, plan)
    yield from use.faults
    released = _released(plan.stages)
    if released is None:
        yield "reads, copies and steps wait for each other"
        return
    yield from _order(plan, use, released)
    yield from _shared(plan, use, released)


def _edges(program: Program, plan: PartitionedPlan) -> Iterator[str]:
    """Yield what is wrong with the buffers of edges: they follow each other, each as large as its edge."""
    end, cuts = 0, Cuts(program)
    for buffer in plan.edges:
        if buffer.offset < end or buffer.n_bytes < cuts.edge_bytes(buffer.id):
            yield f"the edge at piece {buffer.id} has no buffer of its size"
        end = buffer.end


# Sizes: buffers in their spaces, and what is promised of them.


def _sizes(program: Program, plan: Plan) -> Iterator[str]:
    sizes = {
        "staging": plan.staging_bytes,
        "ring": plan.ring_bytes,
        "resident": plan.resident_bytes,
        "arena": plan.lane_bytes,
    }
    weights = plan.weights
    for buffer in plan.buffers:
        size = sizes.get(buffer.space, buffer.n_bytes)
        if buffer.offset < 0 or buffer.end > size:
            yield f"{named(buffer)} ends at {buffer.end} of {size} bytes"
    for index, read in enumerate(plan.reads):
        spans = [program.spans[span] for span in read.spans]
        if weights[index].n_bytes != sum(span.length for span in spans):
            yield f"the buffer of read {index} has not the size of its weights"
        stored = sum(span.file_length for span in spans)
        if not read.n_bytes == plan.buffers[read.buffer].n_bytes == stored:
            yield f"read {index} loads {stored} bytes, planned were {read.n_bytes}"
    for span, location in enumerate(plan.spans):
        length = program.spans[span].length
        if (
            location is not None
            and location.offset + length > plan.buffers[location.buffer].n_bytes
        ):
            yield f"span {span} leaves its buffer"
    if plan.scratch_bytes < scratch_bytes(plan.steps):
        yield f"kernels allocate {scratch_bytes(plan.steps)} bytes, {plan.scratch_bytes} are reserved"


# Waits: what is complete when an operation starts.


def _released(stages: Sequence[Stage]) -> tuple[Ints, ...] | None:
    """Return, for each operation of each stage, how many of every stage are complete when it may start.

    An operation starts after those before it, and what is complete started after what that waited for.
    None: some never start.
    """
    complete: list[list[tuple[int, ...]]] = [[] for _ in stages]
    moved = True
    while moved:
        moved = False
        for stage, rows in zip(stages, complete, strict=True):
            while len(rows) < len(stage):
                after = stage.after[len(rows)]
                if any(count > len(done) for count, done in zip(after, complete, strict=True)):
                    break
                waited = [
                    rows[-1:],
                    *(
                        done[count - 1 : count]
                        for count, done in zip(after, complete, strict=True)
                        if count
                    ),
                ]
                rows.append(
                    tuple(map(max, after, *chain.from_iterable(waited))) if any(waited) else after
                )
                moved = True
    if any(len(rows) < len(stage) for stage, rows in zip(stages, complete, strict=True)):
        return None
    return tuple(np.array(rows, np.int64).reshape(len(rows), len(stages)) for rows in complete)


def _order(plan: Plan, use: MemoryUse, released: Sequence[Ints]) -> Iterator[str]:
    """Yield which weights are not there for a step, or are written over while one needs them."""
    reads, copies, steps = released[0], released[1], released[-1]
    moved = [plan.buffers[read.buffer] for read in plan.reads]
    users = _users(plan, use)
    ends = np.array([steps.stop for steps in users], np.int64)
    if plan.copies:
        for index, copy in enumerate(plan.copies):
            if copies[index][0] <= copy.read:
                yield f"copy {index} starts before read {copy.read} has ended"
        copied = np.arange(1, len(moved) + 1)
        yield from _written_over("read", moved, reads[:, 1], copied)
        yield from _written_over("copy", plan.weights, copies[:, -1], ends)
    else:
        yield from _written_over("read", moved, reads[:, -1], ends)
    for index, used_by in enumerate(users):
        if used_by and steps[used_by.start][-2] <= index:
            yield f"step {used_by.start} starts before its weights, of read {index}, are there"


def _users(plan: Plan, use: MemoryUse) -> list[range]:
    """Return for each read the steps from the first to the last that use what it loads.

    That is what their calls read, and what pieces and regions need.
    """
    users = []
    loaded = [copy.buffer for copy in plan.copies] or [read.buffer for read in plan.reads]
    for buffer, steps in zip(loaded, plan.users, strict=True):
        first, last = use.uses.get(buffer, (steps.start, steps.stop - 1))
        users.append(
            range(min(first, steps.start), max(last + 1, steps.stop))
            if steps
            else range(first, last + 1)
        )
    return users


def _written_over(
    what: str, buffers: Sequence[PlanBuffer], complete: Ints, needed: Ints
) -> Iterator[str]:
    """Yield which operation writes over what is still used: of so many ``complete`` some are ``needed``.

    Operations after the last of ``buffers`` are the first ones again, for the next inference.
    """
    count, ahead = len(buffers), len(complete) - len(buffers)
    first, second = _overlapping(buffers)
    early, late = np.minimum(first, second), np.maximum(first, second)
    # Those of the next inference write over all that lies there, and over what they loaded in this one.
    every = np.arange(count)
    again = np.concatenate((first, second, every)), np.concatenate((second, first, every))
    chosen = again[0] < ahead
    writers = np.concatenate((late, again[0][chosen] + count))
    others = np.concatenate((early, again[1][chosen]))
    bad = complete[writers] < needed[others]
    for index, other in zip(writers[bad], others[bad], strict=True):
        yield f"{what} {index} writes over what {what} {other} loaded, while it is used"
    for buffer in buffers[:ahead]:
        if buffer.space == "arena":
            yield f"{named(buffer)} is read for the next inference"


def _overlapping(buffers: Sequence[PlanBuffer]) -> tuple[Ints, Ints]:
    """Return the pairs of ``buffers`` that share bytes, by their indices."""
    pairs: list[tuple[Ints, Ints]] = [(np.zeros(0, np.int64), np.zeros(0, np.int64))]
    for space in {buffer.space for buffer in buffers}:
        inside = [i for i, buffer in enumerate(buffers) if buffer.space == space and buffer.n_bytes]
        inside.sort(key=lambda i: buffers[i].offset)
        start = np.array([buffers[i].offset for i in inside], np.int64)
        end = np.array([buffers[i].end for i in inside], np.int64)
        # Of those that begin later, as many begin before this one ends.
        later = np.searchsorted(start, end, "left") - np.arange(1, len(inside) + 1)
        first = np.repeat(np.arange(len(inside)), later)
        nth = np.arange(len(first)) - np.repeat(np.cumsum(later) - later, later)
        order = np.array(inside, np.int64)
        pairs.append((order[first], order[first + 1 + nth]))
    return np.concatenate([one for one, _ in pairs]), np.concatenate([two for _, two in pairs])


# Live ranges: what shares bytes of the arena, or of what stays, does not share time.


def _shared(plan: Plan, use: MemoryUse, released: Sequence[Ints]) -> Iterator[str]:
    live: dict[int, list[Moments]] = {index: life.live for index, life in use.liveness.items()}
    for index, (read, steps) in enumerate(zip(plan.reads, _users(plan, use), strict=True)):
        if plan.buffers[read.buffer].space == "arena":
            loading = use.starts[released[0][index][-1]]
            live[read.buffer] = [(loading, use.starts[steps.stop] - 1)]
    always = [(-1, use.starts[-1])]
    live |= {i: always for i, buffer in enumerate(plan.buffers) if buffer.space == "resident"}
    indices = list(live)
    first = np.array([live[index][0][0] for index in indices], np.int64)
    last = np.array([live[index][-1][1] for index in indices], np.int64)
    one, two = _overlapping([plan.buffers[index] for index in indices])
    met = (first[one] <= last[two]) & (first[two] <= last[one])
    for i, j in zip(one[met], two[met], strict=True):
        moment = _meet(live[indices[i]], live[indices[j]])
        if moment is not None:
            step = max(int(np.searchsorted(use.starts, moment, "right")) - 1, 0)
            names = [named(plan.buffers[indices[k]]) for k in (i, j)]
            yield f"{names[0]} and {names[1]} share bytes in step {step}"


def _meet(one: Sequence[Moments], other: Sequence[Moments]) -> int | None:
    """Return a moment in which both are live; None: there is none."""
    i = j = 0
    while i < len(one) and j < len(other):
        start, end = max(one[i][0], other[j][0]), min(one[i][1], other[j][1])
        if start <= end:
            return start
        if one[i][1] < other[j][1]:
            i += 1
        else:
            j += 1
    return None
