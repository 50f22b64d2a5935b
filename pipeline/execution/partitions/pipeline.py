"""Partitions of one network that compute at once, each for another frame (seed 000, Section 2.2).

Each partition has a worker: a thread, kept on a core, that runs the oldest frame which may begin there. A
caller of ``answer`` waits until its frame is through, or leaves with it while it waits for a partition; so
an error, a deadline or a client that leaves ends one call and nothing else.

Invariant: handover.py alone decides which frame may run where, and which buffer of an edge it has.
"""

import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loader.cores import pinned
from models.packs.records.ports import Port
from pipeline.devices.device_memory import HostMemory
from pipeline.execution.answering import Answer, Answering
from pipeline.execution.baton import ComputeClaim
from pipeline.execution.engine import Engine
from pipeline.execution.errors import EngineClosedError
from pipeline.execution.given import Arrays, Take
from pipeline.execution.lane import Lane
from pipeline.execution.partitions.handover import Frame, Handover, Turn
from pipeline.execution.statistics import EngineStatistics, together
from pipeline.planning.plan import PartitionedPlan
from pipeline.program.partitions import aligned
from pipeline.program.program import Program
from pipeline.schedule.trace import Recorder

#: The arrays of one buffer by the names of their ports.
Buffer = dict[str, NDArray[Any]]


class Pipeline(Answering):
    """Runs ``program`` as ``plan`` says, with an open engine for each partition; closes them.

    ``cores``: of each partition; () leaves threads where the system puts them.

    Raises:
        RuntimeError: the system gives no thread; none is left, and the engines are the caller's.
    """

    def __init__(
        self,
        program: Program,
        plan: PartitionedPlan,
        engines: Sequence[Engine],
        cores: Sequence[int] = (),
    ) -> None:
        self.program = program
        self._plan = plan
        self._engines = tuple(engines)
        self._cores: list[tuple[int, ...]] = [(core,) for core in cores]
        self._cores += [()] * (len(self._engines) - len(cores))
        self._edges = EdgeBuffers([engine.program for engine in engines], plan)
        self._handover = Handover(len(self._engines))
        self._changed = threading.Condition()
        self._frames: dict[int, Frame] = {}
        self._closed = False
        self._threads = [
            threading.Thread(
                target=self._work,
                args=(number, cores),
                name=f"engine-{program.name}-{number}",
                daemon=True,
            )
            for number, cores in enumerate(self._cores)
        ]
        try:
            for thread in self._threads:
                thread.start()
        except BaseException:
            with self._changed:  # which ends those that were started
                self._closed = True
                self._changed.notify_all()
            self._edges.close()
            raise

    @property
    def plan(self) -> PartitionedPlan:
        return self._plan

    def run_batch(
        self,
        requests: Sequence[Lane],
        record: Recorder | None,
        claim: ComputeClaim,
        keeps_core: bool,
    ) -> list[Answer | Exception]:
        """Carry one frame, the only one of ``requests``, through all partitions.

        ``take`` runs on the worker of the last partition. ``turn_seconds`` of what the sweeps took has all
        that the frame waited for a partition. Partitions have cores of their own and wait for no ``claim``.

        Raises:
            ValueError: there are none, or several.
        """
        (lane,) = requests
        try:
            return [self._carried(lane, record)]
        except Exception as exc:  # noqa: BLE001  it is given to the caller that waits
            return [exc]

    def _carried(self, lane: Lane, record: Recorder | None) -> Answer:
        frame = Frame(lane.inputs, lane.take, lane.deadline, lane.cancelled, record)
        with self._changed:
            number = self._enter(frame)
            try:
                while not frame.over:
                    self._changed.wait(frame.left())
            except BaseException:
                self._abandon(number, frame)
                raise
        if frame.error is not None:
            raise frame.error
        return frame.answer, together(frame.took, frame.waited)

    def wake(self) -> None:
        with self._changed:
            self._changed.notify_all()
        for engine in self._engines:
            engine.wake()

    @property
    def callers(self) -> int:
        """How many threads may call ``answer`` at a time: one a partition, and one whose frame is next."""
        return len(self._engines) + 1

    @property
    def broken(self) -> str:
        return next((engine.broken for engine in self._engines if engine.broken), "")

    @property
    def lost_device(self) -> bool:
        return any(engine.lost_device for engine in self._engines)

    @property
    def reads_nothing(self) -> bool:
        """Never of the thread that asks alone: frames wait for each other."""
        return False

    @property
    def ahead_bytes(self) -> int:
        return sum(engine.ahead_bytes for engine in self._engines)

    @property
    def closed(self) -> bool:
        """Whether new frames are refused."""
        return self._closed

    @property
    def frames(self) -> int:
        """Requests that have begun, or wait for a partition."""
        return len(self._frames)

    def statistics(self) -> EngineStatistics:
        """Return the figures of all engines; a sweep is a frame that went through."""
        by_engine = [engine.statistics() for engine in self._engines]
        memory = {
            kind: sum(each.memory[kind] for each in by_engine) for kind in by_engine[0].memory
        }
        memory["arena"] += self._edges.n_bytes
        return EngineStatistics(
            sweeps=by_engine[-1].sweeps,
            failures=sum(each.failures for each in by_engine),
            read_bytes=sum(each.read_bytes for each in by_engine),
            stall_seconds=sum(each.stall_seconds for each in by_engine),
            memory=memory,
        )

    def huge_page_bytes(self) -> int:
        return sum(engine.huge_page_bytes() for engine in self._engines)

    def settle(self) -> None:
        for engine in self._engines:
            engine.settle()

    def close(self) -> None:
        """Refuse new frames, wait for those that have begun, end the workers, give all memory back."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()
        for engine in self._engines:
            engine.close()
        if not self.broken:
            self._edges.close()

    def _enter(self, frame: Frame) -> int:
        """Return the number of ``frame``, which waits for the first partition; the lock is held."""
        if self._closed:
            raise EngineClosedError(f"{self.program.name}: the engine is closed")
        number = self._handover.enter()
        self._frames[number] = frame
        self._changed.notify_all()
        return number

    def _abandon(self, number: int, frame: Frame) -> None:
        """Let go of ``frame``, whose caller was interrupted wherever it is; the lock is held.

        A partition that runs it still needs its tensors and buffers: it is stopped, and waited for.
        """
        frame.abandoned = True
        while frame.runs:
            self._changed.wait()
        if not frame.over:
            self._leave(number)

    def _work(self, partition: int, cores: Sequence[int]) -> None:
        """Run frames in one partition until the pipeline is closed and none is left."""
        with pinned(cores):
            while (began := self._next(partition)) is not None:
                number, turn = began
                frame = self._frames[number]
                try:
                    self._run(frame, turn)
                except BaseException as exc:  # noqa: BLE001  it is given to the frame's caller
                    with self._changed:
                        frame.error = exc
                        self._leave(number)
                else:
                    with self._changed:
                        self._end(number, turn)
                del frame  # a request must not live on while the worker waits for the next one

    def _next(self, partition: int) -> tuple[int, Turn] | None:
        """Wait for the oldest frame that may begin; None: no more come."""
        with self._changed:
            while True:
                began = self._handover.begin_at(partition)
                if began is not None:
                    self._frames[began[0]].begins()
                    return began
                if self._closed and not self._frames:
                    return None
                self._changed.wait()

    def _run(self, frame: Frame, turn: Turn) -> None:
        if turn.reads is not None:
            frame.given = self._edges.buffer(turn.partition - 1, turn.reads)
        taking = frame.take if turn.writes is None else self._writing(turn)
        engine = self._engines[turn.partition]
        frame.answer, took = engine.answer(
            *(frame.given, taking, frame.deadline, frame.cancelled, frame.record)
        )
        frame.took.append(took)

    def _end(self, number: int, turn: Turn) -> None:
        """``number`` goes on to the next partition, or is through; the lock is held."""
        self._handover.end(number)
        if turn.writes is None:
            self._frames.pop(number).ends()
        else:
            self._frames[number].waits()
        self._changed.notify_all()

    def _leave(self, number: int) -> None:
        """``number`` goes no further; the lock is held."""
        self._handover.leave(number)
        self._frames.pop(number).ends()
        self._changed.notify_all()

    def _writing(self, turn: Turn) -> Take[None]:
        """Return what takes the outputs of a partition: into the buffer that the next one reads."""

        def write(outputs: Arrays) -> None:
            assert turn.writes is not None
            self._edges.write(turn.partition, turn.writes, outputs)

        return write


class EdgeBuffers:
    """Buffers for what each of ``parts`` computes for the next one, as ``plan`` has them."""

    def __init__(self, parts: Sequence[Program], plan: PartitionedPlan) -> None:
        self._memory = HostMemory(plan.edge_bytes)
        self._buffers: list[list[Buffer]] = [
            [
                self._laid_out(part.outputs, buffer.offset)
                for buffer in plan.edges
                if buffer.id == cut
            ]
            for cut, part in zip(plan.cuts, parts, strict=False)
        ]

    @property
    def n_bytes(self) -> int:
        return self._memory.n_bytes

    def buffer(self, edge: int, number: int) -> Buffer:
        """Return what lies in a buffer: of one frame, from when it is written until it was read."""
        return self._buffers[edge][number]

    def write(self, edge: int, number: int, values: Arrays) -> None:
        """Copy ``values`` to a buffer."""
        for name, array in self._buffers[edge][number].items():
            np.copyto(array, values[name])

    def close(self) -> None:
        """Give the memory back; no partition runs."""
        self._buffers.clear()
        self._memory.close()

    def _laid_out(self, ports: Sequence[Port], start: int) -> Buffer:
        arrays: Buffer = {}
        for port in ports:
            arrays[port.name] = self._memory.array(start, port.dtype, port.shape)
            start += aligned(port.n_bytes)
        return arrays
