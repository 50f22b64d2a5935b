"""The engine: one model, its memory, and sweeps over it.

Invariant: between sweeps no read is in flight and no kernel runs; all memory the plan names, and no other,
belongs to the engine from ``open`` to ``close``. One thread at a time may call ``run``.
"""

import gc
import queue
import threading
from collections.abc import Callable, Mapping
from typing import Any

from numpy.typing import NDArray

from loader.errors import LoaderError
from loader.pool import ReadJob, ReadPool
from loader.reader import Range, Reader
from models.heap import heap_bytes
from models.pack import Pack
from pipeline.devices.base import Device, KernelError, Launch
from pipeline.errors import DrainError, EngineClosedError
from pipeline.memory import EngineMemory, check_inputs
from pipeline.planning.plan import Plan
from pipeline.schedule import Schedule
from pipeline.statistics import EngineStatistics, SweepStatistics
from pipeline.sweep import DRAIN_SECONDS, ReadDone, Recorder, Sweep

Tensors = Mapping[str, NDArray[Any]]


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
        self._reader = reader
        self._verify = verify
        self._verified = False
        self._broken: DrainError | None = None
        self._kernels: list[Launch] = []
        self._session_bytes = 0
        self._sweeps = self._failures = self._read_bytes = 0
        self._stall_seconds = 0.0
        self._lock = threading.Lock()
        self._memory = EngineMemory(pack.manifest, plan)
        self._is_open = False

    def open(self) -> None:
        """Read the resident spans and load the kernels.

        Raises:
            LoaderError: a resident span cannot be read or is damaged. DrainError: its read
                never ended. DeviceError: a piece cannot be loaded. ``close`` is still due.
        """
        self._read_resident()
        gc.collect()
        before = heap_bytes() or 0
        names = self._layer_names()
        self._kernels = [
            _named(self._bind(index), names.get(index, f"piece {index}"))
            for index in range(len(self.pack.manifest.pieces))
        ]
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

        Args:
            inputs: every graph input by name, with exactly its dtype and shape.
            deadline: on time.monotonic's clock; checked between kernels and while waiting.
            cancelled: asked between kernels.
            record: receives every event of the schedule.

        Raises:
            InputError: inputs are not what the model takes. EngineClosedError: closed.
            CancelledError, DeadlineError: as asked. LoaderError: a read failed or was damaged.
            KernelError: a kernel failed. DrainError: a read never ended; the engine is unusable.
            After all but the last the next call works.
        """
        if self._broken is not None:
            raise self._broken
        if not self._is_open:
            raise EngineClosedError(f"{self.pack.name}: the engine is closed")
        check_inputs(self.pack.manifest.inputs, inputs)
        with self._lock:
            try:
                for port in self.pack.manifest.inputs:
                    self._memory.put(port, inputs[port.name])
                statistics = self._sweep(deadline, cancelled, record)
                outputs = {
                    port.name: self._memory.take(port) for port in self.pack.manifest.outputs
                }
            finally:
                self._memory.forget()
        return outputs, statistics

    @property
    def broken(self) -> str:
        """Why the engine can never answer again; empty as long as it can."""
        return str(self._broken) if self._broken is not None else ""

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

    def close(self) -> None:
        """Give all memory back and close the reader. Waits for the sweep that runs."""
        with self._lock:
            self._is_open = False
            self._kernels = []
            if self._broken is not None:
                return  # the disk may still write to this memory
            self._memory.close()
            self._reader.close()

    def _sweep(
        self, deadline: float | None, cancelled: Callable[[], bool], record: Recorder | None
    ) -> SweepStatistics:
        verify = self._verify or not self._verified

        def start_read(index: int, done: ReadDone) -> None:
            self._pool.submit(self._read_job(index, verify, done))

        sweep = Sweep(
            Schedule(self.plan.stages, self.plan.architecture.in_flight),
            start_read,
            self._kernels,
            deadline,
            cancelled,
            record,
        )
        try:
            statistics = sweep.run(self.plan.read_bytes, verify)
        except DrainError as exc:
            self._broken = exc
            raise
        except BaseException:
            self._failures += 1
            raise
        self._verified = True
        self._sweeps += 1
        self._read_bytes += statistics.read_bytes
        self._stall_seconds += statistics.stall_seconds
        return statistics

    def _read_job(self, index: int, verify: bool, done: ReadDone) -> ReadJob:
        group, place = self.plan.groups[index], self.plan.places[index]
        spans = self.plan.streamed[group.first_span : group.end_span]
        return ReadJob(
            self._reader,
            tuple(self._range(span) for span in spans),
            self._memory.ring.bytes[place.offset : place.offset + place.length].data,
            verify,
            lambda error, seconds: done(index, error, seconds),
        )

    def _range(self, span: int) -> Range:
        record = self.pack.manifest.spans[span]
        return Range(record.offset, record.length, record.checksum)

    def _read_resident(self) -> None:
        """Read resident spans one after the other, each verified; wait for each."""
        for span in self.plan.resident:
            offset = self.plan.spans[span]
            ended: queue.SimpleQueue[LoaderError | None] = queue.SimpleQueue()
            length = self.pack.manifest.spans[span].length
            self._pool.submit(
                ReadJob(
                    self._reader,
                    (self._range(span),),
                    self._memory.resident.bytes[offset : offset + length].data,
                    True,
                    lambda error, seconds, ended=ended: ended.put(error),  # type: ignore[misc]
                )
            )
            try:
                error = ended.get(timeout=DRAIN_SECONDS)
            except queue.Empty:
                self._broken = DrainError(f"span {span}: no answer in {DRAIN_SECONDS:.0f} s")
                raise self._broken from None
            if error is not None:
                raise error

    def _layer_names(self) -> dict[int, str]:
        """Return, for each piece, the first layer in it: what users know it by."""
        names: dict[int, str] = {}
        for layer in self.pack.manifest.layers:
            for piece in range(layer.first_piece, layer.end_piece):
                names.setdefault(piece, f"layer {layer.name!r} ({layer.operator})")
        return names

    def _bind(self, index: int) -> Launch:
        piece = self.pack.manifest.pieces[index]
        kernel = self._device.load(self.pack.graphs[piece.graph])
        if piece.resident is not None:
            return kernel.attach(
                [self._memory.place(operand) for operand in piece.inputs],
                [self._memory.place(operand) for operand in piece.outputs],
            )
        return kernel.bind(
            [self._memory.array(operand) for operand in piece.inputs],
            [self._memory.array(operand) for operand in piece.outputs],
        )


def _named(launch: Launch, name: str) -> Launch:
    """Return ``launch`` with errors that say where: pieces themselves have no names."""

    def named() -> None:
        try:
            launch()
        except KernelError as exc:
            raise KernelError(f"{name}: {exc}") from exc

    return named
