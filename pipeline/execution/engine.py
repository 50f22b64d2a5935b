"""The engine: one model, its memory, and sweeps over it.

Invariant: between sweeps no kernel runs and nothing is in flight but reads for the next sweep; all memory
the plan names, and no other, belongs to the engine from ``open`` to ``close``. One thread at a time may
call ``run``.
"""

import contextlib
import threading
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any

from loader.cores import pinned
from loader.pool.pool import ReadPool
from loader.readers.interface import Reader
from models.runtime.heap import heap_bytes, no_collections
from pipeline.devices.base import Device, DeviceLostError
from pipeline.execution.answering import Answer, Answering
from pipeline.execution.baton import FREE, ComputeClaim
from pipeline.execution.binding import bind_steps
from pipeline.execution.computing import ComputingSweeper
from pipeline.execution.engine_memory import EngineMemory
from pipeline.execution.errors import DrainError, EngineClosedError
from pipeline.execution.lane import ExpectedInputs, Lane, LaneMemory, LaneRun
from pipeline.execution.leases import ArenaLease, SharedLease
from pipeline.execution.statistics import EngineStatistics, SweepStatistics, SweepTally
from pipeline.execution.streaming import StreamRunner
from pipeline.execution.sweep import Sweeper, sweeper_for
from pipeline.execution.table_reads import checked_inputs
from pipeline.execution.weight_reads import WeightReads, load_residents, read_ahead_again
from pipeline.planning.plan import Plan
from pipeline.program.program import Program
from pipeline.schedule.schedule import Stage
from pipeline.schedule.trace import Recorder

#: What was taken out for each lane, and the figures of the sweep.
_Carried = tuple[dict[int, Any], SweepStatistics]

# Requests carried through sweeps: their tensors in, one sweep for all of them, what each takes out.
#
# Invariant: between sweeps nothing here holds a tensor of a request.


class Carrier:
    """Carries as many requests at once as there are ``memories``, one thread at a time.

    ``read_bytes``: of each sweep. ``verify``: check every span on every sweep; without it the first whole
    sweep checks, later ones do not.
    """

    def __init__(
        self,
        program: Program,
        memories: Sequence[LaneMemory],
        reads: WeightReads,
        reader: Reader,
        read_bytes: int,
        verify: bool,
    ) -> None:
        #: The lanes of the sweep that runs: kernels that are bound for several ask.
        self.running = _NOBODY
        self.tally = SweepTally()
        self.sweeper: Sweeper | ComputingSweeper | StreamRunner = _idle()
        self._defaults = program.defaults()
        self._memories = memories
        self._reads = reads
        self._reader = reader
        self._read_bytes = read_bytes
        self._verify = verify
        self._verified = False
        #: Held where ``running`` changes, and while its kernels are stopped.
        self._stopping = threading.Lock()

    def carry(
        self,
        lanes: Sequence[Lane],
        run: LaneRun,
        record: Recorder | None,
        claim: ComputeClaim = FREE,
    ) -> _Carried:
        """Sweep once for all ``lanes`` that run; return what these took, and what the sweep took.

        Raises:
            As Engine.answer, for what ends all lanes; what ends one is kept in ``run``.
        """
        outputs: dict[int, Any] = {}
        memories = self._memories

        def put(lane: int) -> None:
            inputs = lanes[lane].inputs
            memories[lane].put({**self._defaults, **inputs} if self._defaults else inputs)

        def take(lane: int) -> None:
            outputs[lane] = lanes[lane].take(memories[lane].views())

        self._reader.check()
        self._begin(run)
        try:
            run.each(put)
            statistics = self._sweep(run, record, claim)
            for memory in memories:
                memory.forget_inputs()
            run.each(take)
        finally:
            with self._stopping:
                self.running = _NOBODY
            for memory in memories:
                memory.forget()
        return outputs, statistics

    def _begin(self, run: LaneRun) -> None:
        with self._stopping:
            self.running = run
            for memory in self._memories:
                memory.stop(False)

    def stop_unwanted(self) -> None:
        """End kernels that run longer than anybody waits for them; from any thread."""
        with self._stopping:
            for position in self.running.running:
                if self.running.end_of(position) is not None:
                    self._memories[position].stop(True)

    def rest(self) -> None:
        """Let go of the kernels."""
        self.sweeper = _idle()

    def _sweep(self, run: LaneRun, record: Recorder | None, claim: ComputeClaim) -> SweepStatistics:
        verified = self._verify or not self._verified
        self._reads.verify, self._reads.deadline = verified, run.deadline
        tables = self._reads.tables
        tables.deadline, tables.cancelled, tables.claim = run.deadline, run.all_stopped, claim
        n_bytes = tables.n_bytes
        try:
            statistics = self.sweeper.run(run.deadline, run.all_stopped, record, claim)
        except BaseException:
            self.tally.failures += 1
            raise
        self._verified = True
        self.tally.sweeps += 1
        n_bytes = self._read_bytes + tables.n_bytes - n_bytes
        self.tally.read_bytes += n_bytes
        self.tally.stall_seconds += statistics.stall_seconds
        if not verified and not n_bytes:
            return statistics
        return statistics._replace(read_bytes=n_bytes, verified=verified)


_NOBODY = LaneRun(())


def _idle() -> ComputingSweeper:
    return ComputingSweeper((Stage("kernel", ()),), ())


# The engine.


class Engine(Answering):
    """Runs ``program`` as ``plan`` says. Reading goes through ``pool``, computing through ``device``.

    ``verify``: check every span on every sweep; without it the first whole sweep (and the reading of
    resident spans) checks, later ones do not. ``lease``: of an arena that engines use in turns,
    this engine's to close from now on; None: it has its own. ``of``: the engine of the largest shape, whose
    memory and reader this one uses, too, while that one runs nothing, and which is closed after it.
    """

    _memory: EngineMemory

    def __init__(
        self,
        program: Program,
        plan: Plan,
        device: Device,
        pool: ReadPool,
        reader: Reader,
        verify: bool = False,
        *,
        lease: ArenaLease | None = None,
        of: "Engine | None" = None,
    ) -> None:
        self.program = program
        self._plan = plan
        self._device = device
        self._reader = reader
        self._broken: DrainError | DeviceLostError | None = None
        self._session_bytes = 0
        self._expected = ExpectedInputs(program.inputs, checked_inputs(program))
        self._lock = threading.Lock()
        self._is_open = self._is_asleep = False
        self._populating: threading.Thread | None = None
        of_memory = None if of is None else of._memory
        self._memory = EngineMemory(program, plan, device, lease, of_memory)
        self._owns_memory = of is None
        lease = self._memory.lease
        #: The lease, where it is of an arena that others use, too.
        self._shared = lease if isinstance(lease, SharedLease) else None
        with contextlib.ExitStack() as failed:
            failed.callback(self._memory.close)
            self._reads = WeightReads(program, plan, self._memory, device, pool, reader)
            failed.callback(self._reads.close)
            self._carrier = Carrier(
                program, self._memory.lanes, self._reads, reader, plan.read_bytes, verify
            )
            failed.pop_all()

    @property
    def plan(self) -> Plan:
        return self._plan

    @property
    def reader(self) -> Reader:
        """That of the weights."""
        return self._reader

    def open(self) -> None:
        """Read the resident spans and load the kernels.

        Raises:
            LoaderError: a resident span cannot be read or is damaged. DrainError: its read
                never ended. DeviceError: a piece cannot be loaded. ``close`` is still due.
        """
        self._load(self._load_residents)
        carrier = self._carrier
        with no_collections():  # of garbage that was there before: it is not of the sessions
            before = heap_bytes() or 0
            kernels = bind_steps(
                *(self.program, self.plan, self._device, self._memory),
                *(lambda: carrier.running, self._reads.tables),
            )
            self._session_bytes = max((heap_bytes() or 0) - before, 0)
        starts = (self._reads.start_read, self._reads.start_copy)
        carrier.sweeper = sweeper_for(
            self.plan.stages,
            starts[: len(self.plan.stages) - 1],
            kernels,
            self._reads.hurry,
            self._device.finish if self._device.asynchronous else None,
            self._reader.name,
            stream=self._reads.stream(),
        )
        self._is_open = True

    def _load(self, read: Callable[[], None]) -> None:
        """Call ``read``; a read that never ends breaks the engine."""
        try:
            read()
        except DrainError as exc:
            self._broken = exc
            raise

    def _load_residents(self) -> None:
        load_residents(self.program, self.plan, self._memory, self._device, self._reads.read_span)

    def sleep(self) -> bool:
        with self._lock:
            if self._broken is not None or not self._is_open:
                return False
            self._memory.stop_populating()
            if self._populating is not None:
                self._populating.join()
            self.settle()  # the disk writes to none of it from here on
            if self._broken is None:
                self._is_asleep = self._memory.discard()
            return self._is_asleep

    @property
    def is_asleep(self) -> bool:
        return self._is_asleep

    def _restore(self) -> None:
        """Read the resident weights again; after an error the next request tries again."""
        if self._is_asleep:
            self._load(self._reads_again)
            self._is_asleep = False

    def _reads_again(self) -> None:
        self._load_residents()
        read_ahead_again(self._reads, self.plan)

    def populate(self) -> None:
        """Take memory from the system on a thread beside what is done next, until ``close``.

        Where there is no thread for it, kernels take each page as they touch it.
        """
        thread = threading.Thread(target=self._memory.populate, name="populate", daemon=True)
        with contextlib.suppress(RuntimeError):
            thread.start()
            self._populating = thread

    def run_batch(
        self,
        requests: Sequence[Lane],
        record: Recorder | None,
        claim: ComputeClaim,
        keeps_core: bool,
    ) -> list[Answer | Exception]:
        max_size = self._plan.choice.lanes
        if not 0 < len(requests) <= max_size:
            raise ValueError(f"{len(requests)} lanes, planned were 1 to {max_size}")
        run = LaneRun(requests)
        carried: _Carried | None = None
        try:
            run.each(lambda lane: self._expected.check(requests[lane].inputs))
            if run.running:
                with self._lock:
                    carried = self._in_turn(
                        run, partial(self._carry, requests, run, record, claim, keeps_core)
                    )
        except Exception as exc:  # noqa: BLE001  it is raised in each call that waits for it
            for lane in run.running:
                run.stop(lane, exc)
        return [
            run.errors[lane]
            if carried is None or lane in run.errors
            else (carried[0][lane], carried[1])
            for lane in range(len(requests))
        ]

    def _in_turn(self, run: LaneRun, carry: Callable[[], _Carried]) -> _Carried:
        """Return what ``carry`` gives, when it is this model's turn with an arena that others use, too."""
        self._check_usable()
        self._restore()
        if self._shared is None:
            return carry()
        with self._shared.turn(run.deadline, run.all_stopped) as waited:
            outputs, statistics = carry()
            turns = waited + statistics.turn_seconds
            return outputs, statistics._replace(turn_seconds=turns)

    def _carry(
        self,
        lanes: Sequence[Lane],
        run: LaneRun,
        record: Recorder | None,
        claim: ComputeClaim,
        keeps_core: bool,
    ) -> _Carried:
        try:
            if not keeps_core:
                return self._carrier.carry(lanes, run, record, claim)
            with pinned(self._device.launching_cores):
                return self._carrier.carry(lanes, run, record, claim)
        except (DrainError, DeviceLostError) as exc:
            self._broken = exc
            if self._reads.writes_to_arena:
                self._memory.lease.lose()
            raise

    @property
    def callers(self) -> int:
        return 1

    @property
    def ahead_bytes(self) -> int:
        return sum(read.n_bytes for read in self.plan.reads[: self.plan.stages[0].ahead])

    def wake(self) -> None:
        self._memory.lease.wake()
        self._carrier.stop_unwanted()

    @property
    def broken(self) -> str:
        return str(self._broken) if self._broken is not None else ""

    @property
    def reads_nothing(self) -> bool:
        return not (self.plan.reads or self.plan.reads_rows or self._device.asynchronous)

    @property
    def takes_turns(self) -> bool:
        return self._shared is not None

    @property
    def lost_device(self) -> bool:
        return isinstance(self._broken, DeviceLostError)

    def statistics(self) -> EngineStatistics:
        return EngineStatistics(
            **asdict(self._carrier.tally),
            memory={
                **self._memory.n_bytes(),
                "scratch": self.plan.scratch_bytes,
                "io": self.plan.io_bytes,
                "sessions": self._session_bytes,
                "objects": self.plan.object_bytes,
            },
        )

    def huge_page_bytes(self) -> int:
        return self._memory.huge_page_bytes()

    def close(self) -> None:
        with self._lock:
            self._memory.stop_populating()
            if self._populating is not None:
                self._populating.join()
            if self._is_open:
                self.settle()
            self._is_open = False
            self._carrier.rest()
            if self._broken is not None:
                if self._owns_memory:
                    self._memory.lease.abandon()
                return  # the disk may still write to the rest
            self._reads.close()
            self._memory.close()
            if self._owns_memory:
                self._reader.close()

    def fail_with(self, other: "Engine") -> None:
        """Fail as ``other``, which uses the same memory, has."""
        self._broken = self._broken or other._broken

    def settle(self) -> None:
        try:
            self._carrier.sweeper.drain()
        except DrainError as exc:
            self._broken = exc

    def _check_usable(self) -> None:
        if self._broken is not None:
            raise self._broken
        if not self._is_open:
            raise EngineClosedError(f"{self.program.name}: the engine is closed")
