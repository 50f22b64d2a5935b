"""The bound against calculated sweeps: never exceeded, and reached when everything takes its longest."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.planning.plan import Plan
from pipeline.timing.durations import Durations
from pipeline.timing.timeline import back_to_back, bound, least_seconds, timeline
from tests.examples import examples
from tests.pipeline.plans import durations, plans

drawn = examples(12, many=600)
EPSILON = 1e-9


def sweeps(data: st.DataObject, plan: Plan, count: int) -> list[Durations]:
    """Draw durations of several sweeps of one plan on one machine."""
    drawn = [data.draw(durations(plan)) for _ in range(count)]
    return [replace(drawn[0], stages=item.stages) for item in drawn]


def maxima(runs: list[Durations]) -> Durations:
    rows = [
        tuple(map(max, zip(*rows, strict=True)))
        for rows in zip(*(run.stages for run in runs), strict=True)
    ]
    return replace(runs[0], stages=tuple(rows))


def delays(plan: Plan, run: Durations) -> list[float]:
    warm = plan.stages[0].ahead
    return [
        timeline(plan.stages, run).delay_seconds,
        back_to_back(plan.stages, run).delay_seconds,
        timeline(plan.stages, run, warm).delay_seconds,
    ]


@drawn
@given(data=st.data())
def test_no_sweep_within_its_maxima_exceeds_the_bound(data: st.DataObject) -> None:
    _, plan = data.draw(plans())
    runs = sweeps(data, plan, 3)
    longest = maxima(runs)
    limit = bound(plan.stages, longest)
    warm = plan.stages[0].ahead
    for run in runs:
        assert max(delays(plan, run)) <= limit + EPSILON
        assert delays(plan, run)[2] <= bound(plan.stages, longest, carried=warm) + EPSILON


@drawn
@given(data=st.data())
def test_the_bound_is_reached_when_everything_takes_its_longest(data: st.DataObject) -> None:
    _, plan = data.draw(plans())
    longest = data.draw(durations(plan, slowdown=False))
    assert bound(plan.stages, longest) == pytest.approx(delays(plan, longest)[0])


KERNELS = st.lists(st.tuples(st.floats(0, 9), st.integers(0, 99)), min_size=1, max_size=12)


def greedy(kernels: list[tuple[float, int]], memory: int, speed: float) -> float:
    """Seconds of a sweep that reads byte by byte into a ring, full at first, wherever one is free."""
    time, begun, held = 0.0, 0.0, float(memory)  # held: bytes read, or that may be, since the start
    needed = 0
    for seconds, n_bytes in kernels:
        needed += n_bytes
        # Bytes are freed as the kernel runs, so what it lacks is read beside itself.
        lacks = max(needed - held, 0) / speed
        begun, time = time, max(time + seconds, time + lacks)
        held = min(held + (time - begun) * speed, needed + memory)
    return time


def test_is_the_kernels_where_all_fits_and_the_bytes_where_nothing_else_takes_time() -> None:
    assert least_seconds([1.0, 2.0], [5, 5], 10, 1.0) == 3.0
    assert least_seconds([0.0, 0.0], [50, 60], 10, 10.0) == pytest.approx(10.0)


def test_counts_what_must_wait_behind_slow_kernels() -> None:
    # The disk rests beside the first kernel: its memory is full.
    assert least_seconds([5.0, 0.0], [0, 100], 20, 10.0) == pytest.approx(5.0 + 8.0)


@given(KERNELS, st.integers(1, 200), st.integers(1, 50))
def test_no_sweep_is_faster(kernels: list[tuple[float, int]], memory: int, speed: int) -> None:
    seconds, n_bytes = zip(*kernels, strict=True)
    least = least_seconds(seconds, n_bytes, memory, speed)
    assert least <= greedy(kernels, memory, speed) + 1e-6
    assert least >= sum(seconds)
    assert least >= (sum(n_bytes) - memory) / speed - 1e-6


@given(KERNELS, st.integers(1, 200), st.integers(1, 50))
def test_falls_with_memory_and_speed(
    kernels: list[tuple[float, int]], memory: int, speed: int
) -> None:
    seconds, n_bytes = zip(*kernels, strict=True)
    least = least_seconds(seconds, n_bytes, memory, speed)
    assert least_seconds(seconds, n_bytes, memory + 1, speed) <= least
    assert least_seconds(seconds, n_bytes, memory, speed + 1) <= least
