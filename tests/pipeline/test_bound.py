"""The bound against simulated sweeps: never exceeded, and reached when everything takes its longest."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.architectures import ARCHITECTURES
from pipeline.bound import bound
from pipeline.durations import Durations
from pipeline.planning.make import make_plan
from pipeline.planning.plan import Choice, Plan
from pipeline.simulator import simulate, simulate_back_to_back
from pipeline.windows import Windows
from tests.pipeline.plans import durations, plans
from tests.pipeline.synthetic import PAGE, manifest

examples = settings(deadline=None, max_examples=60)
EPSILON = 1e-9


def sweeps(data: st.DataObject, plan: Plan, count: int) -> list[Durations]:
    """Draw durations of several sweeps of one plan on one machine."""
    drawn = [data.draw(durations(plan)) for _ in range(count)]
    return [Durations(item.stages, item.depth, drawn[0].slowdown) for item in drawn]


def maxima(runs: list[Durations]) -> Durations:
    rows = [
        tuple(map(max, zip(*rows, strict=True)))
        for rows in zip(*(run.stages for run in runs), strict=True)
    ]
    return Durations(tuple(rows), runs[0].depth, runs[0].slowdown)


def delays(plan: Plan, run: Durations) -> list[float]:
    warm = plan.stages[0].ahead
    return [
        simulate(plan.stages, run).delay_seconds,
        simulate_back_to_back(plan.stages, run).delay_seconds,
        simulate(plan.stages, run, warm).delay_seconds,
    ]


@examples
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


@examples
@given(data=st.data())
def test_no_sweep_within_its_windows_exceeds_the_bound(data: st.DataObject) -> None:
    _, plan = data.draw(plans(max_pieces=40))
    runs = sweeps(data, plan, 3)
    windows = Windows.of([run.stages[-1] for run in runs])
    own = len(plan.stages[0]) - plan.stages[0].ahead
    reads = Windows.of([run.stages[0][:own] for run in runs])
    longest = maxima(runs)
    limits = [
        bound(plan.stages, longest, windows),
        bound(plan.stages, longest, windows, reads),
        bound(plan.stages, longest, None, reads),
    ]
    for run in runs:
        assert max(delays(plan, run)) <= min(limits) + EPSILON
    assert max(limits) <= bound(plan.stages, longest) + EPSILON
    assert limits[1] <= min(limits[0], limits[2]) + EPSILON


@examples
@given(data=st.data())
def test_the_bound_is_reached_when_everything_takes_its_longest(data: st.DataObject) -> None:
    _, plan = data.draw(plans())
    longest = data.draw(durations(plan, slowdown=False))
    assert bound(plan.stages, longest) == pytest.approx(delays(plan, longest)[0])


def test_windows_make_the_bound_of_many_kernels_that_take_turns_tight() -> None:
    """Each sweep has one slow kernel of 64, each time another one."""
    count = 64
    plan = make_plan(manifest([1] * count, [True] * count), ARCHITECTURES["pre"])
    samples = np.ones((count, count)) + 9 * np.eye(count)
    longest = Durations(((), (10.0,) * count), 1)
    assert bound(plan.stages, longest) == 640
    assert bound(plan.stages, longest, Windows.of(samples)) == pytest.approx(count + 9)


def test_windows_of_reads_make_the_bound_of_a_slow_disk_tight() -> None:
    count = 64
    source = manifest([1] * count, [True] * count)
    for depth in (1, 2):
        choice = Choice(ring_bytes=64 * PAGE, read_bytes=PAGE, depth=depth)
        plan = make_plan(source, ARCHITECTURES["2s"], choice=choice)
        longest = Durations(((10.0,) * count, (0.0,) * count), depth)
        reads = Windows.of(np.ones((count, count)) + 9 * np.eye(count))
        assert bound(plan.stages, longest) == 640 / depth
        # The last read, and what earlier ones have left when the line begins.
        waiting = (count + 9 + 10 * (depth - 1)) / depth
        assert bound(plan.stages, longest, read_windows=reads) <= waiting + 10


@examples
@given(data=st.data(), count=st.integers(1, 40))
def test_the_runs_of_windows_cover_every_run_of_every_sample(
    data: st.DataObject, count: int
) -> None:
    seconds = st.lists(st.integers(0, 100), min_size=count, max_size=count)
    samples = np.array([data.draw(seconds) for _ in range(3)], np.float64)
    windows = Windows.of(samples)
    most = windows.runs()
    single = samples.max(axis=0)
    for start in range(count):
        for end in range(start + 1, count + 1):
            longest = samples[:, start:end].sum(axis=1).max()
            assert longest <= most[end, start] <= single[start:end].sum()
    assert most[count, 0] == samples.sum(axis=1).max()
    assert all(windows.covers(sample) for sample in samples.tolist())
    assert not windows.covers((samples[0] + samples.sum() + 1).tolist())
    assert Windows.from_dict(windows.as_dict()) == windows
    assert sum(map(len, windows.maxima)) <= 4 * count + 10


@pytest.mark.parametrize("samples", [[], [1.0, 2.0]])
def test_samples_of_another_shape_are_refused(samples: Any) -> None:
    with pytest.raises(ValueError, match=r"not \[runs, operations\]"):
        Windows.of(samples)


def test_windows_of_another_plan_are_refused() -> None:
    plan = make_plan(manifest([1, 1], [True, True]), ARCHITECTURES["pre"])
    windows = Windows.of([[1.0] * 3])
    with pytest.raises(ValueError, match="3 operations"):
        bound(plan.stages, Durations(((), (1.0, 1.0)), 1), windows)
    with pytest.raises(ValueError, match="3"):
        windows.covers([1.0])
