"""An independent judge of schedules: replays a trace against the constraints of seed 003, Eq. 3.

It shares no code with pipeline/schedule.py and works from bytes and names alone: which bytes of the
ring a read writes, and which read a kernel depends on.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class TraceEvent:
    """``what`` happened to operation ``index`` of stage ``stage`` (a name)."""

    what: Literal["release", "complete"]
    stage: str
    index: int


@dataclass(frozen=True)
class RingRead:
    """Read operation: writes ring bytes [offset, offset + length), used by kernels ``kernels``."""

    offset: int
    length: int
    kernels: range


def violations(trace: Iterable[TraceEvent], reads: Sequence[RingRead], kernels: int) -> list[str]:
    """Return every broken constraint of a two-stage sweep, in words; empty when all held."""
    found: list[str] = []
    released: dict[str, list[int]] = {"read": [], "kernel": []}
    complete: dict[str, set[int]] = {"read": set(), "kernel": set()}
    for event in trace:
        name = f"{event.stage} {event.index}"
        if event.what == "complete":
            if event.index not in released[event.stage]:
                found.append(f"{name} completed before its release")
            complete[event.stage].add(event.index)
            continue
        if event.index != len(released[event.stage]):
            found.append(f"{name} released out of order")
        released[event.stage].append(event.index)
        if event.stage == "kernel":
            found += _unfed(event.index, reads, complete["read"])
            found += _overwritten(event.index, reads, released["read"])
        else:
            found += _in_use(event.index, reads, released["read"], complete["kernel"])
    if len(complete["kernel"]) != kernels or len(complete["read"]) != len(reads):
        found.append("the sweep ended with operations missing")
    return found


def _overlap(one: RingRead, other: RingRead) -> bool:
    return one.offset < other.offset + other.length and other.offset < one.offset + one.length


def _unfed(kernel: int, reads: Sequence[RingRead], complete: set[int]) -> list[str]:
    return [
        f"kernel {kernel} released before read {number} completed"
        for number, read in enumerate(reads)
        if kernel in read.kernels and number not in complete
    ]


def _overwritten(kernel: int, reads: Sequence[RingRead], released: list[int]) -> list[str]:
    own = [number for number, read in enumerate(reads) if kernel in read.kernels]
    return [
        f"kernel {kernel} uses bytes that read {later} has been given"
        for number in own
        for later in released
        if later > number and _overlap(reads[later], reads[number])
    ]


def _in_use(
    number: int, reads: Sequence[RingRead], released: list[int], done: set[int]
) -> list[str]:
    return [
        f"read {number} released into bytes of read {earlier}, which kernels still need"
        for earlier in released
        if earlier != number
        and _overlap(reads[earlier], reads[number])
        and not done.issuperset(reads[earlier].kernels)
    ]
