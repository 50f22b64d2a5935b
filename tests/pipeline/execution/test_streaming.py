"""Sweeps whose reads C counts, and those of the schedule in Python: the same bytes, errors and traces."""

import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loader.errors import LoaderError, ReadError
from loader.pool.pool import ReadPool
from loader.readers.fakes import FaultyReader, MemoryReader, ReadFault
from loader.readers.files import open_reader
from loader.readers.interface import Reader
from pipeline.devices.base import Launch, nothing
from pipeline.devices.cpu import CpuDevice
from pipeline.devices.device_memory import HostMemory
from pipeline.execution.engine_memory import EngineMemory
from pipeline.execution.errors import CancelledError, DeadlineError, DrainError
from pipeline.execution.streaming import StreamRunner
from pipeline.execution.sweep import Sweeper, sweeper_for
from pipeline.execution.weight_reads import WeightReads
from pipeline.planning.make import make_plan
from pipeline.planning.plan import Choice, Plan, PlanError
from pipeline.program.program import Program
from pipeline.schedule.architectures import ARCHITECTURES
from pipeline.schedule.trace import TraceEvent
from tests.examples import examples, over
from tests.loader.support import WAIT_SECONDS, Gate, in_thread
from tests.pipeline.schedule.judge import violations
from tests.pipeline.synthetic import PAGE, program
from tests.pipeline.writes import writes

pytestmark = pytest.mark.usefixtures("reads_by")
SOURCE = program([2, 3, 1, 4, 2], [True, True, False, True, True, True])
AHEAD = make_plan(
    SOURCE, ARCHITECTURES["2s"], choice=Choice(6 * PAGE, read_bytes=PAGE, ahead="tail")
)
FILE = np.random.default_rng(7).bytes(16 * PAGE)


#: What is launched instead of the kernels.
Launches = Callable[[list[Launch]], list[Launch]]


def as_they_are(kernels: list[Launch]) -> list[Launch]:
    return kernels


class Streamed:
    """The reads of ``plan`` into memory of its own, and kernels that look at what lies there."""

    def __init__(
        self, source: Program, plan: Plan, pool: ReadPool, reader: Reader, launches: Launches
    ) -> None:
        buffers = [plan.buffers[read.buffer] for read in plan.reads]
        self.ring = HostMemory(max((buffer.end for buffer in buffers), default=1))
        self.lease = SimpleNamespace(memory=HostMemory(PAGE))
        memories = SimpleNamespace(space=lambda _: self.ring, lease=self.lease)
        device = CpuDevice(1)
        self.reads = WeightReads(source, plan, cast(EngineMemory, memories), device, pool, reader)
        self.reads.verify = False
        self.plan = plan
        self.ran: list[int] = []
        self.wrong: list[int] = []
        self._source = source
        kernels = launches([self.kernel(index) for index in range(len(plan.steps))])
        runner = sweeper_for(
            *(plan.stages, (self.reads.start_read,), kernels, self.reads.hurry),
            stream=self.reads.stream(),
        )
        assert isinstance(runner, Sweeper | StreamRunner)
        self.runner = runner

    def kernel(self, index: int) -> Launch:
        users = zip(self.plan.reads, self.plan.users, strict=True)
        reads = [read for read, steps in users if index in steps]

        def run() -> None:
            self.ran.append(index)
            for read in reads:
                start = self.plan.buffers[read.buffer].offset
                for span in read.spans:
                    record = self._source.spans[span]
                    there = self.ring.host(start, record.file_length)
                    start += record.file_length
                    if there != FILE[record.file_offset : record.file_offset + record.file_length]:
                        self.wrong.append(index)

        return run

    def close(self) -> None:
        self.runner.drain()
        self.reads.close()


@contextmanager
def streamed(
    reader: Reader, plan: Plan = AHEAD, source: Program = SOURCE, launches: Launches = as_they_are
) -> Iterator[Streamed]:
    with closing(ReadPool(plan.choice.depth)) as pool, closing(reader):
        model = Streamed(source, plan, pool, reader, launches)
        with closing(model):
            yield model


def test_streams_are_of_c(reads_by: str) -> None:
    with streamed(MemoryReader(FILE)) as model:
        assert isinstance(model.runner, StreamRunner if reads_by == "C" else Sweeper)


@given(
    pages=st.lists(st.integers(1, 4), min_size=1, max_size=5),
    uses=st.lists(st.booleans(), max_size=8),
    ring=st.integers(4, 9),
    read_pages=st.integers(1, 3),
    of_file=st.booleans(),
)
@examples(12, 300)
def test_kernels_find_the_bytes_of_the_file(
    pages: list[int],
    uses: list[bool],
    ring: int,
    read_pages: int,
    of_file: bool,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    uses_span = [*uses, *[True] * (len(pages) - sum(uses))]
    pages = [*pages, *[1] * (sum(uses_span) - len(pages))]
    while sum(pages) > len(FILE) // PAGE:
        pages[pages.index(max(pages))] -= 1
    source = program(pages, uses_span)
    choice = Choice(ring * PAGE, read_bytes=read_pages * PAGE, ahead="tail")
    try:
        plan = make_plan(source, ARCHITECTURES["2s"], choice=choice)
    except PlanError:
        return
    path = tmp_path_factory.mktemp("weights") / "weights.bin"
    path.write_bytes(FILE)
    with streamed(open_reader(path) if of_file else MemoryReader(FILE), plan, source) as model:
        for recorded in (False, True, False, True, True):
            trace: list[TraceEvent] = []
            result = model.runner.run(record=trace.append if recorded else None)
            assert model.ran == list(range(len(plan.steps)))
            assert model.wrong == []
            model.ran.clear()
            assert 0 <= result.stall_seconds <= result.delay_seconds
            if recorded:
                assert violations(trace, writes(plan), len(plan.steps)) == []
                assert [event.at for event in trace] == sorted(event.at for event in trace)


@over("failing", range(len(AHEAD.reads)))
@over("kind", ["io error", "gone"])
def test_a_read_that_fails_ends_its_pass_and_names_the_disk(failing: int, kind: str) -> None:
    record = SOURCE.spans[AHEAD.reads[failing].spans[0]]
    start = record.file_offset
    fault = ReadFault("io error", start, start + 1, times=None if kind == "gone" else 1)
    with streamed(FaultyReader(MemoryReader(FILE), [fault])) as model:
        with pytest.raises(ReadError, match="memory: bytes"):
            model.runner.run()
        assert model.ran == list(range(len(model.ran)))
        assert len(model.ran) <= AHEAD.users[failing].start
        for _ in range(2):
            model.ran.clear()
            if kind == "gone":
                with pytest.raises(ReadError, match="memory: bytes"):
                    model.runner.run()
            else:
                model.runner.run()
                assert model.ran == list(range(len(AHEAD.steps)))
        assert model.wrong == []


@given(times=st.lists(st.integers(0, 30), max_size=6), data=st.data())
def test_faults_at_any_time_give_right_bytes_or_an_error(
    times: list[int], data: st.DataObject
) -> None:
    """Reads are numbered as they come, so that those ahead fail, too."""
    count = 0

    def hook(_offset: int, _length: int) -> None:
        nonlocal count
        count += 1
        if count in times:
            raise ReadError("memory: bytes [0, 1): Input/output error")

    failures = 0
    with streamed(MemoryReader(FILE, hook)) as model:
        for _ in range(8):
            model.ran.clear()
            try:
                model.runner.run()
                assert model.ran == list(range(len(AHEAD.steps)))
            except ReadError:
                failures += 1
        assert model.wrong == []
    assert failures <= len(times)


def test_a_file_that_fails_in_c_is_read_once_more_for_its_error(tmp_path: Path) -> None:
    """Cut short after it was opened: C gets no bytes, and the reader says where it ends."""
    path = tmp_path / "weights.bin"
    path.write_bytes(FILE)
    with streamed(open_reader(path)) as model:
        model.runner.run()
        with path.open("r+b") as file:
            file.truncate(5 * PAGE)
        model.runner.drain()
        with pytest.raises(ReadError, match=r"weights\.bin: ends at"):
            model.runner.run()
        path.write_bytes(FILE)
        model.runner.run()
        assert model.wrong == []


def test_a_late_pass_and_a_cancelled_one_read_no_more() -> None:
    gate = Gate()
    with streamed(MemoryReader(FILE, gate)) as model:
        opening = threading.Timer(0.0, gate.open.set)
        opening.start()
        with pytest.raises(DeadlineError):
            model.runner.run(deadline=0.0)
        assert model.ran == []
        with pytest.raises(CancelledError):
            model.runner.run(cancelled=lambda: len(model.ran) == 2)
        assert model.ran == [0, 1]
        model.ran.clear()
        model.runner.run()
        assert model.ran == list(range(len(AHEAD.steps)))
        assert model.wrong == []


def test_a_disk_that_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipeline.execution.deadlines.DRAIN_SECONDS", 0.02)
    gate = Gate()
    with streamed(MemoryReader(FILE, gate)) as model:
        with pytest.raises(DrainError, match="reads have not ended"):
            model.runner.run()
        assert model.ran == []
        assert not model.reads.writes_to_arena
        monkeypatch.setattr("pipeline.execution.deadlines.DRAIN_SECONDS", WAIT_SECONDS)
        gate.open.set()


def test_the_disk_may_write_to_the_arena_while_such_a_read_is_in_flight() -> None:
    gate = Gate()
    with streamed(MemoryReader(FILE, gate)) as model:
        model.lease.memory = model.ring
        thread = threading.Thread(target=model.runner.run)
        thread.start()
        assert gate.arrived.acquire(timeout=WAIT_SECONDS)
        assert model.reads.writes_to_arena
        gate.open.set()
        thread.join()
        model.runner.drain()
        assert not model.reads.writes_to_arena


def test_steps_of_one_launch_end_with_it() -> None:
    """The first of a run does the work of all: nobody is asked in between, and a trace has as_they_are."""

    def fused(kernels: list[Launch]) -> list[Launch]:
        return [kernels[0], nothing, *kernels[2:4], nothing, nothing]

    with streamed(MemoryReader(FILE), launches=fused) as model:
        model.runner.run()
        trace: list[TraceEvent] = []
        model.runner.run(record=trace.append)
        assert model.ran == [0, 2, 3] * 2
        assert model.wrong == []
        assert violations(trace, writes(AHEAD), len(AHEAD.steps)) == []


def test_a_closed_pool_is_an_error() -> None:
    reader = MemoryReader(FILE)
    pool = ReadPool()
    model = Streamed(SOURCE, AHEAD, pool, reader, as_they_are)
    model.runner.run()
    model.runner.drain()
    pool.close()
    with pytest.raises(LoaderError, match="closed"):
        model.runner.run()
    model.close()


def test_reads_that_a_pass_needs_come_before_those_ahead_of_another_model() -> None:
    came, gate, count = list[str](), Gate(), len(AHEAD.reads)

    def first(offset: int, length: int) -> None:
        came.append("first")
        if len(came) == count + 1:  # the first of those ahead
            gate(offset, length)

    def second(_offset: int, _length: int) -> None:
        came.append("second")

    with (
        closing(ReadPool(1)) as pool,
        closing(Streamed(SOURCE, AHEAD, pool, MemoryReader(FILE, first), as_they_are)) as one,
        closing(Streamed(SOURCE, AHEAD, pool, MemoryReader(FILE, second), as_they_are)) as other,
    ):
        one.runner.run()
        assert gate.arrived.acquire(timeout=WAIT_SECONDS)
        passing = in_thread(lambda: cast(None, other.runner.run()))
        while not pool.statistics().clients[-1].waiting:
            assert passing.is_alive()
        gate.open.set()
        passing.join(WAIT_SECONDS)
        assert came[count + 1] == "second"
        assert other.ran == list(range(len(AHEAD.steps)))
        one.runner.run()
        assert one.wrong == other.wrong == []


def test_models_in_one_pool_find_the_bytes_of_their_files() -> None:
    with (
        closing(ReadPool(2)) as pool,
        closing(Streamed(SOURCE, AHEAD, pool, MemoryReader(FILE), as_they_are)) as one,
        closing(Streamed(SOURCE, AHEAD, pool, MemoryReader(FILE), as_they_are)) as other,
    ):

        def run_often() -> None:
            for _ in range(20):
                other.runner.run()

        passing = in_thread(run_often)
        for _ in range(20):
            one.runner.run()
        passing.join(WAIT_SECONDS)
        assert len(one.ran) == len(other.ran) == 20 * len(AHEAD.steps)
        assert one.wrong == other.wrong == []
