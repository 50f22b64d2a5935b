"""Reading what stays in memory: resident spans, once, before the first sweep."""

import queue
from collections.abc import Callable, Iterable
from functools import partial

from loader.errors import LoaderError
from pipeline.devices.base import Device, Done
from pipeline.devices.expansion import Expansion, expansion_of
from pipeline.devices.memory import Memory
from pipeline.execution.engine_memory import EngineMemory
from pipeline.execution.errors import DrainError
from pipeline.execution.sweeps.sweep import DRAIN_SECONDS
from pipeline.planning.plan import Plan
from pipeline.program.program import Program

#: Starts to read a span to some bytes, verified.
ReadSpan = Callable[[int, memoryview, Done], None]
#: Moves that are under way at once: while one ends on its thread the disk has the next.
_AT_ONCE = 8


def load_residents(
    program: Program, plan: Plan, memory: EngineMemory, device: Device, read: ReadSpan
) -> None:
    """Read the resident spans of ``plan``, expanded: one after the other where they pass through staging.

    Raises:
        LoaderError, DeviceError: one cannot be read or copied. DrainError: its read never ended, and the
            disk may still write to its memory.
    """
    kept = memory.resident
    # Those that are the same lie in one place, and are read once.
    places = {plan.spans[span]: span for span in reversed(plan.resident)}
    lengths = {span: program.spans[span].file_length for span in sorted(places.values())}
    largest = max(lengths.values(), default=0)

    def load_through(staging: Memory) -> None:
        for span, length in lengths.items():
            staged = staging.host(0, length)
            _move([partial(read, span, staged)])
            expansion = expansion_of(program.spans[span : span + 1])
            _move([_copy(staged, device, kept, plan.spans[span], expansion)])

    if plan.staging_bytes >= largest:
        load_through(memory.staging)
        return
    if kept.reachable:
        _move(
            partial(read, span, kept.host(plan.spans[span], length))
            for span, length in lengths.items()
        )
        return
    staging = device.allocate("staging", largest)
    stuck = False
    try:
        load_through(staging)
    except DrainError:
        stuck = True
        raise
    finally:
        if not stuck:
            staging.close()


def _copy(
    staged: memoryview, device: Device, kept: Memory, place: int, expansion: Expansion | None
) -> Callable[[Done], None]:
    return lambda done: device.copy(staged, kept, place, done, expansion)


def _move(starts: Iterable[Callable[[Done], None]]) -> None:
    """Start what moves bytes, a few at once, and wait for all that was started.

    Raises:
        LoaderError, DeviceError: one failed; none is started after it. DrainError: one never ended.
    """
    ended: queue.SimpleQueue[Exception | None] = queue.SimpleQueue()
    under_way = 0
    error: Exception | None = None
    waiting = iter(starts)
    while True:
        start = None if error or under_way == _AT_ONCE else next(waiting, None)
        if start is not None:
            try:
                start(lambda failed, seconds: ended.put(failed))
            except LoaderError as exc:  # others may still be writing
                error = exc
            else:
                under_way += 1
        elif under_way:
            error = _next(ended) or error
            under_way -= 1
        elif error is not None:
            raise error
        else:
            return


def _next(ended: "queue.SimpleQueue[Exception | None]") -> Exception | None:
    try:
        return ended.get(timeout=DRAIN_SECONDS)
    except queue.Empty:
        raise DrainError(f"a resident span: no answer in {DRAIN_SECONDS:.0f} s") from None
