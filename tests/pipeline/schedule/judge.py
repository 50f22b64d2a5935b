"""An independent judge of schedules: replays a trace against the constraints of seed 003, Eq. 3.

It shares no code with pipeline/schedule/schedule.py and works from bytes and names alone: which bytes
of its buffer an operation writes, and which operations of the next stage depend on them.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from pipeline.schedule.trace import TraceEvent


@dataclass(frozen=True)
class Write:
    """An operation that writes bytes [offset, offset + length) of its stage's buffer.

    ``users``: the operations of the next stage that read them.
    """

    offset: int
    length: int
    users: range


@dataclass
class _Stage:
    """A stage as the replay sees it; ``writes`` is empty for kernels."""

    writes: Sequence[Write]
    released: list[int] = field(default_factory=list)
    complete: set[int] = field(default_factory=set)


def violations(
    trace: Iterable[TraceEvent], writing: Sequence[tuple[str, Sequence[Write]]], kernels: int
) -> list[str]:
    """Return every broken constraint of a sweep, in words; empty when all held.

    ``writing``: name and operations of each stage before the kernels, in the order data flows.
    """
    names = [name for name, _ in writing] + ["kernel"]
    rows = [_Stage(writes) for _, writes in writing] + [_Stage(())]
    messages: list[str] = []
    for event in trace:
        position = names.index(event.stage)
        stage, label = rows[position], f"{event.stage} {event.index}"
        if event.what == "complete":
            if event.index not in stage.released:
                messages.append(f"{label} completed before its release")
            stage.complete.add(event.index)
            continue
        if event.index != len(stage.released):
            messages.append(f"{label} released out of order")
        stage.released.append(event.index)
        if position:
            before = rows[position - 1]
            messages += _unfed(label, event.index, names[position - 1], before)
            messages += _overwritten(label, event.index, names[position - 1], before)
        if position < len(rows) - 1:
            messages += _in_use(label, event.index, stage, rows[position + 1].complete)
    if len(rows[-1].complete) != kernels:
        messages.append("the sweep ended with operations missing")
    return messages


def _overlap(one: Write, other: Write) -> bool:
    return one.offset < other.offset + other.length and other.offset < one.offset + one.length


def _unfed(label: str, index: int, feeder: str, before: _Stage) -> list[str]:
    return [
        f"{label} released before {feeder} {number} completed"
        for number, write in enumerate(before.writes)
        if index in write.users and number not in before.complete
    ]


def _overwritten(label: str, index: int, feeder: str, before: _Stage) -> list[str]:
    own = [number for number, write in enumerate(before.writes) if index in write.users]
    return [
        f"{label} uses bytes that {feeder} {later} has been given"
        for number in own
        for later in before.released
        if later > number and _overlap(before.writes[later], before.writes[number])
    ]


def _in_use(label: str, number: int, stage: _Stage, used: set[int]) -> list[str]:
    return [
        f"{label} released into bytes of {earlier}, which the next stage still needs"
        for earlier in stage.released
        if earlier != number
        and _overlap(stage.writes[earlier], stage.writes[number])
        and not used.issuperset(stage.writes[earlier].users)
    ]
