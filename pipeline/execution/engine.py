"""The engine: one model, its memory, and sweeps over it.

Invariant: between sweeps no kernel runs and nothing is in flight but reads for the next sweep; all memory
the plan names, and no other, belongs to the engine from ``open`` to ``close``. One thread at a time may
call ``run``.
"""

import gc
import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, TypeVar

from numpy.typing import NDArray

from loader.pool.order import Urgency
from loader.pool.pool import ReadJob, ReadPool
from loader.readers.reader import Range, Reader
from models.packs.manifest import Piece
from models.packs.pack import Pack
from models.runtime.heap import heap_bytes
from pipeline.devices.base import Device, DeviceLostError, Done, KernelError, Launch
from pipeline.devices.memory import Memory
from pipeline.execution.engine_memory import EngineMemory, check_inputs
from pipeline.execution.errors import DrainError, EngineClosedError
from pipeline.execution.given import Take, Tensors, copies
from pipeline.execution.phases import PhaseBinder
from pipeline.execution.resident_reads import load_residents
from pipeline.execution.statistics import EngineStatistics, SweepStatistics
from pipeline.execution.sweep import Sweeper
from pipeline.planning.plan import Plan
from pipeline.program.steps import Phase, regions_of
from pipeline.schedule.schedule import Stage
from pipeline.schedule.trace import Recorder

T = TypeVar("T")


class Engine:
    """Runs ``pack`` as ``plan`` says. Reading goes through ``pool``, computing through ``device``.

    ``verify``: check every span on every sweep; without it the first whole sweep (and the reading of
    resident spans) checks, later ones trust the disk.
    """

    def __init__(
        self,
        pack: Pack,
        plan: Plan,
        device: Device,
        pool: ReadPool,
        reader: Reader,
        verify: bool = False,
    ) -> None:
        self.pack = pack
        self.plan = plan
        self._device = device
        self._pool = pool
        self._deadline: float | None = None
        self._reader = reader
        self._verify = verify
        self._verified = False
        self._broken: DrainError | DeviceLostError | None = None
        self._sweeper = _idle()
        self._reads: tuple[tuple[tuple[Range, ...], memoryview], ...] = ()
        self._session_bytes = 0
        self._sweeps = self._failures = self._read_bytes = 0
        self._stall_seconds = 0.0
        self._lock = threading.Lock()
        self._defaults = pack.manifest.defaults()
        self._memory = EngineMemory(pack.manifest, plan, device)
        # Last: nobody takes a client back of an engine that could not be made.
        self._client = pool.client(pack.name, plan.choice.depth)
        self._is_open = False

    def open(self) -> None:
        """Read the resident spans and load the kernels.

        Raises:
            LoaderError: a resident span cannot be read or is damaged. DrainError: its read
                never ended. DeviceError: a piece cannot be loaded. ``close`` is still due.
        """
        try:
            load_residents(
                self.pack.manifest, self.plan, self._memory, self._device, self._read_span
            )
        except DrainError as exc:
            self._broken = exc
            raise
        gc.collect()
        before = heap_bytes() or 0
        kernels = self._kernels()
        self._reads = tuple(self._read(index) for index in range(len(self.plan.read_places)))
        starts = (self._start_read, self._start_copy)
        self._sweeper = Sweeper(
            self.plan.stages,
            starts[: len(self.plan.stages) - 1],
            kernels,
            self._hurry,
            self._device.finish if self._device.asynchronous else None,
        )
        self._session_bytes = max((heap_bytes() or 0) - before, 0)
        self._is_open = True

    def run(
        self,
        inputs: Tensors,
        deadline: float | None = None,
        cancelled: Callable[[], bool] = lambda: False,
        record: Recorder | None = None,
    ) -> tuple[dict[str, NDArray[Any]], SweepStatistics]:
        """Answer one request; return copies of the outputs by name, and what the sweep took.

        Arguments and errors are those of ``answer``.
        """
        return self.answer(inputs, copies, deadline, cancelled, record)

    def answer(
        self,
        inputs: Tensors,
        take: Take[T],
        deadline: float | None = None,
        cancelled: Callable[[], bool] = lambda: False,
        record: Recorder | None = None,
    ) -> tuple[T, SweepStatistics]:
        """Answer one request; return what ``take`` makes of the outputs, and what the sweep took.

        Args:
            inputs: graph inputs by name, with exactly their dtypes and shapes; all that have no default.
                Nothing here holds them when ``take`` is called: a caller may empty the mapping then.
            take: gets the outputs by name, views that are gone when it returns.
            deadline: on time.monotonic's clock; checked between kernels and while waiting.
            cancelled: asked between kernels.
            record: receives every event of the schedule.

        Raises:
            InputError: inputs are not what the model takes. EngineClosedError: closed.
            CancelledError, DeadlineError: as asked. LoaderError: a read failed or was damaged, or
            weights.bin is no longer the file that was opened (FileChangedError).
            KernelError: a kernel failed. DrainError: a read never ended; the engine is unusable.
            After all but the last the next call works.
        """
        if self._broken is not None:
            raise self._broken
        if not self._is_open:
            raise EngineClosedError(f"{self.pack.name}: the engine is closed")
        check_inputs(self.pack.manifest.inputs, inputs)
        with self._lock:
            self._reader.check()
            try:
                self._put(inputs)
                statistics = self._sweep(deadline, cancelled, record)
                self._memory.forget_inputs()
                return take(self._outputs()), statistics
            finally:
                self._memory.forget()

    @property
    def broken(self) -> str:
        """Why the engine can never answer again; empty as long as it can."""
        return str(self._broken) if self._broken is not None else ""

    @property
    def reads_nothing(self) -> bool:
        """Whether a sweep computes only, on the thread that runs it: no reads, no other device."""
        return not self.plan.groups and not self._device.asynchronous

    @property
    def lost_device(self) -> bool:
        """Whether only a new process can use the device again."""
        return isinstance(self._broken, DeviceLostError)

    def statistics(self) -> EngineStatistics:
        """Return figures since ``open``; memory is what was allocated and measured, not planned."""
        return EngineStatistics(
            sweeps=self._sweeps,
            failures=self._failures,
            read_bytes=self._read_bytes,
            stall_seconds=self._stall_seconds,
            memory={
                **self._memory.n_bytes(),
                "scratch": self.plan.scratch_bytes,
                "io": self.plan.io_bytes,
                "sessions": self._session_bytes,
            },
        )

    def huge_page_bytes(self) -> int:
        """Return how much of the memory for weights lies on huge pages."""
        return self._memory.huge_page_bytes()

    def close(self) -> None:
        """Give all memory back and close the reader. Waits for the sweep that runs."""
        with self._lock:
            if self._is_open:
                self.settle()
            self._is_open = False
            self._sweeper = _idle()  # lets go of the kernels
            self._reads = ()
            if self._broken is not None:
                return  # the disk may still write to this memory
            self._pool.forget(self._client)
            self._memory.close()
            self._reader.close()

    def settle(self) -> None:
        """Wait for the reads that run ahead of the next sweep; afterwards nothing is in flight.

        A read that does not end leaves the engine broken.
        """
        try:
            self._sweeper.settle()
        except DrainError as exc:
            self._broken = exc

    def _put(self, inputs: Tensors) -> None:
        for port in self.pack.manifest.inputs:
            tensor = inputs[port.name] if port.name in inputs else self._defaults[port.name]
            self._memory.put(port, tensor)

    def _outputs(self) -> dict[str, NDArray[Any]]:
        return {port.name: self._memory.view(port) for port in self.pack.manifest.outputs}

    def _sweep(
        self, deadline: float | None, cancelled: Callable[[], bool], record: Recorder | None
    ) -> SweepStatistics:
        verified = self._verify or not self._verified
        self._deadline = deadline
        try:
            statistics = self._sweeper.run(deadline, cancelled, record)
        except (DrainError, DeviceLostError) as exc:
            self._broken = exc
            raise
        except BaseException:
            self._failures += 1
            raise
        self._verified = True
        self._sweeps += 1
        self._read_bytes += self.plan.read_bytes
        self._stall_seconds += statistics.stall_seconds
        if not verified and not self.plan.read_bytes:
            return statistics
        return replace(statistics, read_bytes=self.plan.read_bytes, verified=verified)

    def _hurry(self) -> None:
        self._pool.hurry(self._client)

    def _read(self, index: int) -> tuple[tuple[Range, ...], memoryview]:
        """Return what read ``index`` brings and where to: made once, since every sweep asks for it."""
        place = self.plan.read_places[index]
        group = self.plan.groups[index % len(self.plan.groups)]
        spans = self.plan.streamed[group.first_span : group.end_span]
        target = self._written().host(place.offset, place.length)
        return tuple(self._range(span) for span in spans), target

    def _written(self) -> Memory:
        """Return where the disk writes what is streamed."""
        return self._memory.staging if self.plan.architecture.copies else self._memory.ring

    def _start_read(self, index: int, done: Done) -> None:
        ranges, target = self._reads[index]
        place, memory = self.plan.read_places[index], self._written()

        def arrived(error: Exception | None, seconds: float) -> None:
            try:
                memory.reclaim(place.offset, place.length)
            except Exception as exc:  # noqa: BLE001  the sweep that waits must hear of it
                error = error or exc
            done(error, seconds)

        memory.lend(place.offset, place.length)
        self._pool.submit(
            ReadJob(
                self._reader,
                ranges,
                target,
                self._verify or not self._verified,
                arrived,
                self._client,
                Urgency.AHEAD if index >= len(self.plan.groups) else Urgency.NEEDED_LATER,
                self._deadline,
            )
        )

    def _start_copy(self, index: int, done: Done) -> None:
        source, target = self.plan.read_places[index], self.plan.places[index]
        staged = self._memory.staging.host(source.offset, source.length)
        self._device.copy(staged, self._memory.ring, target.offset, done)

    def _range(self, span: int) -> Range:
        record = self.pack.manifest.spans[span]
        return Range(record.offset, record.length, record.checksum)

    def _read_span(self, span: int, target: memoryview, done: Done) -> None:
        self._pool.submit(
            ReadJob(self._reader, (self._range(span),), target, True, done, self._client)
        )

    def _kernels(self) -> list[Launch]:
        """Return the steps of a sweep, bound to memory."""
        names = self._layer_names()
        binders = {
            region: PhaseBinder(
                self.pack.manifest,
                self.pack.graphs,
                region,
                self._memory,
                self._device,
                lambda piece: self._name_of(names, self.pack.manifest.pieces[piece]),
            )
            for region in regions_of(self.plan.steps)
        }
        return [
            binders[step.region].bind(step.number)
            if isinstance(step, Phase)
            else _named(self._bind(step), self._name_of(names, step))
            for step in self.plan.steps
        ]

    @staticmethod
    def _name_of(names: Mapping[tuple[int, int], str], piece: Piece) -> str:
        return names.get(_made(piece), "a piece")

    def _layer_names(self) -> dict[tuple[int, int], str]:
        """Return, for what each piece makes, the first layer in it: what users know it by."""
        names: dict[tuple[int, int], str] = {}
        for layer in self.pack.manifest.layers:
            for piece in self.pack.manifest.pieces[layer.first_piece : layer.end_piece]:
                names.setdefault(_made(piece), f"layer {layer.name!r} ({layer.operator})")
        return names

    def _bind(self, piece: Piece) -> Launch:
        kernel = self._device.load(self.pack.graphs[piece.graph])
        if piece.resident is not None:
            return kernel.attach(
                [self._memory.place(operand) for operand in piece.inputs],
                [self._memory.place(operand) for operand in piece.outputs],
            )
        return kernel.bind(
            [self._memory.array(operand) for operand in piece.inputs],
            [self._memory.array(operand) for operand in piece.outputs],
            self._memory.scratch,
        )


def _idle() -> Sweeper:
    return Sweeper((Stage("kernel", ()),), (), ())


def _made(piece: Piece) -> tuple[int, int]:
    """Return what tells pieces apart whatever their size: where their output begins."""
    first = piece.outputs[0]
    return first.index, first.offset


def _named(launch: Launch, name: str) -> Launch:
    """Return ``launch`` with errors that say where: pieces themselves have no names."""

    def named() -> None:
        try:
            launch()
        except KernelError as exc:
            raise type(exc)(f"{name}: {exc}") from exc

    return named
