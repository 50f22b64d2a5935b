"""Reads that end, fail or do not start at any moment between two sweeps: the next one is right or says why.

The moments are those at which a thread takes the engine's lock: what other threads do before it gets the
lock is done there.
"""

from collections.abc import Callable
from types import TracebackType
from typing import Any

import pytest

from loader.errors import ClosedError, LoaderError, ReadError
from pipeline.devices.base import Done
from pipeline.execution.errors import DrainError
from pipeline.execution.sweep import Sweeper
from pipeline.planning.make import make_plan
from pipeline.planning.plan import Choice
from pipeline.schedule.architectures import ARCHITECTURES
from pipeline.schedule.trace import TraceEvent
from tests.examples import over
from tests.pipeline.schedule.judge import violations
from tests.pipeline.synthetic import PAGE, program
from tests.pipeline.writes import writes

SOURCE = program([2, 3, 1, 4, 2], [True, True, False, True, True, True])
AHEAD = make_plan(
    SOURCE, ARCHITECTURES["2s"], choice=Choice(6 * PAGE, read_bytes=PAGE, ahead="tail")
)
COPIES = make_plan(SOURCE, ARCHITECTURES["async"])
AHEAD_READS = AHEAD.stages[0].ahead
NEEDED = len(AHEAD.stages[0]) - AHEAD_READS
assert AHEAD_READS > 1

#: An end of a read that a test has in_flight back; the argument is its error.
End = Callable[[Exception | None], None]


class Lock:
    """The lock of a engine: before it is taken for the ``moment``-th time, ``happens`` is called."""

    def __init__(self, lock: Any, moment: int, happens: Callable[[], None]) -> None:
        self._lock = lock
        self._moment = moment
        self._happens = happens

    def __enter__(self) -> bool:
        self._moment -= 1
        if self._moment == -1:
            self._happens()
        return bool(self._lock.__enter__())

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._lock.__exit__(kind, error, trace)


class Reads:
    """Ends reads at once; those ahead when the test says so, or does not start what ``refuses`` has."""

    def __init__(self) -> None:
        self.in_flight: list[End] = []
        self.holds = False
        self.refuses: dict[int, Exception] = {}
        self.open = 0
        #: How many were in_flight back when the engine last began to wait.
        self.awaited = 0

    def note_wait(self) -> None:
        self.awaited = len(self.in_flight)

    def __call__(self, index: int, done: Done) -> None:
        if index in self.refuses:
            raise self.refuses[index]
        self.open += 1

        def end(error: Exception | None = None) -> None:
            self.open -= 1
            done(error, 0.0)

        if index >= NEEDED and self.holds:
            self.in_flight.append(end)
        else:
            end()

    def end_all(self, failing: int) -> None:
        """End what is in_flight; the ``failing``-th fails."""
        in_flight, self.in_flight = self.in_flight, []
        for index, end in enumerate(in_flight):
            end(ReadError(f"read {index}: EIO") if index == failing else None)


@pytest.fixture(autouse=True)
def _no_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """All ends come from this thread, so one that has to be waited for never comes."""
    monkeypatch.setattr("pipeline.execution.sweep.DRAIN_SECONDS", 0.0)


def after_one_inference(reads: Reads, ran: list[int]) -> Sweeper:
    """Return a engine that has swept once, and whose reads ahead are in flight."""
    kernels = [lambda index=index: ran.append(index) for index in range(len(AHEAD.steps))]
    engine = Sweeper(AHEAD.stages, (reads,), kernels, reads.note_wait)
    reads.holds = True
    engine.run()
    reads.holds = False
    assert len(reads.in_flight) == AHEAD_READS
    ran.clear()
    return engine


def run(engine: Sweeper, ran: list[int]) -> str:
    """Return how one sweep ends; what it says of its schedule is checked."""
    trace: list[TraceEvent] = []
    ran.clear()
    try:
        engine.run(record=trace.append)
    except LoaderError as exc:
        return str(exc)
    assert ran == list(range(len(AHEAD.steps)))
    assert violations(trace, writes(AHEAD), len(SOURCE.pieces)) == []
    return "ok"


@over("moment", range(8))
@over("failing", range(-1, AHEAD_READS))
def test_a_read_ahead_may_fail_at_any_moment_of_the_next_start(failing: int, moment: int) -> None:
    reads, ran = Reads(), list[int]()
    engine = after_one_inference(reads, ran)
    lock = engine._lock
    engine._lock = Lock(lock, moment, lambda: reads.end_all(failing))  # type: ignore[assignment]
    try:
        result = run(engine, ran)
    except DrainError:
        assert reads.awaited, "it waits for a read that has ended"
        return
    assert result in {"ok", f"read {failing}: EIO"}
    assert failing >= 0 or result == "ok"
    engine._lock = lock
    assert run(engine, ran) == "ok"
    engine.settle()
    assert reads.open == 0


@over(
    "error", [ClosedError("read pool closed"), LoaderError("full"), MemoryError(), RuntimeError()]
)
@over("index", range(NEEDED + AHEAD_READS))
def test_a_read_that_does_not_start_leaves_nothing_in_flight(index: int, error: Exception) -> None:
    """One of this sweep ends it; one ahead fails no sweep: it is read in its own."""
    reads, ran = Reads(), list[int]()
    kernels = [lambda index=index: ran.append(index) for index in range(len(AHEAD.steps))]
    engine = Sweeper(AHEAD.stages, (reads,), kernels)
    reads.refuses = {index: error}
    for _ in range(2):
        ran.clear()
        if index < NEEDED:
            with pytest.raises(type(error)):
                engine.run()
        else:
            engine.run()
            assert ran == list(range(len(AHEAD.steps)))
        engine.settle()  # at once: nothing is in flight
        assert reads.open == 0
    reads.refuses = {}
    assert run(engine, ran) == "ok"


def test_a_read_ahead_that_does_not_start_is_read_by_the_next_inference() -> None:
    """It would be started by the thread that ends the one before it, once no caller waits for the sweep."""
    reads, ran = Reads(), list[int]()
    engine = after_one_inference(reads, ran)
    reads.refuses = {index: ClosedError("closed") for index in range(NEEDED, NEEDED + AHEAD_READS)}
    reads.end_all(-1)
    assert run(engine, ran) == "ok"
    reads.refuses = {}
    engine.settle()
    assert run(engine, ran) == "ok"


@over("failing", range(40))
@over("plan", [AHEAD, COPIES])
def test_a_recorder_that_fails_ends_its_inference_and_nothing_else(plan: Any, failing: int) -> None:
    """Whichever thread tells it: none is left counting an operation that has ended."""
    events: list[TraceEvent] = []

    def record(event: TraceEvent) -> None:
        events.append(event)
        if len(events) == failing + 1:
            raise OSError("the trace cannot be written")

    open_reads: list[int] = []
    in_flight: list[Callable[[], None]] = []

    def read(index: int, done: Done) -> None:
        open_reads.append(index)

        def end() -> None:
            open_reads.remove(index)
            done(None, 0.0)

        if index >= len(plan.stages[0]) - plan.stages[0].ahead and not in_flight:
            in_flight.append(end)
        else:
            end()

    starts = (read, read)[: len(plan.stages) - 1]
    engine = Sweeper(plan.stages, starts, [lambda: None for _ in plan.steps])
    engine.run()
    for end in in_flight:
        end()
    failed = False
    try:
        engine.run(record=record)
    except OSError:
        failed = True
    assert failed is (len(events) > failing)
    engine.settle()
    assert open_reads == []
    engine.run()
    engine.settle()
