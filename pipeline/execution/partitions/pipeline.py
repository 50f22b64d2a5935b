"""Partitions of one network that compute at once, each for another frame (seed 000, Section 2.2).

A thread carries one frame through all partitions: it waits for its turn at one, runs that partition's
engine on the partition's core, and goes on to the next. So an error, a deadline or a client that leaves
ends one call and nothing else. Up to as many threads as there are partitions call ``answer`` at a time.

Invariant: who may run where, and which buffer of an edge is whose, says handover.py alone.
"""

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from typing import Any, TypeVar

from numpy.typing import NDArray

from models.packs.pack import Pack
from pipeline.execution.engine import Engine
from pipeline.execution.errors import CancelledError, DeadlineError, EngineClosedError
from pipeline.execution.given import Arrays, Take, Tensors, copies
from pipeline.execution.partitions.cores import pinned
from pipeline.execution.partitions.edges import Edges
from pipeline.execution.partitions.handover import Handover, Turn
from pipeline.execution.statistics import EngineStatistics, SweepStatistics, together
from pipeline.planning.partitions.plan import PipelinePlan
from pipeline.schedule.trace import Recorder

T = TypeVar("T")


class Pipeline:
    """Runs ``pack`` as ``plan`` says, with an open engine for each partition; closes them.

    ``cores``: of each partition; () leaves threads where the system puts them.
    """

    def __init__(
        self,
        pack: Pack,
        plan: PipelinePlan,
        engines: Sequence[Engine],
        cores: Sequence[int] = (),
    ) -> None:
        self.pack = pack
        self.plan = plan
        self._engines = tuple(engines)
        self._cores: list[tuple[int, ...]] = [(core,) for core in cores]
        self._cores += [()] * (len(self._engines) - len(cores))
        self._edges = Edges([engine.pack.manifest for engine in engines])
        self._handover = Handover(len(self._engines))
        self._changed = threading.Condition()
        self._closed = False

    def run(
        self,
        inputs: Tensors,
        deadline: float | None = None,
        cancelled: Callable[[], bool] = lambda: False,
        record: Recorder | None = None,
        during: AbstractContextManager[object] | None = None,
    ) -> tuple[dict[str, NDArray[Any]], SweepStatistics]:
        """Carry one frame through all partitions; return copies of the outputs, as Engine.run."""
        return self.answer(inputs, copies, deadline, cancelled, record, during)

    def answer(
        self,
        inputs: Tensors,
        take: Take[T],
        deadline: float | None = None,
        cancelled: Callable[[], bool] = lambda: False,
        record: Recorder | None = None,
        during: AbstractContextManager[object] | None = None,
    ) -> tuple[T, SweepStatistics]:
        """Carry one frame through all partitions; arguments and errors are those of Engine.answer.

        ``during`` is entered when the first partition begins. ``turn_seconds`` of what the sweeps took has
        all that the frame waited for a partition.
        """
        frame = _Frame(self._enter(), deadline, cancelled)
        answer: Any = None
        given = inputs
        try:
            with ExitStack() as running:
                for engine, cores in zip(self._engines, self._cores, strict=True):
                    turn = self._begin(frame)
                    if during is not None and turn.partition == 0:
                        running.enter_context(during)
                    if turn.reads is not None:
                        given = self._edges.buffer(turn.partition - 1, turn.reads)
                    taking = take if turn.writes is None else self._writing(turn)
                    with pinned(cores):
                        answer, took = engine.answer(given, taking, deadline, cancelled, record)
                    frame.took.append(took)
                    self._end(frame)
        except BaseException:
            self._leave(frame)
            raise
        return answer, together(frame.took, frame.waited)

    def wake(self) -> None:
        """Have calls that wait look whether they are cancelled."""
        with self._changed:
            self._changed.notify_all()
        for engine in self._engines:
            engine.wake()

    @property
    def workers(self) -> int:
        """How many threads may call ``answer`` at a time, each with a partition to run."""
        return len(self._engines)

    @property
    def broken(self) -> str:
        """Why it can never answer again; empty as long as it can."""
        return next((engine.broken for engine in self._engines if engine.broken), "")

    @property
    def lost_device(self) -> bool:
        """Whether only a new process can use a device again."""
        return any(engine.lost_device for engine in self._engines)

    @property
    def reads_nothing(self) -> bool:
        """Never of the thread that asks alone: frames wait for each other."""
        return False

    @property
    def takes_turns(self) -> bool:
        """Never with other models: partitions compute at once, each in an arena of its own."""
        return False

    @property
    def ahead_bytes(self) -> int:
        """What is read for a request before it comes."""
        return sum(engine.ahead_bytes for engine in self._engines)

    @property
    def closed(self) -> bool:
        """Whether new frames are refused."""
        return self._closed

    @property
    def frames(self) -> int:
        """Requests that have begun, or wait for a partition."""
        return len(self._handover.frames)

    def statistics(self) -> EngineStatistics:
        """Return the figures of all engines; a sweep is a frame that went through."""
        found = [engine.statistics() for engine in self._engines]
        memory = {kind: sum(each.memory[kind] for each in found) for kind in found[0].memory}
        memory["arena"] += self._edges.n_bytes
        return EngineStatistics(
            sweeps=found[-1].sweeps,
            failures=sum(each.failures for each in found),
            read_bytes=sum(each.read_bytes for each in found),
            stall_seconds=sum(each.stall_seconds for each in found),
            memory=memory,
        )

    def huge_page_bytes(self) -> int:
        """Return how much of the memory for weights lies on huge pages."""
        return sum(engine.huge_page_bytes() for engine in self._engines)

    def settle(self) -> None:
        """Wait for the reads that run ahead of next frames."""
        for engine in self._engines:
            engine.settle()

    def close(self) -> None:
        """Refuse new frames, wait for those that have begun, give all memory back."""
        with self._changed:
            self._closed = True
            self._changed.wait_for(lambda: not self._handover.frames)
        for engine in self._engines:
            engine.close()
        if not self.broken:
            self._edges.close()

    def _writing(self, turn: Turn) -> Take[None]:
        """Return what takes the outputs of a partition: into the buffer that the next one reads."""

        def write(outputs: Arrays) -> None:
            assert turn.writes is not None
            self._edges.write(turn.partition, turn.writes, outputs)

        return write

    def _enter(self) -> int:
        with self._changed:
            if self._closed:
                raise EngineClosedError(f"{self.pack.name}: the engine is closed")
            return self._handover.enter()

    def _begin(self, frame: "_Frame") -> Turn:
        """Wait until ``frame`` may begin at its next partition.

        Raises:
            CancelledError, DeadlineError: as asked.
        """
        asked = time.perf_counter()
        with self._changed:
            while (turn := self._handover.begin(frame.number)) is None:
                self._changed.wait(frame.left())
        frame.waited += time.perf_counter() - asked
        return turn

    def _end(self, frame: "_Frame") -> None:
        with self._changed:
            self._handover.end(frame.number)
            self._changed.notify_all()

    def _leave(self, frame: "_Frame") -> None:
        with self._changed:
            self._handover.leave(frame.number)
            self._changed.notify_all()


@dataclass
class _Frame:
    """One request on its way: ``took`` and ``waited`` say what its partitions took and the way there."""

    number: int
    deadline: float | None
    cancelled: Callable[[], bool]
    waited: float = 0.0
    took: list[SweepStatistics] = field(default_factory=list)

    def left(self) -> float | None:
        """Return how long it may wait on; None: for ever.

        Raises:
            CancelledError, DeadlineError: not at all.
        """
        if self.cancelled():
            raise CancelledError("cancelled while another frame was running")
        if self.deadline is None:
            return None
        left = self.deadline - time.monotonic()
        if left <= 0:
            raise DeadlineError("the deadline passed while another frame was running")
        return left
