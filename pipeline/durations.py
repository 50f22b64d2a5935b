"""How long the operations of a plan take: what simulator, planners and bound calculate with."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Durations:
    """Seconds of each operation of each stage, aligned with the stages of a plan.

    Reads for the next sweep are included. ``depth``: reads in flight, each on a server of its own.
    ``slowdown``: while a read is in flight a kernel advances at 1 / (1 + slowdown) of its speed.
    """

    stages: tuple[tuple[float, ...], ...]
    depth: int
    slowdown: float = 0.0

    def __post_init__(self) -> None:
        if self.depth < 1 or self.slowdown < 0:
            raise ValueError(f"depth {self.depth} below 1, or slowdown {self.slowdown} below 0")
