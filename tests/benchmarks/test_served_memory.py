"""What the benchmark of served memory makes of its samples."""

import itertools
from collections import Counter

import pytest

from benchmarks.machine.sampling import MemorySample, Sampler, figures, growth, peaks
from benchmarks.served_memory import WHILE_CHANGING, CaseResult, slope
from pipeline.peers.cgroup import Usage
from tests.examples import over

MIB = 1 << 20


def test_slope() -> None:
    assert slope([(0, 5), (10, 25), (20, 45)]) == pytest.approx(2)
    assert slope([(3, 7)]) == 0


@over(
    "peak, step, status, holds",
    [
        (11 * MIB, 0, "infer 200", True),
        (11 * MIB + 1, 0, "infer 200", False),
        (11 * MIB, 0, "load 409", True),
        (11 * MIB, 0, "load 500", False),
        (11 * MIB, 200, "infer 200", True),
        (11 * MIB, 300, "infer 200", False),
    ],
)
def test_bounds(peak: int, step: int, status: str, holds: bool) -> None:
    left = [(changes, step * changes) for changes in range(25, 1001, 25)]
    result = CaseResult("a", 4 * MIB, 6 * MIB, peak, peak, Counter([status]), left, WHILE_CHANGING)
    assert result.holds is holds


@over(
    "status, while_changing",
    [
        ("load 409", True),
        ("infer 404", True),
        ("replan 409", True),
        ("replan 503", False),
        ("infer 503", False),
        ("unload 404", False),
        ("upload 409", False),
    ],
)
def test_what_may_be_answered(status: str, while_changing: bool) -> None:
    answered = Counter(["infer 200", status])
    assert CaseResult("a", MIB, statuses=answered).failed == [status]
    result = CaseResult("a", MIB, statuses=answered, may=WHILE_CHANGING)
    assert result.failed == ([] if while_changing else [status])


# What is sampled of a process.


SAMPLES = [
    MemorySample(0.0, Usage(total=10, anonymous=2, file=7)),
    MemorySample(0.1, Usage(total=40, anonymous=30, file=9)),
    MemorySample(0.2, Usage(total=35, anonymous=5, file=28)),
]


def test_peaks_are_of_each_kind_at_its_own_time() -> None:
    assert peaks(SAMPLES) == Usage(total=40, anonymous=30, file=28)
    assert peaks([]) == Usage(0, 0, 0)


def test_the_total_is_the_kernels_where_it_says_one() -> None:
    told = figures(44, SAMPLES)
    assert (told["cgroup_peak_bytes"], told["sampled_total_peak_bytes"]) == (44, 40)
    assert (told["anonymous_peak_bytes"], told["file_peak_bytes"]) == (30, 28)
    assert figures(0, SAMPLES)["cgroup_peak_bytes"] == 40


def test_sampling_ends_when_the_process_is_gone() -> None:
    looks = itertools.count(1)

    def look() -> Usage:
        seen = next(looks)
        if seen > 3:
            raise ProcessLookupError
        return Usage(seen, seen, 0)

    sampler = Sampler(look, seconds=0)
    with sampler:
        sampler.wait()
    assert [sample.usage.total for sample in sampler.samples] == [1, 2, 3]
    times = [sample.seconds for sample in sampler.samples]
    assert times == sorted(times)


def test_growth_is_of_the_last_minute_over_the_second() -> None:
    """Requests come and go; ten bytes a minute stay."""
    samples = [
        MemorySample(float(second), Usage(0, 1000 + second // 60 * 10 + 500 * (second % 4 == 0), 0))
        for second in range(30, 640)
    ]
    assert growth(samples, began=0.0, ended=600.0) == 1090 / 1010 - 1
    assert growth(samples, began=30.0, ended=200.0) is None
    assert growth([], began=0.0, ended=600.0) is None
