"""Frozen figures of what happened: the engine fills them, metrics and benchmarks read them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple


class SweepStatistics(NamedTuple):
    """One sweep. Seconds; ``read_seconds`` is the sum over reads, which overlap each other.

    ``stall_seconds`` is the time in which the kernel stage waited for weights. ``verified``: checksums
    were checked while reading. ``turn_seconds``: before the sweep, until other models had finished theirs.
    """

    delay_seconds: float
    kernel_seconds: float
    stall_seconds: float
    read_seconds: float
    copy_seconds: float
    read_bytes: int = 0
    verified: bool = False
    turn_seconds: float = 0.0


def together(sweeps: Sequence[SweepStatistics], waited_seconds: float) -> SweepStatistics:
    """Return what a frame took whose partitions took ``sweeps``; it ``waited_seconds`` for them."""
    return SweepStatistics(
        delay_seconds=sum(each.delay_seconds for each in sweeps),
        kernel_seconds=sum(each.kernel_seconds for each in sweeps),
        stall_seconds=sum(each.stall_seconds for each in sweeps),
        read_seconds=sum(each.read_seconds for each in sweeps),
        copy_seconds=sum(each.copy_seconds for each in sweeps),
        read_bytes=sum(each.read_bytes for each in sweeps),
        verified=any(each.verified for each in sweeps),
        turn_seconds=waited_seconds + sum(each.turn_seconds for each in sweeps),
    )


@dataclass
class SweepTally:
    """What an engine counts: whole sweeps with their figures, and those that failed."""

    sweeps: int = 0
    failures: int = 0
    read_bytes: int = 0
    stall_seconds: float = 0.0


@dataclass(frozen=True)
class EngineStatistics:
    """An engine since it was opened; ``memory`` is measured bytes by kind (Plan.memory's kinds).

    ``shapes``: inferences of each shape, where the model has several.
    """

    sweeps: int
    failures: int
    read_bytes: int
    stall_seconds: float
    memory: dict[str, int]
    shapes: Mapping[str, int] = field(default_factory=dict)
