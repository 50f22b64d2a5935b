"""How weights come: what is read and where to, what is copied, and whether checksums are compared.

Invariant: memory that the disk may write to is lent from the moment its read is handed to the pool until
that ends.
"""

import queue
from collections.abc import Callable, Iterable
from functools import partial
from typing import NamedTuple

from loader.pool.jobs import ReadJob
from loader.pool.native import Stream, StreamRead
from loader.pool.order import Urgency
from loader.pool.pool import ReadPool
from loader.readers.interface import Range, Reader
from pipeline.devices.base import Device, Done
from pipeline.devices.device_memory import Memory
from pipeline.devices.expansion import Expansion, expansion_of
from pipeline.execution import deadlines
from pipeline.execution.engine_memory import EngineMemory
from pipeline.execution.errors import DrainError
from pipeline.execution.streaming import PassStream
from pipeline.execution.table_reads import TableReads
from pipeline.planning.plan import Plan
from pipeline.program.program import Program


class _Read(NamedTuple):
    """``ranges`` of the file come to ``target``, the bytes [offset, offset + length) of ``memory``."""

    ranges: tuple[Range, ...]
    target: memoryview
    memory: Memory
    offset: int
    length: int
    urgency: Urgency


class WeightReads:
    """Reads of the model of ``program`` through ``pool``, which it is a client of until it is closed.

    ``verify``: whether the spans that are read from now on are compared with their checksums.
    ``deadline``: of the sweep that runs, on time.monotonic's clock. ``tables``: read rows of tables, which
    come when a kernel asks for them.
    """

    def __init__(
        self,
        program: Program,
        plan: Plan,
        memory: EngineMemory,
        device: Device,
        pool: ReadPool,
        reader: Reader,
    ) -> None:
        self.verify = True
        self.deadline: float | None = None
        self._program = program
        self._plan = plan
        self._memory = memory
        self._device = device
        self._pool = pool
        self._reader = reader
        self._reads = tuple(self._read(index) for index in range(len(plan.stages[0])))
        self._expansions = tuple(
            expansion_of([program.spans[span] for span in plan.reads[copy.read].spans])
            for copy in plan.copies
        )
        #: Reads in flight that bring weights to the arena.
        self._into_arena: set[int] = set()
        # Last: where this raises, no client of the pool is left.
        self.tables = TableReads(program, pool, reader)
        try:
            self._client = pool.client(program.name, plan.choice.depth)
        except BaseException:
            self.tables.close()
            raise
        self._stream: Stream | None = None

    @property
    def writes_to_arena(self) -> bool:
        """Whether the disk may write to the arena now."""
        flying = () if self._stream is None else self._stream.in_flight()
        return bool(self._into_arena) or any(map(self._is_into_arena, flying))

    def stream(self) -> PassStream | None:
        """Return the reads of a pass as one stream, where the pool has such and nothing is copied.

        Raises:
            MemoryError: there is none for it.
        """
        stages = self._plan.stages
        if self._device.asynchronous or len(stages) != 2 or not self._reads:
            return None
        reads = [
            StreamRead(read.ranges, read.target, after[-1])
            for read, after in zip(self._reads, stages[0].after, strict=True)
        ]
        count = len(self._plan.reads)
        self._stream = stream = self._pool.stream(self._client, self._reader, reads, count)
        if stream is None:
            return None
        return PassStream(stream, lambda: stream.begin(self.deadline, self.verify))

    def _is_into_arena(self, index: int) -> bool:
        return self._reads[index].memory is self._memory.lease.memory

    def start_read(self, index: int, done: Done) -> None:
        """Start read ``index`` of a sweep; ``done`` is called once, on another thread.

        Raises:
            LoaderError: the pool does not take it. DeviceError: its memory cannot be lent. ``done`` is not
                called, and nothing is lent.
        """
        read = self._reads[index]

        def arrived(error: Exception | None, seconds: float) -> None:
            done(self._reclaim(index, read, error), seconds)

        read.memory.lend(read.offset, read.length)
        try:
            if self._is_into_arena(index):
                self._into_arena.add(index)
            self._pool.submit(
                ReadJob(
                    self._reader,
                    read.ranges,
                    read.target,
                    self.verify,
                    arrived,
                    self._client,
                    read.urgency,
                    self.deadline,
                )
            )
        except Exception as exc:
            self._reclaim(index, read, exc)  # nothing reads: the pool takes all of a job or nothing
            raise

    def _reclaim(self, index: int, read: _Read, error: Exception | None) -> Exception | None:
        """Take back what was lent for read ``index``; return the first error, None if there is none."""
        try:
            read.memory.reclaim(read.offset, read.length)
        except Exception as exc:  # noqa: BLE001  the sweep that waits must get it
            error = error or exc
        self._into_arena.discard(index)
        return error

    def start_copy(self, index: int, done: Done) -> None:
        """Start to copy to the ring what read ``index`` has brought, expanded; ``done`` as above."""
        copy, buffers = self._plan.copies[index], self._plan.buffers
        source, target = buffers[self._plan.reads[copy.read].buffer], buffers[copy.buffer]
        staged = self._memory.space(source.space).host(source.offset, source.n_bytes)
        memory, expansion = self._memory.space(target.space), self._expansions[index]
        self._device.copy(staged, memory, target.offset, done, expansion)

    def read_span(self, span: int, target: memoryview, done: Done) -> None:
        """Start to read one span to ``target``, as it is stored, verified; ``done`` as above."""
        self._pool.submit(
            ReadJob(self._reader, (self._range(span),), target, True, done, self._client)
        )

    def hurry(self) -> None:
        """A kernel waits for what is being read."""
        self._pool.raise_priority(self._client)

    def close(self) -> None:
        """Leave the pool; nothing is in flight."""
        self._reads, self._stream = (), None
        self.tables.close()
        self._pool.forget(self._client)

    def _read(self, index: int) -> _Read:
        """Return what read ``index`` brings and where to: made once, since every sweep asks for it."""
        count = len(self._plan.reads)
        read = self._plan.reads[index % count]
        buffer = self._plan.buffers[read.buffer]
        memory = self._memory.space(buffer.space)
        return _Read(
            tuple(map(self._range, read.spans)),
            memory.host(buffer.offset, buffer.n_bytes),
            memory,
            buffer.offset,
            buffer.n_bytes,
            Urgency.AHEAD if index >= count else Urgency.NEEDED_LATER,
        )

    def _range(self, span: int) -> Range:
        record = self._program.spans[span]
        return Range(record.file_offset, record.file_length, record.checksum)


# Reading what stays in memory: resident spans, once, before the first sweep.

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
    places = {plan.offset(plan.spans[span]): span for span in reversed(plan.resident)}
    # Of several shapes of a model another one may have read them.
    for offset in memory.loaded.intersection(places):
        del places[offset]
    lengths = {span: program.spans[span].file_length for span in sorted(places.values())}
    largest = max(lengths.values(), default=0)

    def load_through(staging: Memory) -> None:
        for span, length in lengths.items():
            staged = staging.host(0, length)
            _move([partial(read, span, staged)])
            expansion = expansion_of(program.spans[span : span + 1])
            _move([_copy(staged, device, kept, plan.offset(plan.spans[span]), expansion)])

    if kept.reachable:
        # What staging has no room for lies in the file as in memory: everything, or tables.
        direct = {span: lengths[span] for span in lengths if lengths[span] > plan.staging_bytes}
        _move(
            partial(read, span, kept.host(plan.offset(plan.spans[span]), length))
            for span, length in direct.items()
        )
        lengths = {span: length for span, length in lengths.items() if span not in direct}
        largest = max(lengths.values(), default=0)
    if plan.staging_bytes >= largest:
        load_through(memory.staging)
        memory.loaded.update(places)
        return
    staging = device.allocate("staging", largest)
    try:
        load_through(staging)
    except DrainError:
        raise  # the disk may still write to it, as it may where an interrupt ends the wait
    except Exception:
        staging.close()
        raise
    staging.close()
    memory.loaded.update(places)


def read_ahead_again(reads: WeightReads, plan: Plan) -> None:
    """Read what was read for the next pass before it, where its memory holds it no more.

    Raises:
        LoaderError: it cannot be read, or is damaged. DrainError: a read never ended.
    """
    reads.verify, reads.deadline = True, None
    _move(partial(reads.start_read, index) for index in range(plan.stages[0].ahead))


def _copy(
    staged: memoryview, device: Device, kept: Memory, place: int, expansion: Expansion | None
) -> Callable[[Done], None]:
    return lambda done: device.copy(staged, kept, place, done, expansion)


def _move(starts: Iterable[Callable[[Done], None]]) -> None:
    """Start what moves bytes, a few at once, and wait for all that was started.

    Raises:
        LoaderError, DeviceError, or what else a start raises: one failed; none is started after it, and
        all that were have ended. DrainError: one never ended.
    """
    ended: queue.SimpleQueue[Exception | None] = queue.SimpleQueue()
    under_way = 0
    error: Exception | None = None
    waiting = iter(starts)
    while True:
        try:
            start = None if error or under_way == _AT_ONCE else next(waiting, None)
            if start is not None:
                start(lambda failed, seconds: ended.put(failed))
        except Exception as exc:  # noqa: BLE001  raised below: others may still be writing
            error = exc
            continue
        if start is not None:
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
        return ended.get(timeout=deadlines.DRAIN_SECONDS)
    except queue.Empty:
        raise DrainError(f"a resident span: no answer in {deadlines.DRAIN_SECONDS:.0f} s") from None
