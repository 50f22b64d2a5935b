"""Reading what stays in memory: resident spans, once, before the first sweep."""

import queue
from collections.abc import Callable

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


def load_residents(
    program: Program, plan: Plan, memory: EngineMemory, device: Device, read: ReadSpan
) -> None:
    """Read the resident spans of ``plan`` one after the other, expanded; wait for each.

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
            _read(span, staged, read)
            expansion = expansion_of(program.spans[span : span + 1])
            _copy(span, staged, device, kept, plan.spans[span], expansion)

    if plan.staging_bytes >= largest:
        load_through(memory.staging)
        return
    if kept.reachable:
        for span, length in lengths.items():
            _read(span, kept.host(plan.spans[span], length), read)
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


def _read(span: int, target: memoryview, read: ReadSpan) -> None:
    _wait(span, lambda done: read(span, target, done))


def _copy(
    span: int,
    staged: memoryview,
    device: Device,
    kept: Memory,
    place: int,
    expansion: Expansion | None,
) -> None:
    _wait(span, lambda done: device.copy(staged, kept, place, done, expansion))


def _wait(span: int, start: Callable[[Done], None]) -> None:
    """Start something that moves ``span`` and wait for it.

    Raises:
        LoaderError, DeviceError: it failed. DrainError: it never ended.
    """
    ended: queue.SimpleQueue[Exception | None] = queue.SimpleQueue()
    start(lambda error, seconds: ended.put(error))
    try:
        error = ended.get(timeout=DRAIN_SECONDS)
    except queue.Empty:
        raise DrainError(f"span {span}: no answer in {DRAIN_SECONDS:.0f} s") from None
    if error is not None:
        raise error
