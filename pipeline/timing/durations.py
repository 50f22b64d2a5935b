"""How long the operations of a plan take: what simulator, planners and bound calculate with."""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain

from pipeline.schedule.schedule import Stage

_TWO_STAGES = 2


@dataclass(frozen=True)
class Durations:
    """Seconds of each operation of each stage, aligned with the stages of a plan.

    Reads for the next sweep are included. ``depth``: reads in flight, each on a server of its own.
    ``slowdown``: while a read is in flight a kernel advances at 1 / (1 + slowdown) of its speed.
    ``disturbance``: seconds that each read takes from the kernels, however short: threads that wake, caches
    that are lost.
    """

    stages: tuple[tuple[float, ...], ...]
    depth: int
    slowdown: float = 0.0
    disturbance: float = 0.0

    def __post_init__(self) -> None:
        if self.depth < 1 or min(self.slowdown, self.disturbance) < 0:
            raise ValueError(f"depth {self.depth} below 1, or a negative time in {self}")

    def kernels(self, stages: Sequence[Stage], early: Collection[int] = ()) -> tuple[float, ...]:
        """Return the seconds of each kernel, disturbed by reads.

        A read of this sweep disturbs the kernel that needs it first, unless it is one of ``early``, which
        began before the sweep; one for the next sweep disturbs the kernel that runs when it may start.
        """
        disturbed = list(self.stages[-1])
        if not self.disturbance or len(stages) == 1:
            return self.stages[-1]
        needs = list(accumulate((after[-2] for after in stages[-1].after), max))
        for kernel, (before, count) in enumerate(zip([0, *needs], needs, strict=False)):
            fresh = sum(read not in early for read in range(before, count))
            disturbed[kernel] += self.disturbance * fresh
        for kernel in _head_after(stages):
            if kernel < len(disturbed):
                disturbed[kernel] += self.disturbance
        return tuple(disturbed)


def reads_in_flight(stages: Sequence[Stage], depth: int) -> list[int]:
    """Return for each read how many may be in flight at once with it, itself included: at most ``depth``.

    In a small ring a read waits for the kernels that free its place, and these have waited for reads: those
    are complete.
    """
    count = len(stages[0])
    if depth == 1:
        return [1] * count
    # complete[t][n]: so many reads are when the first n operations of stage t are.
    complete: list[Sequence[int]] = [range(count + 1)]
    for stage in stages[1:]:
        complete.append([0, *_complete(stage, complete)])
    first = _complete(stages[0], complete)  # that may be in flight when each read starts
    at_once = [min(depth, read + 1 - other) for read, other in enumerate(first)]
    most = list(at_once)
    for later in range(1, depth):
        for read in range(count - later):
            if first[read + later] <= read and at_once[read + later] > most[read]:
                most[read] = at_once[read + later]
    return most


def _complete(stage: Stage, complete: Sequence[Sequence[int]]) -> list[int]:
    """Return how many reads are complete when each operation of ``stage`` starts, by what it waits for."""
    waits = zip(complete, zip(*stage.after, strict=True), strict=False)  # planners ask often
    known = [[row[count] for count in counts] for row, counts in waits]
    return list(accumulate(map(max, *known) if known[1:] else chain(*known), max))


def beside_tail(stages: Sequence[Stage]) -> set[int]:
    """Return the reads for the next sweep, by number, that begin beside kernels of this one."""
    return {read for read, kernel in enumerate(_head_after(stages)) if kernel < len(stages[-1])}


def _head_after(stages: Sequence[Stage]) -> Iterator[int]:
    """Yield, for each read for the next sweep, how many kernels end before it may start.

    Where it waits for copies, that is as many as these wait for.
    """
    head = stages[0].after[len(stages[0]) - stages[0].ahead :]
    return accumulate((max(after[-1], _before_copies(stages, after)) for after in head), max)


def _before_copies(stages: Sequence[Stage], after: Sequence[int]) -> int:
    """Return how many kernels end before the copies that ``after`` counts."""
    copies = after[1] if len(stages) > _TWO_STAGES else 0
    return max((needed[-1] for needed in stages[1].after[:copies]), default=0)
