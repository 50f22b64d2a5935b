"""How long the operations of a plan take: what simulator, planners and bound calculate with."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from pipeline.schedule import Stage


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

    def kernels(self, stages: Sequence[Stage]) -> tuple[float, ...]:
        """Return the seconds of each kernel, disturbed by the reads that it is the first to need."""
        alone = self.stages[-1]
        if not self.disturbance or len(stages) == 1:
            return alone
        moved = list(accumulate((after[-2] for after in stages[-1].after), max))
        return tuple(
            seconds + self.disturbance * (count - before)
            for seconds, count, before in zip(alone, moved, [0, *moved], strict=False)
        )
