"""Reads that the pool does not take, residents of which one does not start: nothing stays lent or begun."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import cast

import pytest

from loader.errors import ClosedError, LoaderError, ReadError
from loader.pool.jobs import ReadJob
from loader.pool.pool import ReadPool
from loader.readers.fakes import MemoryReader
from pipeline.devices.base import DeviceError, Done
from pipeline.devices.cpu import CpuDevice
from pipeline.devices.device_memory import HostMemory, Memory, Space, Use
from pipeline.execution import weight_reads
from pipeline.execution.engine import Engine
from pipeline.execution.engine_memory import EngineMemory
from pipeline.execution.errors import DrainError
from pipeline.execution.leases import SharedArena
from pipeline.execution.weight_reads import WeightReads
from pipeline.planning.make import make_plan
from pipeline.planning.plan import Choice, Plan
from pipeline.schedule.architectures import ARCHITECTURES
from tests.examples import over
from tests.pipeline.synthetic import PAGE, program

SOURCE = program([2, 3, 1, 4, 2], [True, True, False, True, True, True])
CHOICE = Choice(6 * PAGE, read_bytes=PAGE, ahead="tail")
PLANS = {name: make_plan(SOURCE, ARCHITECTURES[name], choice=CHOICE) for name in ("2s", "async")}


class LentMemory(HostMemory):
    """Counts what is lent; ``refuses`` to lend, or to take back."""

    def __init__(self, n_bytes: int) -> None:
        super().__init__(n_bytes)
        self.lent: list[tuple[int, int]] = []
        self.refuses = ""

    def lend(self, offset: int, length: int) -> None:
        if self.refuses == "lend":
            raise DeviceError("it cannot be attached")
        self.lent.append((offset, length))

    def reclaim(self, offset: int, length: int) -> None:
        self.lent.remove((offset, length))
        if self.refuses == "reclaim":
            raise DeviceError("it cannot be attached")


class Pool:
    """Keeps jobs, or refuses them with ``error``."""

    def __init__(self) -> None:
        self.error: Exception | None = None
        self.jobs: list[ReadJob] = []

    def client(self, name: str, depth: int) -> None: ...

    def submit(self, job: ReadJob) -> None:
        if self.error is not None:
            raise self.error
        self.jobs.append(job)


def reads_of(plan: Plan, pool: Pool, memory: LentMemory, in_arena: bool) -> WeightReads:
    """Return reads into ``memory``, which is the arena or is not."""
    arena = memory if in_arena else HostMemory(PAGE)
    memories = SimpleNamespace(space=lambda _: memory, lease=SimpleNamespace(memory=arena))
    return WeightReads(
        *(SOURCE, plan, cast(EngineMemory, memories), CpuDevice(1)),
        *(cast(ReadPool, pool), MemoryReader(b"")),
    )


REFUSALS = [
    ClosedError("read pool closed"),
    LoaderError("client 'synthetic': 1024 reads wait already; the line is full"),
    MemoryError(),
    RuntimeError("can't start new thread"),
]


@over("name", sorted(PLANS))
@over("in_arena", [False, True])
@over("error", REFUSALS)
def test_a_read_that_the_pool_refuses_gives_back_what_was_lent(
    name: str, in_arena: bool, error: Exception
) -> None:
    plan, pool = PLANS[name], Pool()
    memory = LentMemory(100 * PAGE)
    reads, errors = reads_of(plan, pool, memory, in_arena), list[Exception | None]()
    pool.error = error
    for index in range(len(plan.stages[0])):
        with pytest.raises(type(error)) as caught:
            reads.start_read(index, lambda error, _: errors.append(error))
        assert caught.value is error
        assert (memory.lent, reads.writes_to_arena) == ([], False)
    assert errors == []
    pool.error = None
    for index in range(len(plan.stages[0])):
        reads.start_read(index, lambda error, _: errors.append(error))
    assert len(memory.lent) == len(plan.stages[0])
    assert reads.writes_to_arena is in_arena
    for index, job in enumerate(pool.jobs):
        job.done(ReadError("EIO") if index % 2 else None, 0.0)
    assert (memory.lent, reads.writes_to_arena) == ([], False)
    assert [error is None for error in errors] == [index % 2 == 0 for index in range(len(errors))]


def test_an_error_of_lend_or_reclaim_is_reported_once() -> None:
    plan, pool, memory = PLANS["2s"], Pool(), LentMemory(100 * PAGE)
    reads, errors = reads_of(plan, pool, memory, in_arena=True), list[Exception | None]()
    memory.refuses = "lend"
    with pytest.raises(DeviceError):
        reads.start_read(0, lambda error, _: errors.append(error))
    assert (memory.lent, pool.jobs, errors, reads.writes_to_arena) == ([], [], [], False)
    memory.refuses, pool.error = "reclaim", ClosedError("closed")
    with pytest.raises(ClosedError):  # the first error counts
        reads.start_read(0, lambda error, _: errors.append(error))
    assert (memory.lent, errors, reads.writes_to_arena) == ([], [], False)
    pool.error = None
    reads.start_read(0, lambda error, _: errors.append(error))
    pool.jobs[0].done(None, 0.0)
    assert [type(error) for error in errors] == [DeviceError]
    assert not reads.writes_to_arena


@over("failing", range(12))
@over("error", [*REFUSALS, DeviceError("no copy stage")])
@over("by_name", ["start", "next"])
def test_no_error_is_raised_while_a_move_is_in_flight(
    failing: int, error: Exception, by_name: str
) -> None:
    """What was started writes to memory that its owner gives back after an error."""
    in_flight: list[Done] = []
    started: list[int] = []

    def starts() -> object:
        for index in range(12):
            if index == failing and by_name == "next":
                raise error

            def start(done: Done, index: int = index) -> None:
                if index == failing:
                    raise error
                started.append(index)
                in_flight.append(done)

            yield start

    class Finished:
        """The queue of ends: moves end when they are waited for."""

        def __init__(self) -> None:
            self.ends: list[Exception | None] = []

        def put(self, error: Exception | None) -> None:
            self.ends.append(error)

        def get(self, timeout: float) -> Exception | None:
            in_flight.pop(0)(None, 0.0)
            return self.ends.pop(0)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("pipeline.execution.weight_reads.queue.SimpleQueue", Finished)
        with pytest.raises(type(error)) as caught:
            weight_reads._move(cast("list[Callable[[Done], None]]", starts()))
    assert caught.value is error
    assert in_flight == []
    assert started == list(range(failing))


def test_a_move_that_never_ends_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipeline.execution.deadlines.DRAIN_SECONDS", 0.0)
    with pytest.raises(DrainError):
        weight_reads._move([lambda done: None])


@over("failing", ["lane", "reads", "carrier"])
def test_an_engine_whose_constructor_raises_leaves_no_memory_and_no_client(failing: str) -> None:
    """Whatever raises after its memory was allocated, and its arena joined."""
    targets = {
        "lane": "pipeline.execution.engine_memory.LaneMemory",
        "reads": "pipeline.execution.weight_reads.expansion_of",
        "carrier": "pipeline.execution.engine.Carrier",
    }
    allocated: list[LentMemory] = []
    closed: list[object] = []

    class Counting(LentMemory):
        def close(self) -> None:
            closed.append(self)
            super().close()

    class Device(CpuDevice):
        def allocate(self, use: Use, n_bytes: int, slots: int = 1) -> Memory:
            allocated.append(Counting(n_bytes))
            return allocated[-1]

    def refuse(*_: object) -> None:
        raise MemoryError

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(targets[failing], refuse)
        arena, pool = SharedArena(Space(1 << 20)), ReadPool(1)
        plan = PLANS["async"]
        with pytest.raises(MemoryError):
            Engine(SOURCE, plan, Device(1), pool, MemoryReader(b""), lease=arena.join(PAGE))
        assert allocated
        assert closed == allocated
        assert (arena.members, arena.n_bytes) == (0, 0)
        assert [client.name for client in pool.statistics().clients] == ["shared"]
        pool.close()


def test_an_arena_that_is_never_free_does_not_keep_its_owner(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("pipeline.execution.leases._CLOSE_SECONDS", 0.0)
    arena = SharedArena(Space(1 << 20))
    lease = arena.join(PAGE)
    arena.acquire(None, lambda: False)
    arena.close()
    assert lease.memory.read(0, "uint8", (1,)).tolist() == [0], "the one that runs still uses it"
