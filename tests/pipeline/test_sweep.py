"""Sweeps that fail, are cancelled or come too late: nothing stays in flight, errors are right."""

import threading
import time
from collections.abc import Callable

import pytest

from loader.errors import LoaderError, ReadError
from pipeline.architectures import ARCHITECTURES
from pipeline.devices.base import KernelError
from pipeline.errors import CancelledError, DeadlineError
from pipeline.planning.plan import make_plan
from pipeline.schedule import Schedule
from pipeline.sweep import ReadDone, Sweep
from pipeline.validator import TraceEvent, violations
from tests.pipeline.synthetic import PAGE, manifest
from tests.pipeline.test_schedule import ring_reads

SOURCE = manifest([2, 3, 1, 4, 2], [True, True, False, True, True, True])
PLAN = make_plan(SOURCE, ARCHITECTURES["2s"], 6 * PAGE)


class Reads:
    """Starts reads that a test ends: at once, or later from another thread; counts those open."""

    def __init__(self, fail_at: int | None = None, by_thread: bool = False) -> None:
        self.fail_at = fail_at
        self.by_thread = by_thread
        self.open = 0
        self.started = 0
        self.held: list[Callable[[], None]] = []
        self.hold = False

    def __call__(self, index: int, done: ReadDone) -> None:
        self.open += 1
        self.started += 1

        def end() -> None:
            self.open -= 1
            error = ReadError(f"read {index}: Input/output error")
            done(index, error if index == self.fail_at else None, 0.25)

        if self.hold:
            self.held.append(end)
        elif self.by_thread:
            threading.Thread(target=end).start()
        else:
            end()


def sweep(reads: Reads, kernels: list[Callable[[], None]], **options: object) -> Sweep:
    return Sweep(Schedule(PLAN.stages), reads, kernels, **options)  # type: ignore[arg-type]


def kernels(ran: list[int]) -> list[Callable[[], None]]:
    return [lambda i=i: ran.append(i) for i in range(len(SOURCE.pieces))]  # type: ignore[misc]


@pytest.mark.parametrize("by_thread", [False, True])
def test_kernels_run_once_in_order_and_the_trace_is_valid(by_thread: bool) -> None:
    trace: list[TraceEvent] = []
    ran: list[int] = []
    reads = Reads(by_thread=by_thread)
    result = sweep(reads, kernels(ran), record=trace.append).run(123, verified=True)
    assert ran == list(range(len(SOURCE.pieces)))
    assert violations(trace, ring_reads(SOURCE, PLAN), len(SOURCE.pieces)) == []
    assert reads.open == 0
    assert result.read_seconds == pytest.approx(0.25 * len(PLAN.groups))
    assert (result.read_bytes, result.verified) == (123, True)
    assert 0 <= result.kernel_seconds + result.stall_seconds <= result.delay_seconds


@pytest.mark.parametrize("fail_at", range(len(PLAN.groups)))
@pytest.mark.parametrize("by_thread", [False, True])
def test_a_failed_read_ends_the_sweep_with_its_error(fail_at: int, by_thread: bool) -> None:
    ran: list[int] = []
    reads = Reads(fail_at, by_thread)
    with pytest.raises(ReadError, match=f"read {fail_at}: Input/output error"):
        sweep(reads, kernels(ran)).run(0, verified=False)
    assert reads.open == 0
    first_user = ring_reads(SOURCE, PLAN)[fail_at].kernels.start
    assert all(index < first_user for index in ran)


@pytest.mark.parametrize("at", range(len(SOURCE.pieces)))
def test_a_failed_kernel_ends_the_sweep_and_drains(at: int) -> None:
    def fail() -> None:
        raise KernelError("no")

    ran: list[int] = []
    row = kernels(ran)
    row[at] = fail
    reads = Reads(by_thread=True)
    with pytest.raises(KernelError):
        sweep(reads, row).run(0, verified=False)
    assert reads.open == 0
    assert ran == list(range(at))


@pytest.mark.parametrize("after", range(len(SOURCE.pieces)))
def test_cancellation_is_seen_before_every_kernel(after: int) -> None:
    ran: list[int] = []
    reads = Reads(by_thread=True)
    with pytest.raises(CancelledError):
        sweep(reads, kernels(ran), cancelled=lambda: len(ran) >= after).run(0, verified=False)
    assert ran == list(range(after))
    assert reads.open == 0


def test_a_deadline_that_passed_stops_before_the_first_kernel() -> None:
    ran: list[int] = []
    with pytest.raises(DeadlineError):
        sweep(Reads(), kernels(ran), deadline=time.monotonic() - 1).run(0, verified=False)
    assert ran == []


def test_a_deadline_that_passes_during_a_read_still_waits_for_that_read() -> None:
    """The disk writes into the ring until the read ends: it must not be left behind."""
    reads = Reads()
    reads.hold = True
    waiting = threading.Event()

    def end_reads() -> None:
        waiting.wait()
        for end in reads.held:
            end()

    def cancelled() -> bool:  # asked when all reads that may start have started
        waiting.set()
        return False

    thread = threading.Thread(target=end_reads)
    thread.start()
    with pytest.raises(DeadlineError):
        sweep(reads, kernels([]), deadline=0.0, cancelled=cancelled).run(0, verified=False)
    assert reads.started > 0
    assert reads.open == 0
    thread.join()


def test_a_pool_that_refuses_a_read_leaves_nothing_in_flight() -> None:
    def refuse(index: int, done: ReadDone) -> None:
        raise LoaderError("read pool closed")

    with pytest.raises(LoaderError, match="closed"):
        Sweep(Schedule(PLAN.stages), refuse, kernels([])).run(0, verified=False)
