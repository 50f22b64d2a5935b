"""Reads that end, fail or do not start at any moment between two sweeps: the next one is right or says why.

Or during a pass: ``stepped.py`` tries all orders.
"""

from collections.abc import Callable
from typing import Any

import pytest

from loader.errors import ClosedError, LoaderError, ReadError
from pipeline.devices.base import Done
from pipeline.execution.sweep import Sweeper
from pipeline.planning.make import make_plan
from pipeline.planning.plan import Choice
from pipeline.schedule.architectures import ARCHITECTURES
from pipeline.schedule.trace import TraceEvent
from tests.examples import over
from tests.pipeline.execution.stepped import Choices, Stepped
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


class Reads:
    """Ends reads at once; those ahead when the test says so, or does not start what ``refuses`` has."""

    def __init__(self) -> None:
        self.in_flight: list[End] = []
        self.holds = False
        self.refuses: dict[int, Exception] = {}
        self.open = 0

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
    monkeypatch.setattr("pipeline.execution.deadlines.DRAIN_SECONDS", 0.0)


def after_one_inference(reads: Reads, ran: list[int]) -> Sweeper:
    """Return a engine that has swept once, and whose reads ahead are in flight."""
    kernels = [lambda index=index: ran.append(index) for index in range(len(AHEAD.steps))]
    engine = Sweeper(AHEAD.stages, (reads,), kernels)
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


#: Lengths of reads and of the ring in pages, passes and faults, of plans that read ahead; recorded or not.
ORDERS: list[tuple[str, list[int], int, int, int, bool]] = [
    ("2s", [1, 1], 1, 3, 3, True),
    ("2s", [1, 1], 2, 2, 2, False),
    ("2s", [2, 1, 1], 3, 2, 1, False),
    ("async", [1, 1], 1, 2, 1, True),
    ("2s", [1, 1], 2, 2, 2, True),
    ("2s", [1, 1], 2, 4, 3, False),
    ("2s", [1, 1, 1], 2, 3, 3, False),
    ("2s", [2, 1, 1], 3, 3, 2, True),
    ("async", [1, 1], 1, 3, 3, False),
    ("async", [1, 1], 2, 3, 2, False),
]


@pytest.mark.parametrize(
    ("architecture", "lengths", "ring", "passes", "faults", "recorded"),
    [*ORDERS[:4], *(pytest.param(*order, marks=pytest.mark.slow) for order in ORDERS[4:])],
)
def test_passes_and_reads_in_every_order(
    architecture: str, lengths: list[int], ring: int, passes: int, faults: int, recorded: bool
) -> None:
    """Each ends right, or with its fault; what is checked meanwhile is said in ``Stepped``."""
    source = program(lengths, [True] * len(lengths))
    choice = Choice(ring * PAGE, read_bytes=PAGE, ahead="tail")
    plan = make_plan(source, ARCHITECTURES[architecture], choice=choice)
    assert plan.stages[0].ahead
    ends: set[str] = set()
    choices = Choices()
    for _ in choices.runs():
        with pytest.MonkeyPatch.context() as patch:
            stepped = Stepped(plan, choices, faults, patch, recorded)
            ends |= {stepped.run() for _ in range(passes)}
            stepped.faults = 0
            stepped.drain()
            assert stepped.run() == "ok"
    failed = {
        f"ReadError: read {index}: {reason}"
        for index in range(len(lengths))
        for reason in ("EIO", "refused")
    }
    assert failed <= ends
    assert "ok" in ends
    assert any(end.startswith("CancelledError") for end in ends)
    assert any(end.startswith("DeadlineError") for end in ends)


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
        engine.drain()  # at once: nothing is in flight
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
    engine.drain()
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
    engine.drain()
    assert open_reads == []
    engine.run()
    engine.drain()
